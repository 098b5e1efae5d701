"""Makes an item, with prompt and candidates, of a text and a question."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lastword.errors import InputError
from lastword.files.strict_json import strict
from lastword.text.items import CONTENT_FREE, Item
from lastword.text.prompt_template import Template
from lastword.text.question import Question

# A text, messages with role and content, or any other JSON value.
Input = str | Mapping[str, Any] | Sequence[Any]


def inputs_of(source: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over many inputs: a list, a column of any library, or a generator."""
    kind = type(source).__name__
    if isinstance(source, str | bytes):
        raise InputError(f"expected many inputs and got one text ({kind}): pass a list of texts")
    if isinstance(source, Mapping):
        raise InputError("expected many inputs and got a dictionary: pass a list of texts")
    table = hasattr(source, "columns") or hasattr(source, "column_names")
    if table or getattr(source, "ndim", 1) != 1:
        raise InputError(
            f"expected many inputs, in a list or one column, and got {kind}: pass the column of "
            'texts, such as table["text"]'
        )
    if hasattr(source, "to_pylist"):  # the elements of an Arrow column are not Python's
        source = source.to_pylist()
    return iter(source)


def text_of(value: Input) -> str:
    """Return an input as text: messages become `role: content` lines, other values JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        raise InputError("there is no text")
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

    The candidates are the distinct texts of the options. An empty text is allowed: the model then
    answers without an input.
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
    """Return the distinct texts of the options; the boolean true and the text "true" are one."""
    return tuple(dict.fromkeys(option.text for option in question.options))


def render(text: str, question: Question, template: Template) -> str:
    """Return the prompt of a question about a text."""
    return template.render(fields_of(text, question))


def fields_of(text: str, question: Question) -> dict[str, Any]:
    """Return the variables that a template may use."""
    return {
        "input": text,
        "instructions": question.instructions,
        "options": [{**vars(option), "text": option.text} for option in question.options],
        "kind": type(question).__name__.lower(),
    }
