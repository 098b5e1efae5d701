"""What a page has people type: its blocks of commands and of Python, and what they print."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^```([\w+-]*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
TYPED = ("sh", "console", "python")  # other blocks show what is printed, or a file


@dataclass
class Block:
    """What a page has people type, and the last command's output, in the block under it."""

    kind: str
    text: str
    output: str | None = None


def blocks(page: str) -> list[Block]:
    """Those of a page's text, in its order."""
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
    """The commands of a block; one ends with its line unless a quote or a backslash goes on."""
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
    """A program as it is, or each command of a shell's block."""
    whole = block.kind == "python" or block.text.startswith("#!")
    return [block.text] if whole else [*commands(block.text)]
