"""Conversations written by transformers' chat templates: run as a script, a process of its own.

Its argument is the bytes of memory that writing may take. It says `ready`, then answers each line
of stdin, seconds and a JSON object, with one: the text; how long it is, where that is more than was
asked for; what the template refused; or that it was late. It imports nothing of torch, so that it
is there within a second. A copy of it writes: whatever a template does to that one, the next is
there within milliseconds, where the system copies processes.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

_NICE = 19  # a template without an end takes a processor until it is ended
_COPY = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


class _Writer:
    """A process that writes until it is late or takes too much.

    Args:
        render: What writes a conversation: transformers' own.
        memory: Bytes that it may take.
        answers: The file in which its answers are told; it has none of it itself.
    """

    def __init__(self, render: Any, memory: int, answers: int) -> None:
        context: Any = multiprocessing.get_context(_COPY)
        self._memory = memory
        self._line, asked = context.Pipe()
        ours = [answers, self._line.fileno()] if _COPY == "fork" else []
        arguments = render, memory, asked, ours
        self._process = context.Process(target=_write, args=arguments, daemon=True)
        self._process.start()
        asked.close()

    @property
    def lives(self) -> bool:
        """Whether it can be asked again."""
        return bool(self._process.is_alive())

    def answer(self, request: bytes, seconds: float) -> bytes:
        """An answer within so many seconds; it lives no longer where it has none."""
        late = True
        try:
            self._line.send_bytes(request)
            if self._line.poll(seconds):
                return bytes(self._line.recv_bytes())
        except (EOFError, OSError):
            late = False
        self._process.kill()
        self._process.join()
        why = {"late": True} if late else {"error": f"it takes more than {self._memory >> 20} MiB"}
        return json.dumps(why).encode()


def _write(render: Any, memory: int, asked: Connection, ours: Sequence[int]) -> None:
    """Answer until the other process is gone."""
    for file in ours:
        os.close(file)
    if sys.platform != "win32":
        import resource

        os.nice(_NICE)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    while True:
        try:
            request = asked.recv_bytes()
        except EOFError:
            return
        asked.send_bytes(json.dumps(_answer(render, json.loads(request))).encode())


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
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed elsewhere is no answer
    from transformers.utils.chat_template_utils import render_jinja_template

    def writer() -> _Writer:
        return _Writer(render_jinja_template, int(sys.argv[1]), answers.fileno())

    own = writer()
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        seconds, _, request = line.partition(b" ")
        own = own if own.lives else writer()
        answers.write(own.answer(request, float(seconds)) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
