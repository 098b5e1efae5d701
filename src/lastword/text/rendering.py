"""Conversations written by transformers' chat templates: run as a script, a process of its own.

Its argument is the bytes of memory that it may take. It says `ready`, then answers each line of
stdin, a JSON object, with one: the text; how long it is, where that is more than was asked for; or
what the template refused. It imports nothing of torch, so that it is there within a second.
"""

import json
import os
import sys
from typing import Any

_NICE = 15  # a template without an end takes a processor until it is ended


def _answer(render: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        (text,), _ = render(
            [request["messages"]], chat_template=request["template"], **request["values"]
        )
    except Exception as error:  # the model author's program: jinja raises whatever its code raises
        return {"error": " ".join(str(error).split())[:1000] or type(error).__name__}
    return {"text": text} if len(text) <= request["most"] else {"characters": len(text)}


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed elsewhere is no answer
    from transformers.utils.chat_template_utils import render_jinja_template

    if sys.platform != "win32":
        import resource

        os.nice(_NICE)
        memory = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(
            json.dumps(_answer(render_jinja_template, json.loads(line))), file=answers, flush=True
        )


if __name__ == "__main__":
    main()
