"""A chat template rendered once, in a process of its own: run as a script, the template on stdin.

Its arguments are the seconds of processor time, the bytes of memory and the characters that the
template may take. It ends with 1 and a line that says why where the template takes more, or is
killed. A template that refuses these conversations is none of its business. It imports nothing
but jinja2, so that it costs a fraction of a second.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONG = "Which goods come from Baevwick? " * 32
CONVERSATIONS = (
    [("user", "?")],
    [("system", "Answer."), ("user", "?"), ("assistant", "!"), ("user", "?")],
    [("user", _LONG), ("assistant", _LONG)] * 16 + [("user", _LONG)],
)


class _Generation(Extension):
    """Write the body alone of what transformers marks the assistant's words with."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The sandbox that transformers renders in, as far as bounds are concerned."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda _: "2026-01-01"}
    return environment


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _overruns(
    template: str, conversation: Sequence[tuple[str, str]], characters: int
) -> str | None:
    """Return what is unbounded about rendering one conversation, or None."""
    said: list[dict[str, Any]] = [{"role": r, "content": c} for r, c in conversation]
    tokens = {"bos_token": "", "eos_token": "", "tools": None, "documents": None}
    written = 0
    try:
        pieces = _environment().from_string(template)
        for piece in pieces.generate(messages=said, add_generation_prompt=True, **tokens):
            written += len(piece)
            if written > characters:
                return f"writes more than {characters} characters"
    except MemoryError:
        return "takes more memory than it may"
    except OverflowError as error:
        return f"counts beyond bounds ({error})"
    except Exception:  # the model author's program: what it refuses is said where it is used
        return None
    return None


def _limit_this_process(seconds: int, memory: int) -> None:
    if sys.platform == "win32":  # the caller's clock is all there is
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def main() -> None:
    """Try the template on stdin."""
    seconds, memory, characters = map(int, sys.argv[1:])
    _limit_this_process(seconds, memory)
    template = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    for conversation in CONVERSATIONS:
        if (why := _overruns(template, conversation, characters)) is not None:
            print(why)
            sys.exit(1)


if __name__ == "__main__":
    main()
