"""Body of a chat of OpenAI's clients, for a choice from a list.

Fields that clients send by default (temperature, seed, token limits) are accepted without effect,
because the answer is one whole option. A field that would change the answer is refused.
"""

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from lastword.decide.item import Input
from lastword.service.dialects.openai.choices import NO_CHOICES, Choices, choices_of, require_few
from lastword.service.dialects.question_form import ChatMessage, conversation
from lastword.service.limits import MOST_ENTRIES
from lastword.service.refusal import Refusal
from lastword.service.schema import Object, Text

_SYSTEM = ("system", "developer")


def _encodable(value: Object) -> Object:
    """Refuse a lone surrogate and NaN: no answer could be written with them."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


class StructuredOutputs(BaseModel, strict=True, extra="forbid"):
    """vLLM's form of a list of options."""

    choice: list[Text] = Field(min_length=1, fail_fast=True, description="The answers.")


class JsonSchema(BaseModel, strict=True, extra="forbid"):
    """A JSON schema with its name."""

    name: Text | None = None
    description: Text | None = None
    schema_: Annotated[Object, AfterValidator(_encodable)] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel, strict=True, extra="forbid"):
    """OpenAI's form of a list of options: a JSON schema."""

    type: Text = Field(description="`json_schema` for a choice.")
    json_schema: JsonSchema | None = None


class StreamOptions(BaseModel, strict=True, extra="forbid"):
    """Options of a stream's end."""

    include_usage: bool | None = Field(None, description="Count the tokens at its end.")


class ChatBody(BaseModel, strict=True, extra="forbid"):
    """A conversation and a list of options: a decision about the user's text."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MOST_ENTRIES, fail_fast=True)
    model: Text | None = Field(None, description="The model's name here, or none.")
    structured_outputs: StructuredOutputs | None = None
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
    max_completion_tokens: int | None = Field(None, ge=1)
    metadata: Object | None = None
    question: Text | None = Field(None, description="Name of a served question.")
    on_deferred: Literal["answer", "refusal"] = "answer"

    @property
    def instructions(self) -> list[str]:
        """The texts of the system's messages: the question's instructions."""
        return [message.text for message in self.messages if message.role in _SYSTEM]

    @property
    def input(self) -> Input:
        """The text to decide about."""
        return conversation([each for each in self.messages if each.role not in _SYSTEM])

    def choices(self) -> Choices | None:
        """Return the options, None for those of a served question; refuse none or two lists."""
        texts = self.structured_outputs
        schema = None if self.response_format is None else self.response_format.json_schema
        if texts is not None and schema is not None:
            raise Refusal("invalid_body", "2 choice lists are given; give one")
        if texts is not None:
            require_few(texts.choice)
            return Choices(tuple(texts.choice))
        if schema is not None:
            return choices_of(schema.schema_)
        if self.question is None or self.response_format is not None:
            raise Refusal("no_choices", NO_CHOICES)
        return None
