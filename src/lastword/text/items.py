"""Item: one prompt with its candidate answers, from dictionaries, rows or frames."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lastword.errors import InputError, ItemError, one_line
from lastword.files.cells import plain, text_fault, unique_names
from lastword.files.wording import counted, shorten
from lastword.text.messages import Message, read_messages

# The readings of a blind prompt: depth L, every depth and T, or none.
Blind = Literal["base", "all", "none"]
Recorded = Literal["all", "decide"]

CONTENT_FREE = ("N/A", "", "[MASK]")  # inputs without content (Zhao et al., 2021)


@dataclass(frozen=True)
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

    prompt: str
    candidates: tuple[str, ...]
    id: str | None = None
    truthful: tuple[bool, ...] | None = None
    separator: str = " "
    question: str | None = None
    blind_prompt: str | None = None
    content_free: tuple[str, ...] = ()
    messages: tuple[Message, ...] | None = None
    group: str | None = None
    literal: bool = False

    def __post_init__(self) -> None:
        """Convert sequences to tuples, and refuse an invalid item."""
        if self.messages is not None:
            object.__setattr__(self, "messages", read_messages(self.messages, self.id))
            texts = [f"{message.role}: {message.content}" for message in self.messages]
            object.__setattr__(self, "prompt", "\n".join(texts))
        for name in ("candidates", "content_free"):
            object.__setattr__(self, name, _tuple(getattr(self, name), name, str, self.id))
        if self.truthful is not None:
            labels = _labels(self.truthful, len(self.candidates), self.id)
            object.__setattr__(self, "truthful", labels)
        self._check()

    def _check(self) -> None:
        if self.id is not None:
            _check_text("id", self.id, None)
        texts: dict[str, Any] = {"prompt": self.prompt, "separator": self.separator}
        for name in ("blind_prompt", "question", "group"):
            if getattr(self, name) is not None:
                texts[name] = getattr(self, name)
        texts |= {f"candidate {i}": text for i, text in enumerate(self.candidates)}
        texts |= {f"content_free {i}": text for i, text in enumerate(self.content_free)}
        for name, text in texts.items():
            _check_text(name, text, self.id)
        if self.messages is not None and (self.blind_prompt is not None or self.content_free):
            field = "content_free" if self.blind_prompt is None else "blind_prompt"
            raise ItemError(f"{field} goes with a prompt of text, not with messages", self.id)
        if not self.candidates:
            raise ItemError("no candidates; give at least one", self.id)
        for i, candidate in enumerate(self.candidates):
            if not candidate.strip():
                raise ItemError(f"candidate {i} is blank; give it text or drop it", self.id)

    def __repr__(self) -> str:
        """Return one line with the beginning of the prompt, and the number of candidates."""
        parts = [repr(shorten(self.prompt)), counted(len(self.candidates), "candidate")]
        parts += [] if self.id is None else [f"id={self.id!r}"]
        if self.truthful is not None:
            parts.append(f"truthful={[i for i, true in enumerate(self.truthful) if true]}")
        return f"Item({', '.join(parts)})"

    @classmethod
    def from_dict(cls, value: Any, *, id: str | None = None, separator: str = " ") -> "Item":
        """Return an item from a dictionary or a row; other keys, and missing values, are ignored.

        Args:
            value: The object or row. A conversation is in `messages`, or in `prompt` as a list.
            id: The id if the object has none.
            separator: The separator if the object has none.

        Raises:
            ItemError: Not an object, a missing key, a wrong type, or an invalid item.
        """
        if not isinstance(value, Mapping):
            raise ItemError(f"expected a JSON object, got {_kind(value)}", id)
        value = {key: plain(entry) for key, entry in value.items()}
        name = _label("id", id if value.get("id") is None else value["id"], id)
        if value.get("messages") is not None:
            if value.get("prompt") is not None:
                raise ItemError("prompt and messages are both given; give one", name)
            value["prompt"] = value["messages"]
        for key in ("prompt", "candidates"):
            if key not in value:
                raise ItemError(f'missing key "{key}"', name)
        for key in ("separator", "question", "blind_prompt"):
            if value.get(key) is not None and not isinstance(value[key], str):
                raise ItemError(f"{key} is a string, not {_kind(value[key])}", name)
        group = _label("group", value.get("group"), name)
        prompt = value["prompt"]
        if not isinstance(prompt, str | list | tuple):
            raise ItemError(f"prompt is a string or messages, not {_kind(prompt)}", name)
        candidates = _tuple(value["candidates"], "candidates", str, name)
        truthful = value.get("truthful")
        return cls(
            prompt=prompt if isinstance(prompt, str) else "",
            candidates=candidates,
            id=name,
            truthful=None if truthful is None else _labels(truthful, len(candidates), name),
            separator=separator if value.get("separator") is None else value["separator"],
            question=value.get("question"),
            blind_prompt=value.get("blind_prompt"),
            content_free=_tuple(value.get("content_free") or (), "content_free", str, name),
            messages=None if isinstance(prompt, str) else read_messages(prompt, name),
            group=group,
        )


def as_item(value: Any, place: int) -> Item:
    """Return an item from an `Item`, a dictionary, a row, or (prompt, candidates).

    Raises:
        ItemError: It is none of these, or not a valid item.
    """
    if isinstance(value, Item):
        return value
    pair = isinstance(value, tuple) and len(value) == 2
    try:
        if not pair and not isinstance(value, Mapping):
            expected = "an Item, a dictionary, a row or (prompt, candidates)"
            raise ItemError(f"expected {expected}, got {_kind(value)}")
        return Item.from_dict({"prompt": value[0], "candidates": value[1]} if pair else value)
    except ItemError as error:
        raise error if error.item is not None else ItemError(str(error), str(place)) from error


def rows_of(items: Any) -> Iterator[Any]:
    """Yield the rows of a pandas or Polars frame, or the elements of another source.

    Raises:
        InputError: A dictionary, or a frame with two columns of one name.
    """
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


def _labels(value: Any, count: int, item: str | None) -> tuple[bool, ...]:
    """Return one boolean per candidate, from booleans or from indices."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    elif isinstance(value, bool | str) or not isinstance(value, Sequence):
        raise ItemError(
            "truthful is a list of booleans, a list of the true candidates' positions, or one "
            f"position, not {_kind(value)}",
            item,
        )
    if {type(entry) for entry in value} != {int}:
        labels = _tuple(value, "truthful", bool, item)
        if len(labels) != count:
            raise ItemError(f"truthful has {len(labels)} entries for {count} candidates", item)
        return labels
    if (len(value) == count and set(value) <= {0, 1}) or len(set(value)) < len(value):
        raise ItemError(
            f"truthful {list(value)} looks like labels, and integers are positions of true "
            "candidates: write true and false",
            item,
        )
    if wrong := [place for place in value if not 0 <= place < count]:
        raise ItemError(
            f"truthful names candidate {wrong[0]}, and there are {count}, counted from 0", item
        )
    return tuple(place in value for place in range(count))


def _label(name: str, value: Any, item: str | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ItemError(f"{name} is a string or an integer, not {_kind(value)}", item)
    return str(value)


def _tuple(value: Any, name: str, kind: type, item: str | None) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ItemError(f"{name} is a list, not {_kind(value)}", item)
    for i, entry in enumerate(value):
        if not isinstance(entry, kind):
            raise ItemError(f"{name}[{i}] is {_kind(entry)}, expected {kind.__name__}", item)
    return tuple(value)


def _check_text(name: str, text: Any, item: str | None) -> None:
    if not isinstance(text, str):
        raise ItemError(f"{name} is a string, not {_kind(text)}", item)
    if (fault := text_fault(text)) is not None:
        raise ItemError(f"{name} {fault}", item)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
