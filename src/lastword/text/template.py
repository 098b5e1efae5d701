"""Chat templates are programs that a checkpoint brings: each is tried before it is used.

jinja's sandbox keeps them from everything but time and memory. A template that takes too much of
these on a few short messages is refused when its model loads (`require_bounded`). This file tries
it: run as a script, with the template on stdin, it ends with 1 and a line that says why. It imports
nothing but jinja2, so that it costs a fraction of a second. Later conversations are written in
another process, which is ended where one takes too long (`renderer.py`).
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_CPU_SECONDS, _MEMORY_BYTES = 2, 2**30
_CHARACTERS = 2**20  # written around a few short messages
_PATIENCE_SECONDS = 60.0  # for a trial on a busy machine
_LONG = "Which goods come from Baevwick? " * 32
_CONVERSATIONS = (
    [("user", "?")],
    [("system", "Answer."), ("user", "?"), ("assistant", "!"), ("user", "?")],
    [("user", _LONG), ("assistant", _LONG)] * 16 + [("user", _LONG)],
)


def require_bounded(template: Any, name: str) -> None:
    """Refuse a chat template without bounds.

    Args:
        template: What a tokenizer has: a text, texts by name, or none.
        name: The model, for the error.

    Raises:
        ModelError: A trial took too much time or memory, or wrote too much.
    """
    from lastword.errors import ModelError  # which a script with no path of ours has not

    texts = template.values() if isinstance(template, dict) else [template]
    for text in texts:
        if isinstance(text, str) and (why := _overrun(text)) is not None:
            raise ModelError(
                f"{name} has a chat template that {why}: take another copy of the model, or mend "
                "its chat_template"
            )


@lru_cache(maxsize=64)
def _overrun(template: str) -> str | None:
    """Try a template in a process of its own; return what speaks against it, or None."""
    # -I: nothing beside the script and nothing of the surroundings is imported.
    command, text = [sys.executable, "-I", __file__], template.encode(errors="replace")
    try:
        outcome = subprocess.run(
            command, input=text, capture_output=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "does not come to an end"
    if outcome.returncode == 0:
        return None
    if outcome.returncode == 1 and outcome.stdout:
        return " ".join(outcome.stdout.decode(errors="replace").split())[:200]
    return f"takes more than {_CPU_SECONDS} s or {_MEMORY_BYTES // 2**20} MiB"


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


def _excess(template: str, conversation: Sequence[tuple[str, str]]) -> str | None:
    """Return what is unbounded about rendering one conversation, or None."""
    said: list[dict[str, Any]] = [{"role": r, "content": c} for r, c in conversation]
    tokens = {"bos_token": "", "eos_token": "", "tools": None, "documents": None}
    written = 0
    try:
        pieces = _environment().from_string(template)
        for piece in pieces.generate(messages=said, add_generation_prompt=True, **tokens):
            written += len(piece)
            if written > _CHARACTERS:
                return f"writes more than {_CHARACTERS} characters"
    except MemoryError:
        return "takes more memory than it may"
    except OverflowError as error:
        return f"counts beyond bounds ({error})"
    except Exception:  # the model author's program: what it refuses is said where it is used
        return None
    return None


def _try() -> None:
    """Try the template on stdin within the bounds; on Windows the caller's clock is all."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    template = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    for conversation in _CONVERSATIONS:
        if (why := _excess(template, conversation)) is not None:
            print(why)
            sys.exit(1)


if __name__ == "__main__":
    _try()
