"""Chat templates, which are untrusted programs, run in a separate process (`rendering.py`).

jinja's sandbox does not limit time and memory. One step of a template may take hours inside Python
(`7 ** 10 ** 9`), and meanwhile nothing else in the process runs, not even signal handlers. When a
model loads, its template is tried on a few short conversations (`require_bounded`).
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

from lastword.errors import InputError, ModelError, one_line
from lastword.files.cells import text_fault

_SECONDS, _TRIAL_SECONDS = 3.0, 2.0  # CPU time; a conversation takes milliseconds
_PATIENCE = 60.0  # seconds of real time, as the machine may be busy
_CHARACTERS = 2**20  # maximum output besides the messages
_BYTES = 2**29  # maximum memory
_RENDERING = Path(__file__).with_name("rendering.py")
_LONG = "Which goods come from Baevwick? " * 32
_CONVERSATIONS = (
    [("user", "?")],
    [("system", "Answer."), ("user", "?"), ("assistant", "!"), ("user", "?")],
    [("user", _LONG), ("assistant", _LONG)] * 16 + [("user", _LONG)],
)


class UnboundedError(Exception):
    """A template took too much time or memory, or wrote too much."""


class Renderer:
    """Writes conversations, one at a time, in a separate process that starts with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process that started it: a fork must start another

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: str,
        values: Mapping[str, Any],
        *,
        limit: int,
        seconds: float,
        day: str | None = None,
    ) -> str:
        """Return a conversation in a template, of at most `limit` characters.

        Raises:
            UnboundedError: The template takes too long, or writes too much.
            ValueError: The template raised an error.
        """
        request = {"messages": messages, "template": template, "values": values, "limit": limit}
        line = json.dumps(request | {"seconds": seconds, "day": day or today()}, default=str)
        with self._lock:
            try:
                answer = self._ask(line)
            except BaseException:  # after Ctrl-C, the pipe may have an old answer
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
        """End the process, if this process started it."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner != os.getpid():
            process.returncode = 0  # so that Popen does not wait for the parent's process
            return
        atexit.unregister(self.end)
        process.terminate()
        process.communicate()

    def _ask(self, line: str) -> dict[str, str] | None:
        """Return the answer; None if the process ended, or was killed, before it."""
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
        """Return the process, and start it if necessary."""
        process = self._process
        if process is not None and self._owner == os.getpid() and process.poll() is None:
            return process
        self.end()
        process = subprocess.Popen(
            # -I: no modules from the script's folder or from environment variables.
            [sys.executable, "-I", str(_RENDERING), str(_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
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
    """Refuse a chat template that takes too much time or memory, or writes too much.

    Raises:
        ModelError: It did, for one of the test conversations.
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
    """Try a template, and return the limit that it exceeds, or None."""
    renderer, limit = Renderer(), _CHARACTERS
    values = {"bos_token": "", "eos_token": "", "add_generation_prompt": True}
    try:
        for conversation in _CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            with suppress(ValueError):  # a template may refuse a conversation
                renderer.write(messages, template, values, limit=limit, seconds=_TRIAL_SECONDS)
    except UnboundedError as error:
        return str(error)
    finally:
        renderer.end()
    return None


@cache
def today() -> str:
    """Return the day of the first call, so that a run past midnight has one date."""
    return date.today().isoformat()


def write_chat(
    messages: list[dict[str, str]],
    tokenizer: Any,
    values: Mapping[str, Any],
    *,
    day: str | None = None,
    parts: bool = False,
) -> str:
    """Return a conversation in a tokenizer's chat template, up to the answer.

    Args:
        messages: Roles with their contents.
        tokenizer: The tokenizer with the template.
        values: Variables of the template.
        day: The date for the template; today if left out.
        parts: True to pass each content as a list of one part, as some templates expect.

    Raises:
        InputError: The template raises an error, takes too long, or writes too much.
    """
    limit = _CHARACTERS + 4 * sum(len(message["content"]) for message in messages)
    values = {"add_generation_prompt": True, **values}
    shaped: list[dict[str, Any]] = [*messages]
    if parts:
        shaped = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages]
    try:
        text = _write(shaped, tokenizer, values, limit, day)
    except UnboundedError as error:
        why = f"{error} for this prompt: mend the model's chat_template"
        raise InputError(f"the tokenizer's chat template {why}") from error
    except Exception as error:  # the template may raise any error
        why = f"refuses the prompt: {one_line(error)}"
        raise InputError(f"the tokenizer's chat template {why}") from error
    if (fault := text_fault(text)) is not None:
        raise InputError(f"what the tokenizer's chat template writes {fault}")
    return text


def _write(
    messages: list[dict[str, Any]],
    tokenizer: Any,
    values: Mapping[str, Any],
    limit: int,
    day: str | None,
) -> str:
    """Return the conversation as transformers would."""
    # A tokenizer with another method writes conversations without the checkpoint's template.
    base = sys.modules.get("transformers.tokenization_utils_base")
    method = getattr(type(tokenizer), "apply_chat_template", None)
    if base is None or method is not base.PreTrainedTokenizerBase.apply_chat_template:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, **values))
        if len(text) > limit:
            raise UnboundedError(f"writes {len(text)} characters, more than {limit}")
        return text
    values = {**tokenizer.special_tokens_map, **values}
    template = tokenizer.get_chat_template()
    return RENDERER.write(messages, template, values, limit=limit, seconds=_SECONDS, day=day)
