"""Chat prompts: conversations in a tokenizer's chat template, and checks of the template.

A template is a program of the checkpoint. It runs in this process, in jinja's sandbox.
"""

import hashlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, lru_cache
from typing import Any

from lastword.errors import InputError, ItemError, one_line
from lastword.files.cells import text_fault
from lastword.text.items import Message, as_dicts
from lastword.text.tokenizer import Tokenizer

# Switches for the thinking of reasoning models; other templates ignore them.
_THINKING_OFF = {"enable_thinking": False, "thinking": False}
_DATED = "strftime_now"  # the function for today's date in templates
# A text to try chat templates: long, and with characters that some would change or cut at.
_PROBE = (
    'Oru\'s <b>first</b> & "only" thought ends here </think>. '
    + "Which goods come from Baevwick? " * 20
    + "Who wrote the last letter of Zurn 93?"
)

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

    @property
    def day(self) -> str:
        """The date that templates write."""
        return self.date or _today()


@cache
def _today() -> str:
    """Return the day of the first call, so that a run past midnight has one date."""
    return date.today().isoformat()


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
    _require_unchanged(tokenizer, str(tokenizer.chat_template), chat)
    text = _write(messages, tokenizer, chat.day)
    if any(m.role == "user" and m.content.strip() not in text for m in messages):
        raise ItemError(
            "the model's chat template changes a user's text or leaves it out: change the text, or "
            "take another copy of the model"
        )
    return text


def _write(messages: Sequence[Message], tokenizer: Tokenizer, day: str) -> str:
    try:
        text = _rendered(as_dicts(messages), tokenizer, day)
    except Exception as error:  # the template may raise any error
        why = one_line(error) or type(error).__name__
        raise InputError(f"the tokenizer's chat template refuses the prompt: {why}") from error
    if (fault := text_fault(text)) is not None:
        raise InputError(f"what the tokenizer's chat template writes {fault}")
    return text


def _rendered(messages: list[dict[str, str]], tokenizer: Any, day: str) -> str:
    """Return the conversation as transformers writes it, except that the date is `day`."""
    values: dict[str, Any] = {"add_generation_prompt": True, **_THINKING_OFF}
    # A tokenizer with another method writes conversations without the checkpoint's template.
    base = sys.modules.get("transformers.tokenization_utils_base")
    method = getattr(type(tokenizer), "apply_chat_template", None)
    if base is None or method is not base.PreTrainedTokenizerBase.apply_chat_template:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **values))
    # The public function turns functions among the values into text.
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = _compile_jinja_template(tokenizer.get_chat_template())
    values |= tokenizer.special_tokens_map
    values |= {"messages": messages, "tools": None, "documents": None}
    return str(template.render(values, strftime_now=datetime.fromisoformat(day).strftime))


@lru_cache(maxsize=4)
def _require_unchanged(tokenizer: Tokenizer, template: str, chat: Chat) -> None:
    """Refuse a template that changes, drops or repeats a text."""
    if _DATED in template and chat.date is None:
        _log.warning(
            "the chat template writes a date (%s): this run takes %s; --load date=%s (Chat's "
            "date) gives these prompts on another day too",
            *(_DATED, chat.day, chat.day),
        )
    system = [] if chat.system is None else [Message("system", chat.system)]
    text = _write([*system, Message("user", _PROBE)], tokenizer, chat.day)
    if (count := text.count(_PROBE)) != 1:
        fault = f"writes a text {count} times" if count else "leaves a text out or changes it"
        raise InputError(f"the tokenizer's chat template {fault}: take another copy of the model")
    if chat.system is not None and chat.system.strip() not in text:
        raise InputError(
            "the tokenizer's chat template leaves the system message out: leave out --system"
        )


def require_settled(tokenizer: Tokenizer, chat: Chat | None = None) -> None:
    """Turn off a tokenizer's sampling, and try its chat template if there is a chat."""
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if getattr(model, "dropout", None):
        model.dropout = None
    if chat is not None and tokenizer.chat_template:
        _require_unchanged(tokenizer, str(tokenizer.chat_template), chat)


def describe_chat(tokenizer: Tokenizer, chat: Chat) -> dict[str, Any]:
    """Return the system message, a digest of the template, and the date if the template writes it.

    `thinking` is `off` if the template has a switch, which is turned off; `open` if the answer
    begins inside a thought all the same; else None.
    """
    template = str(tokenizer.chat_template)
    thinking = "off" if any(name in template for name in _THINKING_OFF) else None
    if chat_prompt("?", tokenizer, chat).rstrip().endswith("<think>"):
        thinking = "open"
    digest = hashlib.sha256(template.encode()).hexdigest()[:16]
    described = {"system": chat.system, "template": digest, "thinking": thinking}
    if _DATED in template:
        described["date"] = chat.day
    return described
