"""Item: one prompt with its candidate answers, from dictionaries, rows or frames."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, ValidationInfo, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from lastword.errors import InputError, ItemError, one_line
from lastword.files.cells import plain, unique_names
from lastword.files.fields import CONFIG, Flag, Text, first_fault, shown

CONTENT_FREE = ("N/A", "", "[MASK]")  # inputs without content (Zhao et al., 2021)


@dataclass(frozen=True, config=CONFIG)
class Message:
    """One message of a conversation."""

    role: Text
    content: Text


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return a conversation as dictionaries, as chat templates take it."""
    return [asdict(message) for message in messages]


def _without_empty(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    return {k: value for k, value in message.items() if value or k in ("role", "content")}


def _named(name: Any) -> Any:
    return str(name) if type(name) is int else name


def _truths(value: Any, info: ValidationInfo) -> tuple[bool, ...] | None:
    """Return one boolean per candidate, from booleans or from the true candidates' positions."""
    if value is None or "candidates" not in info.data:
        return None
    entries = (value,) if type(value) is int else value
    kinds = {*map(type, entries)} if isinstance(entries, list | tuple) else {type(entries)}
    if kinds not in ({int}, {bool}, set()) or not isinstance(entries, list | tuple):
        raise ValueError(
            "is a list of booleans, a list of the true candidates' positions, or one position, "
            f"not {shown(value)}"
        )
    count = len(info.data["candidates"])
    if kinds != {int}:
        if len(entries) != count:
            raise ValueError(f"has {len(entries)} entries for {count} candidates")
        return tuple(entries)
    if (len(entries) == count and {*entries} <= {0, 1}) or len({*entries}) < len(entries):
        raise ValueError(
            f"{shown([*entries])} looks like labels, and integers are positions of true "
            "candidates: write true and false"
        )
    if wrong := [place for place in entries if not 0 <= place < count]:
        raise ValueError(f"names candidate {wrong[0]}, and there are {count}, counted from 0")
    return tuple(place in entries for place in range(count))


@dataclass(frozen=True, config=CONFIG)
class Item:
    """One candidate-restricted question, validated when it is made.

    Attributes:
        prompt: Text before the answer; may be empty (method, section 2). For a conversation, it is
            made from `messages` and only shown.
        candidates: The answers to choose from, at least one, none blank.
        id: The caller's name for the item.
        truthful: One boolean per candidate, for metrics. The indices of the true candidates, or of
            the only one, are accepted too, counted from 0.
        separator: Text between prompt and candidate, unless the prompt ends in whitespace.
        question: The question alone; it is shown, but never scored.
        blind_prompt: The prompt without the question, for the question-blind baseline.
        content_free: The prompt with its input replaced by `CONTENT_FREE`, for contextual
            calibration.
        messages: The prompt as a conversation for the chat template; None for a prompt of text.
        group: A name shared by items that are not independent (one document or user).
        literal: True to encode the model's control tokens in prompts and candidates as text.

    Raises:
        ItemError: No candidates, a blank candidate, invalid text, or lengths that differ.
    """

    prompt: Text
    candidates: tuple[Text, ...]
    id: Annotated[Text | None, BeforeValidator(_named)] = None
    truthful: Annotated[tuple[bool, ...] | None, BeforeValidator(_truths)] = None
    separator: Text = " "
    question: Text | None = None
    blind_prompt: Text | None = None
    content_free: tuple[Text, ...] = ()
    messages: tuple[Annotated[Message, BeforeValidator(_without_empty)], ...] | None = None
    group: Annotated[Text | None, BeforeValidator(_named)] = None
    literal: Flag = False

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            given = value.kwargs or {} if isinstance(value, ArgsKwargs) else {}
            fault = first_fault(error, [field.name for field in fields(cls)])
            name = None if fault.startswith("id") else _named(given.get("id"))
            raise ItemError(fault, name) from error

    def __post_init__(self) -> None:
        """Write a conversation as the prompt, and refuse an invalid one or invalid candidates."""
        if self.messages is not None:
            texts = [f"{message.role}: {message.content}" for message in self.messages]
            object.__setattr__(self, "prompt", "\n".join(texts))
        if (fault := self._fault()) is not None:
            raise ItemError(fault, self.id)

    def _fault(self) -> str | None:
        if self.messages is not None:
            if not self.messages:
                return "a conversation has no message; give at least one"
            if self.messages[len(self.messages) - 1].role == "assistant":
                return "the last message is the assistant's, whose answer is to be chosen; drop it"
            if self.blind_prompt is not None or self.content_free:
                return "blind_prompt and content_free go with a prompt of text, not with messages"
        if not self.candidates:
            return "no candidates; give at least one"
        blank = [i for i, candidate in enumerate(self.candidates) if not candidate.strip()]
        return f"candidate {blank[0]} is blank; give it text or drop it" if blank else None

    @classmethod
    def from_dict(cls, value: Any, *, id: str | None = None) -> "Item":
        """Return an item from a dictionary or a row; other keys, and missing values, are ignored.

        Args:
            value: The object or row. A conversation is in `messages`, or in `prompt` as a list.
            id: The id if the object has none.

        Raises:
            ItemError: Not an object, a missing key, a wrong type, or an invalid item.
        """
        if not isinstance(value, Mapping):
            raise ItemError(f"expected a JSON object, got {shown(value)}", id)
        entries = {name: plain(value.get(name)) for name in _KEYS}
        given = {name: entry for name, entry in entries.items() if entry is not None}
        if "messages" in given and "prompt" in given:
            raise ItemError("prompt and messages are both given; give one", id)
        if isinstance(given.get("prompt"), list | tuple):
            given["messages"] = given.pop("prompt")
        if "messages" in given:
            given["prompt"] = ""
        return cls(**{"id": id} | given)


_KEYS = [field.name for field in fields(Item) if field.name != "literal"]


def as_item(value: Any, place: int) -> Item:
    """Return an item from an `Item`, a dictionary, a row or (prompt, candidates)."""
    if isinstance(value, Item):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        value = {"prompt": value[0], "candidates": value[1]}
    try:
        if not isinstance(value, Mapping):
            expected = "an Item, a dictionary, a row or (prompt, candidates)"
            raise ItemError(f"expected {expected}, got {shown(value)}")
        return Item.from_dict(value)
    except ItemError as error:
        raise error if error.item is not None else ItemError(str(error), str(place)) from error


def rows_of(items: Any) -> Iterator[Any]:
    """Yield the rows of a pandas or Polars frame, or the elements of another source."""
    import narwhals

    if isinstance(items, Mapping):
        raise InputError("expected many items, got a dictionary: give a list, or one split of it")
    if not narwhals.dependencies.is_into_dataframe(items):
        yield from items
        return
    try:
        pandas = hasattr(items, "set_axis")  # an Arrow table's `columns` are its values
        names = unique_names(items.columns if pandas else narwhals.from_native(items).columns)
        frame = items.set_axis(names, axis=1) if pandas else items
        rows = narwhals.from_native(frame).iter_rows()
    except (ValueError, TypeError, narwhals.exceptions.NarwhalsError) as error:
        raise InputError(f"cannot read the frame: {one_line(error)}") from error
    for row in rows:
        yield dict(zip(names, row, strict=True))
