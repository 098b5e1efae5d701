"""Bodies of OpenAI's clients for a choice from a list.

Fields that clients send by default (temperature, seed, token limits) are accepted without effect,
because the answer is one whole option. A field that would change the answer is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from lastword.decide.item import Input
from lastword.service.dialects.openai.choices import (
    Choices,
    ResponseFormat,
    StructuredOutputs,
    read_choices,
)
from lastword.service.limits import MOST_ENTRIES
from lastword.service.schema import Text, Unread
from lastword.text.question import MOST_CHOICES

_QUESTION = "Where is the lake of Oru?"
_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": _QUESTION}],
    "structured_outputs": {"choice": ["in the north", "in the south"]},
}
_SYSTEM = ("system", "developer")


class StreamOptions(BaseModel, strict=True, extra="forbid"):
    """Options of a stream's end."""

    include_usage: bool | None = Field(None, description="Count the tokens at its end.")


class TextPart(BaseModel, strict=True, extra="forbid"):
    """A piece of a message's text."""

    type: Literal["text"]
    text: Text


# The discriminator chooses the form first, so that an error is about that form only.
Content = Annotated[
    Annotated[Text, Tag("string")]
    | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "string"),
]


class ChatMessage(BaseModel, strict=True, extra="forbid"):
    """One message of a conversation."""

    role: Text
    content: Content

    @property
    def text(self) -> str:
        """The text of all parts."""
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatBody(BaseModel, strict=True, extra="forbid", json_schema_extra={"examples": [_CHAT]}):
    """A conversation and a list of options: a decision about the user's text."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MOST_ENTRIES, fail_fast=True)
    model: Text | None = Field(None, description="The model's name here, or none.")
    structured_outputs: StructuredOutputs | None = None
    guided_choice: list[Text] | None = Field(None, min_length=1, fail_fast=True)
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    # Fields of sampling, accepted without effect.
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1, description="The choice is given whole.")
    user: Text | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    stop: Unread = None
    logit_bias: Unread = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: dict[str, Any] | None = None
    store: Literal[False] | None = None
    question: Text | None = Field(None, description="Name of a served question.")
    tools: Unread = None
    tool_choice: Literal["none"] | None = None
    on_deferred: Literal["answer", "refusal"] = Field(
        "answer", description="What to return if the certificate defers: the answer, or a refusal."
    )

    @property
    def instructions(self) -> list[str]:
        """The texts of the system's messages: the question's instructions."""
        return [message.text for message in self.messages if message.role in _SYSTEM]

    @property
    def input(self) -> Input:
        """The text to decide about: a single user message unchanged, others with roles."""
        rest = [message for message in self.messages if message.role not in _SYSTEM]
        if [message.role for message in rest] == ["user"]:
            return rest[0].text
        return [{"role": message.role, "content": message.text} for message in rest]

    @property
    def alternatives(self) -> int | None:
        """The requested number of options with log-probabilities; None if not requested."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def has_choices(self) -> bool:
        """True if the body has a list of options."""
        lists = self.structured_outputs, self.guided_choice, self.response_format
        return any(one is not None for one in lists)

    def choices(self, most: int) -> Choices:
        """Return the list of options, of which an item may have `most`.

        Raises:
            Refusal: As `read_choices`.
        """
        lists = self.structured_outputs, self.guided_choice, self.response_format
        return read_choices(*lists, max(most, MOST_CHOICES))
