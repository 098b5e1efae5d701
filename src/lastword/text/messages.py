"""A conversation as a prompt: messages with a role and a content."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lastword.errors import ItemError


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


def read_messages(value: Any, item: str | None = None) -> tuple[Message, ...]:
    """Return a conversation from a list of messages or of dictionaries with `role` and `content`.

    Raises:
        ItemError: Not a list, an empty one, an invalid message, or a last message from the
            assistant.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise ItemError(f"messages are a list, not {type(value).__name__}", item)
    if not value:
        raise ItemError("a conversation has no message; give at least one", item)
    messages = tuple(_message(entry, place, item) for place, entry in enumerate(value))
    if messages[len(messages) - 1].role == "assistant":
        raise ItemError(
            "the last message is the assistant's, whose answer is to be chosen; leave it out", item
        )
    return messages


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return a conversation as dictionaries, as chat templates take it."""
    return [asdict(message) for message in messages]


def _message(value: Any, place: int, item: str | None) -> Message:
    if isinstance(value, Message):
        value = asdict(value)
    if not isinstance(value, Mapping):
        raise ItemError(
            f"message {place} is {type(value).__name__}, expected an object with role and content",
            item,
        )
    for name in ("role", "content"):
        if not isinstance(value.get(name), str):
            actual = "is missing" if name not in value else f"is {type(value[name]).__name__}"
            raise ItemError(f"message {place}: {name} {actual}, expected text", item)
    for name, content in value.items():
        if name not in ("role", "content") and content:
            raise ItemError(f"message {place} has {name}, which is not read: leave it out", item)
    return Message(value["role"], value["content"])
