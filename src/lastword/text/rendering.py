"""Script that writes conversations with chat templates, in a process with limited time and memory.

Its argument is the maximum memory in bytes. It prints `ready`, and then answers each line of stdin,
a JSON object, with another: the `text`, an `error` of the template, or the limit that it exceeded
(`excess`). It imports only jinja2, so that it starts in a twentieth of a second.
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

_NICE = 5  # lower priority than the threads that serve clients


class _Generation(Extension):
    """The tag `generation` of transformers, which marks the assistant's text, as its body."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(self, /, *entries: Any, **names: Any) -> None:
        Namespace.__init__(self)
        for name, value in dict(*entries, **names).items():
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
    environment.filters["random"] = _refuse_chance
    environment.globals |= {
        "lipsum": _refuse_chance,
        "raise_exception": _refuse,
        "strftime_now": datetime.fromisoformat(day).strftime,
        "dict": lambda *entries, **options: dict(*entries, **options),
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


def _refuse_chance(*_: Any, **__: Any) -> None:
    _refuse("it is random, and equal messages must give equal prompts")


def _answer(request: dict[str, Any]) -> dict[str, str]:
    pieces, size, limit = list[str](), 0, request["limit"]
    variables = {"tools": None, "documents": None, "messages": request["messages"]}
    try:
        template = _environment(request["day"]).from_string(request["template"])
        for piece in template.generate(variables | request["values"]):
            pieces.append(piece)
            if (size := size + len(piece)) > limit:
                return {"excess": f"writes {size} characters, more than {limit}"}
    except MemoryError:
        return {"excess": "takes more memory than it may"}
    except OverflowError as error:
        return {"excess": f"counts beyond bounds ({error})"}
    except Exception as error:  # the template may raise any error
        return {"error": " ".join(str(error).split())[:1000] or type(error).__name__}
    return {"text": "".join(pieces)}


def _limit(memory: int) -> None:
    """Limit this process's memory in bytes, and lower its priority."""
    import resource

    os.nice(_NICE)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Answer until stdin ends."""
    limited = sys.platform != "win32"
    if limited:
        _limit(int(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if limited:  # after this CPU time, the system ends the process
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        print(json.dumps(_answer(request)), flush=True)
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
