"""Chat templates are programs that a checkpoint brings: they run in a process that can be ended.

jinja's sandbox keeps them from everything but time and memory. One step of a template may take
hours inside Python (`7 ** 10 ** 9`), and nothing in the same process runs meanwhile, not even what
handles a signal. `rendering.py` is the process. Each template is tried there on a few short
messages when its model loads (`require_bounded`).
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from lastword.errors import InputError, ModelError
from lastword.files.cells import text_fault

_SECONDS, _TRIAL_SECONDS = 3.0, 2.0  # of the processor; a conversation takes milliseconds
_PATIENCE = 60.0  # seconds in all: the machine may be busy
_CHARACTERS = 2**20  # written around what was said
_BYTES = 2**29
_RENDERING = Path(__file__).with_name("rendering.py")
_LONG = "Which goods come from Baevwick? " * 32
_CONVERSATIONS = (
    [("user", "?")],
    [("system", "Answer."), ("user", "?"), ("assistant", "!"), ("user", "?")],
    [("user", _LONG), ("assistant", _LONG)] * 16 + [("user", _LONG)],
)


class UnboundedError(Exception):
    """A template took too much time or memory, or wrote too much: which, as `takes more than`."""


class Renderer:
    """Writes conversations in a separate process, which starts with the first; one at a time."""

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
        most: int,
        seconds: float,
        day: str | None = None,
    ) -> str:
        """Write a conversation by a template, on a day; today if left out.

        Raises:
            UnboundedError: It takes or writes more.
            ValueError: The template refuses it.
        """
        request = {"messages": messages, "template": template, "values": values, "most": most}
        line = json.dumps(request | {"seconds": seconds, "day": day or today()}, default=str)
        with self._lock:
            try:
                answer = self._ask(line)
            except BaseException:  # Ctrl-C: an answer that nobody took is not the next one's
                self.end()
                raise
        if answer is None:
            raise UnboundedError(f"takes more than {seconds:g} s or {_BYTES >> 20} MiB")
        if "excess" in answer:
            raise UnboundedError(answer["excess"])
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"]

    def end(self) -> None:
        """End the process, if it is this one's."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner != os.getpid():
            process.returncode = 0  # another's: nothing of it is waited for here
            return
        atexit.unregister(self.end)
        process.terminate()
        process.communicate()

    def _ask(self, line: str) -> dict[str, str] | None:
        """Return the answer; None where the process came to its end over it."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        clock = threading.Timer(_PATIENCE, process.kill)
        clock.start()
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        finally:
            clock.cancel()
        if not answer.endswith(b"\n"):
            self.end()
            return None
        reply: dict[str, str] = json.loads(answer)
        return reply

    def _running(self) -> "subprocess.Popen[bytes]":
        """Return the process, ready; a new one where there is none or it has ended."""
        process = self._process
        if process is not None and self._owner == os.getpid() and process.poll() is None:
            return process
        self.end()
        # -I: nothing beside the script and nothing of the surroundings is imported.
        command = [sys.executable, "-I", str(_RENDERING), str(_BYTES)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nothing, process_group=0
        )
        self._process, self._owner = process, os.getpid()
        atexit.register(self.end)
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"ready":
            self.end()
            raise ModelError("the process that writes conversations does not start")
        return process


RENDERER = Renderer()


def require_bounded(template: Any, name: str) -> None:
    """Refuse a chat template without bounds.

    Raises:
        ModelError: A trial took too much time or memory, or wrote too much.
    """
    texts = template.values() if isinstance(template, dict) else [template]
    for text in texts:
        if isinstance(text, str) and (why := _excess(text)) is not None:
            raise ModelError(
                f"{name} has a chat template that {why}: take another copy of the model, or mend "
                "its chat_template"
            )


@lru_cache(maxsize=64)
def _excess(template: str) -> str | None:
    """Try a template; return the bound that it breaks, or None."""
    renderer = Renderer()
    values = {"bos_token": "", "eos_token": "", "add_generation_prompt": True}
    try:
        for conversation in _CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            with suppress(ValueError):  # what it refuses is said where it is used
                renderer.write(
                    messages,
                    template,
                    values,
                    most=_CHARACTERS,
                    seconds=_TRIAL_SECONDS,
                    day=today(),
                )
    except UnboundedError as error:
        return str(error)
    finally:
        renderer.end()
    return None


@cache
def today() -> str:
    """Return the day on which this process first asked: one for all of a run, past midnight too."""
    return date.today().isoformat()


def written(
    messages: list[dict[str, str]],
    tokenizer: Any,
    values: Mapping[str, Any],
    *,
    day: str | None = None,
    parts: bool = False,
) -> str:
    """Write a conversation by a tokenizer's chat template, up to where the answer begins.

    Args:
        messages: Roles with their contents.
        tokenizer: It has the template.
        values: Variables of the template.
        day: What the template takes for today.
        parts: Give each content as a list of one part, which some templates loop over.

    Raises:
        InputError: The template refuses the conversation, has no end, or writes too much.
    """
    most = _CHARACTERS + 4 * sum(len(message["content"]) for message in messages)
    values = {"add_generation_prompt": True, **values}
    shaped: list[dict[str, Any]] = [*messages]
    if parts:
        shaped = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages]
    try:
        text = _write(shaped, tokenizer, values, most, day)
    except UnboundedError as error:
        why = f"{error} for this prompt: mend the model's chat_template"
        raise InputError(f"the tokenizer's chat template {why}") from error
    except Exception as error:  # the model author's program: whatever its code raises
        why = " ".join(str(error).split())
        raise InputError(f"the tokenizer's chat template refuses the prompt: {why}") from error
    if (fault := text_fault(text)) is not None:
        raise InputError(f"what the tokenizer's chat template writes {fault}")
    return text


def _write(
    messages: list[dict[str, Any]],
    tokenizer: Any,
    values: Mapping[str, Any],
    most: int,
    day: str | None,
) -> str:
    """Return what the template writes, as transformers' code would.

    A tokenizer that writes conversations itself reads no template of the checkpoint.
    """
    base = sys.modules.get("transformers.tokenization_utils_base")
    method = getattr(type(tokenizer), "apply_chat_template", None)
    if base is None or method is not base.PreTrainedTokenizerBase.apply_chat_template:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, **values))
        if len(text) > most:
            raise UnboundedError(f"writes {len(text)} characters, more than {most}")
        return text
    values = {**tokenizer.special_tokens_map, **values}
    template = tokenizer.get_chat_template()
    return RENDERER.write(messages, template, values, most=most, seconds=_SECONDS, day=day)
