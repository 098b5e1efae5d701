"""What OpenAI's clients send where the answer is one of a list.

What they send by default (temperature, seed, most tokens) is taken and changes nothing: the answer
is the best choice, whole. What would change an answer is refused by its name.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from lastword.service.dialects.openai.choices import (
    Choices,
    ResponseFormat,
    StructuredOutputs,
    read_choices,
)
from lastword.service.schema import Text, Unread
from lastword.text.items import Item
from lastword.text.messages import Message

_CHOICE: dict[str, Any] = {"structured_outputs": {"choice": ["in the north", "in the south"]}}
_QUESTION = "Where is the lake of Oru?"
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": _QUESTION}]} | _CHOICE
_TEXT: dict[str, Any] = {"prompt": _QUESTION} | _CHOICE


class StreamOptions(BaseModel):
    """What a stream ends with."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = Field(None, description="Count the tokens at its end.")


class CompletionOptions(BaseModel):
    """What both routes take."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: Text | None = Field(None, description="The model's name here, or none.")
    structured_outputs: StructuredOutputs | None = None
    guided_choice: list[Text] | None = Field(None, min_length=1, fail_fast=True)
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    # Of sampling, which does not happen here: taken, and of no effect.
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1, description="The choice is given whole.")
    user: Text | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    stop: Unread = None
    logit_bias: Unread = None

    @property
    def choices(self) -> Choices:
        """The choice list.

        Raises:
            Refusal: There is none, or more than one.
        """
        return read_choices(self.structured_outputs, self.guided_choice, self.response_format)


class TextPart(BaseModel):
    """A piece of a message's text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]
    text: Text


# Told apart before either is read, so that what is wrong is told of one of them.
Content = Annotated[
    Annotated[Text, Tag("string")]
    | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "string"),
]


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Text
    content: Content

    def message(self) -> Message:
        """The message of the library."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message(self.role, text)


class ChatBody(CompletionOptions):
    """A conversation whose next message is one of a list."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CHAT]})

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: dict[str, Any] | None = None
    store: Literal[False] | None = None
    tools: Unread = None
    tool_choice: Literal["none"] | None = None

    def item(self, candidates: tuple[str, ...]) -> Item:
        """The item of the library.

        Raises:
            ItemError: Text that cannot be answered.
        """
        return Item("", candidates, messages=tuple(m.message() for m in self.messages))

    @property
    def alternatives(self) -> int | None:
        """How many choices' log-probabilities are asked for; None where none is."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class CompletionBody(CompletionOptions):
    """A text whose continuation is one of a list."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TEXT]})

    # Clients send one prompt as a list of one.
    prompt: Annotated[Text, BeforeValidator(_one)] = Field(description="One prompt, as text.")
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Unread = None

    def item(self, candidates: tuple[str, ...]) -> Item:
        """The item of the library.

        Raises:
            ItemError: Text that cannot be answered.
        """
        return Item(self.prompt, candidates)

    @property
    def alternatives(self) -> int | None:
        """How many choices' log-probabilities are asked for; None where none is."""
        return self.logprobs
