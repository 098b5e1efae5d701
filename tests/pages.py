"""The commands and programs on a page of the docs, and their output."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^```([\w+-]*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
TYPED = ("sh", "console", "python")  # other blocks show what is printed, or a file


@dataclass
class Block:
    """A block of commands or Python, and the output of the last command in the next block."""

    kind: str
    text: str
    output: str | None = None


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    typed: list[Block] = []
    end = 0
    for fence in FENCE.finditer(page):
        kind, text = fence.groups()
        if kind in TYPED:
            typed.append(Block(kind, text))
            end = fence.end()
        elif not kind and typed and not page[end : fence.start()].strip():
            typed[-1].output = text
    return typed


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a block; an open quote or a backslash continues a command."""
    command = ""
    for line in text.splitlines(keepends=True):
        command += line
        try:
            shlex.split(command, comments=True)
        except ValueError:  # a quote is open, or the last character is a backslash
            continue
        if not command.endswith("\\\n"):
            if shlex.split(command, comments=True):
                yield command.strip()
            command = ""


def parts(block: Block) -> list[str]:
    """Return a Python program as a whole, or the commands of a shell block."""
    whole = block.kind == "python" or block.text.startswith("#!")
    return [block.text] if whole else [*commands(block.text)]
