"""Conversations written by transformers' chat templates: run as a script, a process of its own.

Its argument is the bytes of memory that writing may take. It says `ready`, then answers each line
of stdin, seconds and a JSON object, with one: the text; how long it is, where that is more than was
asked for; what the template refused; or that it was late. It imports nothing of torch, so that it
is there within a second. A copy of it writes: whatever a template does to that one, the next is
there within milliseconds, where the system copies processes.
"""

import json
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

# A conversation takes milliseconds. What takes longer goes behind everything else: a template
# without an end takes a processor until it is ended.
_NICE, _LAST = 5, 19
_SHORT = 0.25
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
        """True if it can be asked again."""
        return bool(self._process.is_alive())

    def answer(self, line: bytes) -> bytes:
        """An answer within the seconds of a line; it lives no longer where that takes long."""
        answer = json.dumps({"late": True}).encode()
        seconds = _seconds(line)
        try:
            self._line.send_bytes(line)
            if self._line.poll(min(seconds, _SHORT)):
                return bytes(self._line.recv_bytes())
            self._go_last()
            if self._line.poll(max(0.0, seconds - _SHORT)):
                answer = bytes(self._line.recv_bytes())
        except (EOFError, OSError):
            what = "the process that writes it has ended"
            answer = json.dumps({"error": f"{what}; it may take {self._memory >> 20} MiB"}).encode()
        self._process.kill()  # nor may it come forward again
        self._process.join()
        return answer

    def _go_last(self) -> None:
        if sys.platform != "win32":
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _LAST)


def _seconds(line: bytes) -> float:
    return float(line.partition(b" ")[0])


def _write(render: Any, memory: int, asked: Connection, ours: Sequence[int]) -> None:
    """Answer until the other process is gone."""
    for file in ours:
        os.close(file)
    os.dup2(1, 0)  # what is asked comes by `asked` alone
    _limit(memory)
    while True:
        try:
            line = asked.recv_bytes()
        except EOFError:
            return
        _end_in(math.ceil(_seconds(line)) + 1)  # should the other be gone by then
        request = json.loads(line.partition(b" ")[2])
        asked.send_bytes(json.dumps(_answer(render, request)).encode())
        _end_in(0)


def _limit(memory: int) -> None:
    """Go behind who speaks with clients, with no more memory than so many bytes."""
    if sys.platform == "win32":
        return
    import resource

    os.nice(_NICE)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _end_in(seconds: int) -> None:
    """Let this process be ended in so many seconds, whatever it does then; not at all in 0."""
    if sys.platform != "win32":
        signal.alarm(seconds)


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
        own = own if own.lives else writer()
        answers.write(own.answer(line) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
