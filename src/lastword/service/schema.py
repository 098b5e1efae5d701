"""Wire formats: bodies of requests, answers, and strict JSON."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from lastword.records.decision import SCHEMA
from lastword.service.limits import MOST_ENTRIES
from lastword.service.refusal import Refusal
from lastword.text.items import Item

Json = Any  # a JSON value
Object = dict[str, Json]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate, which is not valid text; remove it") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
_KEY = r"^[^\x00]*$"  # Postgres takes no NUL, and no long text into an index


class ItemBody(BaseModel, strict=True, extra="forbid"):
    """One prompt with its candidate answers."""

    prompt: Text = Field(description="Text before the answer, which may be empty.")
    candidates: list[Text] = Field(min_length=1, max_length=MOST_ENTRIES, fail_fast=True)
    id: Text | int | None = Field(None, description="Your name for the item; comes back.")
    separator: Text = Field(" ", description="Between prompt and candidate.")
    full: bool = Field(False, description="Read every depth and T, and return them.")
    blind_prompt: Text | None = Field(None, description="The prompt without its question.")
    content_free: list[Text] = Field([], max_length=8, description="Prompts that say nothing.")

    def item(self) -> Item:
        """Return the item; raise `ItemError` for a text that the model cannot read."""
        return Item(
            self.prompt,
            tuple(self.candidates),
            id=None if self.id is None else str(self.id),
            separator=self.separator,
            blind_prompt=self.blind_prompt,
            content_free=tuple(self.content_free),
        )


class BatchBody(BaseModel, strict=True, extra="forbid"):
    """Items that are answered together."""

    items: list[ItemBody] = Field(min_length=1, fail_fast=True, description="The items.")


class FeedbackBody(BaseModel, strict=True, extra="forbid"):
    """The right candidate of an answer."""

    id: Text = Field(min_length=1, pattern=_KEY, description="The answer's `feedback_id`.")
    right: (
        Annotated[int, Field(ge=0)]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
    ) = Field(description="Place of the right candidate, or of several.")
    group: Text | None = Field(None, max_length=500, pattern=_KEY, description="Its document.")


def problem(error: BaseException) -> Object:
    """Return the JSON of an error."""
    refusal = Refusal.of(error)
    return {"error": {"code": refusal.code, "message": str(refusal)}}


def native_form(refusal: Refusal) -> Object:
    """Return the JSON of a refusal in the service's form."""
    return {"schema": SCHEMA} | problem(refusal)


def invalid(details: Sequence[Json]) -> Refusal:
    """Return the refusal of an invalid body, without the body's text."""
    faults = [f"{_where(detail):.80}: {_wrong(detail)}" for detail in details[:3]]
    more = f" and {len(details) - 3} more" if len(details) > 3 else ""
    return Refusal("invalid_body", "; ".join(faults) + more)


def _where(detail: Object) -> str:
    path: Sequence[Json] = detail["loc"]
    if detail["type"] == "json_invalid":
        return f"body, after {path[-1]} characters"
    return ".".join(part for part in map(str, path) if not _LABEL.fullmatch(part)) or "body"


# The names that pydantic adds to a path for the members of a union.
_LABEL = re.compile(r"body|body of a map|constrained-\w+|(list|dict|function-\w+)\[.*\]", re.DOTALL)


def _wrong(detail: Object) -> str:
    """Return pydantic's message without names of Python."""
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "expected a JSON object"
    if detail["type"] == "json_invalid":
        return f"{detail['msg']}: {detail['ctx']['error']}"
    if detail["type"] == "extra_forbidden":
        return "this key is not known; /openapi.json lists the known ones"
    return str(detail["msg"]).removeprefix("Value error, ")
