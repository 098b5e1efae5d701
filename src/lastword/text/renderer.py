"""Conversations written by chat templates in a process of its own, which can be ended.

One step of a template may take hours inside Python (`7 ** 10 ** 9`), and nothing in the same
process runs meanwhile, not even what handles a signal.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lastword.errors import InputError, ModelError

_SECONDS = 3.0  # a conversation takes a chat template milliseconds
_CHARACTERS = 2**20  # that it may write around what was said
_RENDERING, _BYTES = Path(__file__).with_name("rendering.py"), 2**29


class Renderer:
    """Writes conversations in a process of its own, which starts with the first; one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # whose process it is: one that was forked has none yet

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: str,
        values: Mapping[str, Any],
        *,
        seconds: float,
        most: int,
    ) -> str | int:
        """A conversation as a template writes it, or its length where it has too many characters.

        Args:
            messages: The conversation.
            template: Its text.
            values: What else the template is given.
            seconds: How long it may take.
            most: Characters that it may have.

        Raises:
            TimeoutError: It takes longer.
            ValueError: The template refuses it, or takes too much memory.
        """
        request = {"messages": messages, "template": template, "values": values, "most": most}
        line = f"{seconds} {json.dumps(request, default=str)}\n".encode()
        with self._lock:
            try:
                answer = self._ask(line)
            except BaseException:  # Ctrl-C: an answer that nobody took is not the next one's
                self.end()
                raise
        if "late" in answer:
            raise TimeoutError
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["text"]) if "text" in answer else int(answer["characters"])

    def end(self) -> None:
        """End the process, if it is this one's."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner != os.getpid():
            process.returncode = 0  # another's: nothing of it is waited for here
            return
        if sys.platform == "win32":
            process.kill()
        else:
            # Who writes is of its group; macOS refuses a group that has ended already.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        if answer.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(answer)
            return reply
        self.end()
        return {"error": "the process that writes has ended"}

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, ready; a new one where there is none or it has ended."""
        process = self._process
        if process is not None and self._owner == os.getpid() and process.poll() is None:
            return process
        self.end()
        command = [sys.executable, "-I", str(_RENDERING), str(_BYTES)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nothing, process_group=0
        )
        self._process = process
        if self._owner != os.getpid():
            atexit.register(self.end)
        self._owner = os.getpid()
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            self.end()
            raise ModelError("the process that writes conversations does not start")
        return process


RENDERER = Renderer()


def written(messages: list[dict[str, str]], tokenizer: Any, values: Mapping[str, Any]) -> str:
    """A conversation as a tokenizer's chat template writes it, up to where the answer begins.

    Args:
        messages: Roles and contents.
        tokenizer: One of transformers, or one that writes conversations itself.
        values: What else the template is given.

    Raises:
        InputError: The template refuses the conversation, has no end, or writes too much.
    """
    most = _CHARACTERS + 4 * sum(len(message["content"]) for message in messages)
    try:
        text = _write(messages, tokenizer, {"add_generation_prompt": True, **values}, most)
    # The template is the model author's program: jinja raises whatever its code raises.
    except Exception as error:
        late = isinstance(error, TimeoutError)
        why = f"no end after {_SECONDS:g} s" if late else " ".join(str(error).split())
        raise InputError(f"the tokenizer's chat template refuses the prompt: {why}") from error
    size = text if isinstance(text, int) else len(text)
    if size > most:
        raise InputError(
            f"the tokenizer's chat template makes {size} characters of the prompt, expected "
            f"at most {most}: mend the model's chat_template"
        )
    return str(text)


def _write(
    messages: list[dict[str, str]], tokenizer: Any, values: Mapping[str, Any], most: int
) -> str | int:
    """Return what the template writes, or its length beyond `most`, by transformers' own code.

    A tokenizer that writes conversations itself reads no template of the checkpoint.
    """
    base = sys.modules.get("transformers.tokenization_utils_base")
    own = getattr(type(tokenizer), "apply_chat_template", None)
    if base is None or own is not base.PreTrainedTokenizerBase.apply_chat_template:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **values))
    values = {**tokenizer.special_tokens_map, **values}
    template = tokenizer.get_chat_template()
    return RENDERER.write(messages, template, values, seconds=_SECONDS, most=most)
