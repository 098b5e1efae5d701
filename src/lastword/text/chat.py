"""Chat prompts: conversations in a tokenizer's chat template, and checks of the template."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from lastword.errors import InputError, ItemError, ModelError, TraceError, one_line
from lastword.files.cells import text_fault
from lastword.files.wording import shorten
from lastword.text.chat_template import today, write_chat
from lastword.text.messages import Message, as_dicts
from lastword.text.tokenizer import Tokenizer, tokenise

# Switches for the thinking of reasoning models; other templates ignore them.
_THINKING_OFF = {"enable_thinking": False, "thinking": False}
_DATED = "strftime_now"  # the function for today's date in templates
_TRIES = 8  # number of times that a text is tokenised to detect sampling
_PROBES = ("Where is the lake of Oru 71?", "Who wrote the letter of Baev 52?")
# A text to try chat templates: long, and with characters that some would change or cut at.
_LONG = (
    'Oru\'s <b>first</b> & "only" thought ends here </think>. '
    + "Which goods come from Baevwick? " * 20
    + "Who wrote the last letter of Zurn 93?"
)
_PARTS: dict[tuple[type, str, str | None], bool] = {}  # by tokenizer, template, system message

_log = logging.getLogger("lastword")


@dataclass(frozen=True)
class Chat:
    """Options of chat prompts: the tokenizer's chat template with thinking switched off.

    Attributes:
        system: The system message, unless a conversation has one.
        date: The date in templates (`strftime_now`), such as 2026-01-31; today if left out.

    Raises:
        InputError: An invalid system message or date.
    """

    system: str | None = None
    date: str | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid system message or date."""
        if self.system is not None and (fault := text_fault(self.system)) is not None:
            raise InputError(f"the system message {fault}")
        try:
            self.date is None or date.fromisoformat(self.date)
        except ValueError as error:
            raise InputError(f"date is a day such as 2026-01-31, not {self.date!r:.40}") from error


def chat_prompt(prompt: str, tokenizer: Tokenizer, chat: Chat) -> str:
    """Return the prompt as a user's message in the chat template; see `templated`."""
    return templated([Message("user", prompt)], tokenizer, chat)


def templated(messages: Sequence[Message], tokenizer: Tokenizer, chat: Chat | None = None) -> str:
    """Return a conversation in the tokenizer's chat template, up to the start of the answer.

    Raises:
        InputError: The tokenizer has no template, or the template refuses the conversation.
        ItemError: The template changes a user's text, or leaves it out.
    """
    if not tokenizer.chat_template:
        raise InputError(
            "the tokenizer has no chat template to write a conversation with: give the prompt as "
            "text, and no chat template or system message with it"
        )
    chat = chat or Chat()
    if chat.system is not None and messages[0].role != "system":
        messages = [Message("system", chat.system), *messages]
    parts = _takes_parts(tokenizer, chat)
    text = write_chat(as_dicts(messages), tokenizer, _THINKING_OFF, day=chat.date, parts=parts)
    if any(m.role == "user" and m.content.strip() not in text for m in messages):
        raise ItemError(
            "the model's chat template changes a user's text or leaves it out: change the text, or "
            "take another copy of the model"
        )
    return text


def _takes_parts(tokenizer: Tokenizer, chat: Chat) -> bool:
    """Return True if a template needs contents as lists of parts."""
    key = type(tokenizer), str(tokenizer.chat_template), chat.system
    if key not in _PARTS:
        _PARTS[key] = _try_parts(tokenizer, chat)
        if _DATED in str(tokenizer.chat_template) and chat.date is None:
            _log.warning(
                "the chat template writes a date (%s): this run takes %s; --load date=%s (Chat's "
                "date) gives these prompts on another day too",
                *(_DATED, today(), today()),
            )
    return _PARTS[key]


def _try_parts(tokenizer: Tokenizer, chat: Chat) -> bool:
    try:
        _require_text_once(tokenizer, chat, parts=False)
    except InputError as error:
        with suppress(InputError):
            _require_text_once(tokenizer, chat, parts=True)
            return True
        raise error
    return False


def _require_text_once(tokenizer: Tokenizer, chat: Chat, parts: bool) -> None:
    """Refuse a template that changes, drops or repeats a text, or that is random."""
    system = [] if chat.system is None else [Message("system", chat.system)]
    for probe in (*_PROBES, _LONG):
        messages = as_dicts([*system, Message("user", probe)])
        text, again = (
            write_chat(messages, tokenizer, _THINKING_OFF, day=chat.date, parts=parts)
            for _ in range(2)
        )
        if text != again:
            raise InputError(
                "the tokenizer's chat template is random, as it writes a text in two ways: take "
                "another copy of the model"
            )
        if parts and "'type'" in text:  # the list was converted to text by Python
            raise InputError("the tokenizer's chat template writes a list of parts as it stands")
        if (count := text.count(probe)) != 1:
            fault = f"writes a text {count} times" if count else "leaves a text out or changes it"
            raise InputError(
                f"the tokenizer's chat template {fault}: take another copy of the model"
            )
        if chat.system is not None and chat.system.strip() not in text:
            raise InputError(
                "the tokenizer's chat template leaves the system message out: leave out --system"
            )


def require_settled(tokenizer: Tokenizer, chat: Chat | None = None) -> None:
    """Turn off a tokenizer's sampling, and try its chat template if there is a chat.

    Raises:
        ModelError: The tokenizer still splits a text at random.
        InputError: The template does not write a text unchanged and once.
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if getattr(model, "dropout", None):
        model.dropout = None
    text = " ".join(_PROBES) * 4
    try:
        splits = {*tokenise(tokenizer, [text] * _TRIES)}
    except TraceError:
        raise
    except Exception as error:  # the tokenizer's files are not trusted: any error may come
        why = shorten(f"{type(error).__name__}: {one_line(error)}", 300)
        raise ModelError(f"the tokenizer cannot read a text: {why}") from error
    if len(splits) > 1:
        raise ModelError(
            "the tokenizer splits one text in several ways, at random: take its sampling out of "
            "the tokenizer's files"
        )
    if chat is not None and tokenizer.chat_template:
        _takes_parts(tokenizer, chat)


def describe_chat(tokenizer: Tokenizer, chat: Chat) -> dict[str, Any]:
    """Return the description of the chat prompts for the record.

    Returns:
        The system message; a digest of the template; and `thinking`: `off` if the template has a
        switch, which is turned off; `open` if the answer still begins inside a thought; else None.
        If the template writes a date, the `date`.
    """
    template = str(tokenizer.chat_template)
    thinking = "off" if any(name in template for name in _THINKING_OFF) else None
    if chat_prompt("?", tokenizer, chat).rstrip().endswith("<think>"):
        thinking = "open"
    digest = hashlib.sha256(template.encode()).hexdigest()[:16]
    described = {"system": chat.system, "template": digest, "thinking": thinking}
    if _DATED in template:
        described["date"] = chat.date or today()
    return described
