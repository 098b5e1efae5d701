"""From a text and a question to the item that is scored."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lastword.errors import InputError
from lastword.files.strict_json import strict
from lastword.text.items import CONTENT_FREE, Item
from lastword.text.prompt_template import Template
from lastword.text.question import Question

# A text; messages with a role and a content; any other JSON.
Input = str | Mapping[str, Any] | Sequence[Any]


def text_of(value: Input) -> str:
    """Return an input as text: as it stands, messages as `role: content` lines, other JSON as JSON.

    Raises:
        InputError: It is none of these.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | Sequence) or isinstance(value, bytes):
        kind = type(value).__name__
        raise InputError(f"an input is a text, messages or a JSON object or list, not {kind}")
    if isinstance(value, Sequence) and value and all(map(_is_message, value)):
        conversation: Any = value
        return "\n".join(f"{message['role']}: {message['content']}" for message in conversation)
    try:
        return json.dumps(strict(value), ensure_ascii=False, allow_nan=False, indent=1)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"an input is text or JSON, and this is neither: {error}") from error


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def item_of(
    text: str,
    question: Question,
    template: Template,
    *,
    id: str | None = None,
    blind: bool = False,
    content_free: bool = False,
) -> Item:
    """Return the item of a question about a text.

    The candidates are the distinct texts of the options. An empty text is a text: the answer is
    what the model says without one.

    Args:
        text: The input.
        question: The question.
        template: Writes the prompt.
        id: The item's name.
        blind: True to write the prompt without the input too.
        content_free: True to write the prompt with inputs that say nothing too.

    Raises:
        InputError: The template does not render.
        ItemError: Text that cannot be answered.
    """
    return Item(
        render(text, question, template),
        candidates_of(question),
        id=id,
        question=question.instructions or None,
        blind_prompt=render("", question, template) if blind else None,
        content_free=tuple(render(t, question, template) for t in CONTENT_FREE if content_free),
        literal=True,
    )


def candidates_of(question: Question) -> tuple[str, ...]:
    """Return the texts that are scored, each once: a text and a boolean of one word are one."""
    return tuple(dict.fromkeys(option.text for option in question.options))


def render(text: str, question: Question, template: Template) -> str:
    """Return the prompt of a question about a text.

    Raises:
        InputError: The template does not render.
    """
    return template.render(fields_of(text, question))


def fields_of(text: str, question: Question) -> dict[str, Any]:
    """Return what a template sees of a question about a text."""
    return {
        "input": text,
        "instructions": question.instructions,
        "options": [{**vars(option), "text": option.text} for option in question.options],
        "kind": type(question).__name__.lower(),
    }
