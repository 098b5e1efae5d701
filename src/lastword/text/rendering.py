"""Conversations written by chat templates: run as a script, a process that the system holds short.

Its argument is the bytes of memory that it may take. It says `ready`, then answers each line of
stdin, a JSON object, with one: the text; what the template refused; or which bound it broke. It
imports nothing but jinja2, so that it is there in a twentieth of a second.
"""

import json
import os
import signal
import sys
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_NICE = 5  # behind who speaks with clients


class _Generation(Extension):
    """Write the body alone of what transformers marks the assistant's words with."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """A namespace that keeps nothing under a private name of Python's."""

    def __init__(*args: Any, **names: Any) -> None:
        self, *more = args
        Namespace.__init__(self)
        for name, value in dict(*more, **names).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no name {name!r}")
        Namespace.__setitem__(self, name, value)


def _environment(day: str) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": datetime.fromisoformat(day).strftime,
        "dict": lambda *entries, **named: dict(*entries, **named),
        "namespace": _Names,
    }
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    form: Any = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    pieces, size, most = list[str](), 0, request["most"]
    variables = {"tools": None, "documents": None, "messages": request["messages"]}
    try:
        template = _environment(request["day"]).from_string(request["template"])
        for piece in template.generate(variables | request["values"]):
            pieces.append(piece)
            if (size := size + len(piece)) > most:
                return {"excess": f"writes {size} characters, more than {most}"}
    except MemoryError:
        return {"excess": "takes more memory than it may"}
    except OverflowError as error:
        return {"excess": f"counts beyond bounds ({error})"}
    except Exception as error:  # the model author's program: jinja raises whatever its code raises
        return {"error": " ".join(str(error).split())[:1000] or type(error).__name__}
    return {"text": "".join(pieces)}


def _limit(memory: int) -> None:
    """Take no more memory than so many bytes, and stand behind who speaks with clients."""
    import resource

    os.nice(_NICE)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Answer until stdin ends."""
    limited = sys.platform != "win32"
    if limited:
        _limit(int(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if limited:  # seconds of the processor, then the system ends this process
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        print(json.dumps(_answer(request)), flush=True)
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
