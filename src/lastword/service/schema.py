"""What goes over the wire: bodies that come in, answers that go out, and strict JSON."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
)

from lastword.decide.batch import Scope
from lastword.errors import ItemError
from lastword.files.strict_json import to_json
from lastword.records.decision import SCHEMA
from lastword.rule.answer import Answer, Gate, Regime, Withheld
from lastword.rule.fact import Fact, Presence, facts
from lastword.rule.geometry import Columns, Scores
from lastword.service.refusal import STATUS, Refusal
from lastword.text.items import Item
from lastword.text.messages import Message


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate, which is no text; remove it") from error
    return text


def _left_out(value: Any) -> None:
    if value is not None:
        raise ValueError("it would change the answer and is not done here; leave it out")


Text = Annotated[str, AfterValidator(_encodable)]
_KEY = r"^[^\x00]*$"  # Postgres takes no NUL, and no long text into an index
# A key of somebody else's form that is refused in words where it says anything.
Unread = Annotated[None, BeforeValidator(_left_out)]
_EXAMPLE: dict[str, Any] = {
    "prompt": "Where is the lake of Oru?",
    "candidates": ["in the north", "in the south", "in the hills"],
}


class MessageBody(BaseModel, strict=True, extra="forbid"):
    """One message of a conversation."""

    role: Text = Field(description="`system`, `user`, `assistant`, or what the template knows.")
    content: Text = Field(description="Its text.")


# Told apart before either is read, so that what is wrong is told of one of them.
Prompt = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[MessageBody], Field(min_length=1, fail_fast=True), Tag("messages")],
    Discriminator(lambda value: "messages" if isinstance(value, list) else "text"),
]


class ItemBody(BaseModel, strict=True, extra="forbid", json_schema_extra={"examples": [_EXAMPLE]}):
    """One prompt with its candidate answers."""

    prompt: Prompt = Field(
        description="Text before the answer, which may be empty, or the messages of a conversation."
    )
    # The first that is no text is told: a body may have half a million of them.
    candidates: list[Text] = Field(
        min_length=1, fail_fast=True, description="The answers to choose from."
    )
    id: Text | int | None = Field(None, description="Your name for the item; comes back.")
    separator: Text = Field(" ", description="Between prompt and candidate.")
    full: bool = Field(False, description="Read every depth and T, and return them.")
    view: bool = Field(False, description="Say it in words and numbers, as the explorer draws it.")
    # Lines of `lastword correct --input` may have these; no answer depends on them.
    question: Text | None = Field(None, description="For people; not read.")
    truthful: Any = Field(None, description="For metrics, and for `view`: what is true, in order.")
    blind_prompt: Text | None = Field(
        None, description="The prompt without its question, for a correction that reads it."
    )
    content_free: list[Text] = Field(
        [],
        max_length=8,
        description="The prompt with inputs that say nothing, for `contextual`.",
    )
    group: Text | None = Field(None, description="For certificates; a label may name one here.")

    @property
    def truths(self) -> tuple[bool, ...] | None:
        """What is true of the candidates, where that is said of each."""
        own = self.truthful if isinstance(self.truthful, list) else []
        fits = len(own) == len(self.candidates) and all(isinstance(one, bool) for one in own)
        return tuple(own) if fits else None

    def item(self) -> Item:
        """The item of the library.

        Raises:
            ItemError: Text that cannot be answered.
        """
        name = None if self.id is None else str(self.id)
        candidates, separator = tuple(self.candidates), self.separator
        if isinstance(self.prompt, str):
            own: dict[str, Any] = {
                "blind_prompt": self.blind_prompt,
                "content_free": tuple(self.content_free),
            }
            prompt = self.prompt
        else:
            prompt, own = "", {"messages": tuple(Message(m.role, m.content) for m in self.prompt)}
        return Item(prompt, candidates, id=name, separator=separator, **own)


class FeedbackBody(
    BaseModel,
    strict=True,
    extra="forbid",
    json_schema_extra={"examples": [{"id": "0f8fad5bd9cb469fa16570867728950e", "right": 1}]},
):
    """What was right among the candidates of an answer."""

    id: Text = Field(min_length=1, pattern=_KEY, description="The answer's `feedback_id`.")
    right: (
        Annotated[int, Field(ge=0)]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
    ) = Field(description="Place of the right candidate, or of several.")
    group: Text | None = Field(
        None,
        max_length=500,
        pattern=_KEY,
        description="What it shares with others that are not independent of it (a document).",
    )


class FeedbackAnswer(BaseModel):
    """What a label says of the answer, and of the certificate."""

    schema_version: int = Field(alias="schema")
    overridden: bool = Field(description="Whether correction changed the answer.")
    was_broken: bool = Field(description="Whether it made a right answer wrong.")
    was_fixed: bool = Field(description="Whether it made a wrong answer right.")
    counts: bool = Field(
        description="Whether it is the first label of its group, and so is bet on."
    )
    labelled: int = Field(description="Groups of answers whose truth came back so far.")
    broken: int = Field(description="Of them, those of which correction made the first wrong.")
    alarm: bool = Field(description="Whether so many breaks are too many.")
    slipping: bool = Field(description="Whether the broken rate seems to have risen of late.")


class GateAnswer(BaseModel):
    """One comparison of the rule; null where it was not needed, `+inf`, `-inf` as strings."""

    value: float | bool | Literal["+inf", "-inf"] | None
    threshold: float | bool
    holds: bool | None


class WithheldAnswer(BaseModel):
    """An override that was not allowed: the model's own answer stands."""

    rule: str = Field(description="The rule of the certificate that it fails.")
    index: int = Field(description="Place of the answer that correction wanted.")
    answer: str
    operator: str
    scores: list[float]


# JSON's form of what is no plain value in Python.
_WIRE: dict[Any, Any] = {
    float: float | None,  # null for nan
    Scores: list[float],
    Scores | None: list[float] | None,
    Columns: list[list[float | None]],
    Mapping[str, Gate]: dict[str, GateAnswer],
    Withheld | None: WithheldAnswer | None,
}
_PLAIN = {str, int, bool, Regime, str | None, int | None, float | None}


def wire_type(own: Fact) -> Any:
    """Return the type of a fact in JSON; TypeError where nothing says what it is there."""
    if own.type not in _WIRE and own.type not in _PLAIN:
        raise TypeError(f"{own.name} is {own.type}, and JSON has no form for that: see _WIRE")
    return _WIRE.get(own.type, own.type)


def wire_fields(owner: type, presence: Presence) -> dict[str, Any]:
    """What JSON has of a dataclass at some time, as fields of a pydantic model."""
    return {
        own.attribute: (
            wire_type(own) | None if optional else wire_type(own),
            Field(
                None if optional else ...,
                alias=None if own.name == own.attribute else own.name,
                description=f"With `full`. {own.doc}" if presence == "full" else own.doc,
            ),
        )
        for own in facts(owner)
        if own.json == presence
        for optional in [presence != "always"]
    }


_DecisionAnswer = create_model(
    "_DecisionAnswer",
    __config__=ConfigDict(serialize_by_alias=True, protected_namespaces=()),
    schema_version=(int, Field(alias="schema", description="Version of this answer's form.")),
    **wire_fields(Answer, "given"),
    **wire_fields(Answer, "always"),
    feedback_id=(
        str | None,
        Field(None, description="Under a certificate: what `/v1/feedback` calls this answer."),
    ),
    # Without a blind prompt, which a service does not take, that is all there is.
    **wire_fields(Answer, "full"),
    view=(dict[str, Any] | None, Field(None, description="With `view`: what the explorer draws.")),
)


class DecisionAnswer(_DecisionAnswer):  # type: ignore[misc, valid-type]
    """A decision, and every reason for it; what was not needed is null."""


class Problem(BaseModel):
    """What is wrong."""

    code: str = Field(json_schema_extra={"enum": [*STATUS]})
    message: str


class ErrorAnswer(BaseModel):
    """Any request that was turned down."""

    schema_version: int = Field(alias="schema")
    error: Problem


def to_bytes(value: Mapping[str, Any]) -> bytes:
    """One line of strict JSON in UTF-8, with the schema version first."""
    return to_json({"schema": SCHEMA} | dict(value)).encode()


def problem(error: BaseException) -> dict[str, Any]:
    """The JSON of an error."""
    refusal = Refusal.of(error)
    return {"error": {"code": refusal.code, "message": str(refusal)}}


def own_form(refusal: Refusal) -> dict[str, Any]:
    """A refusal in the service's own form."""
    return {"schema": SCHEMA} | problem(refusal)


def require_few(body: bytes, limit: int) -> None:
    """Refuse JSON whose lists and objects have too many entries, before it is read.

    Each comma outside its texts parts two entries, and a bracket that is not closed at once has
    one more. Texts with brackets that are closed at once make it count less.

    Raises:
        Refusal: There are more.
    """
    if sum(map(body.count, _MARKS)) <= limit:
        return
    marks = _ESCAPE.sub(b"", body).translate(None, _WORDS)
    # Two quotes side by side are a text without a mark, or one text's end and another's beginning.
    marks = _QUOTED.sub(b"", marks.replace(b'""', b""))
    whole = body.translate(None, b" \t\r\n")
    empty = whole.count(b"[]") + whole.count(b"{}")
    if sum(map(marks.count, _MARKS)) - empty > limit:
        what = f"the body has more than {limit} entries in its lists and objects; send less"
        raise Refusal("invalid_body", what)


_MARKS = (b",", b"[", b"{")
_ESCAPE, _QUOTED = re.compile(rb"\\.", re.DOTALL), re.compile(rb'"[^"]*"')
_WORDS = bytes({*range(256)} - {*b'",[]{}'})


def invalid(details: list[Any]) -> Refusal:
    """The refusal of a body; says where and what, never what came."""
    faults = [f"{_where(detail):.80}: {_wrong(detail)}" for detail in details[:3]]
    more = f" and {len(details) - 3} more" if len(details) > 3 else ""
    return Refusal("invalid_body", "; ".join(faults) + more)


def _where(detail: Mapping[str, Any]) -> str:
    path: Sequence[Any] = detail["loc"]
    if detail["type"] == "json_invalid":
        return f"body, after {path[-1]} characters"
    return ".".join(str(part) for part in path if part not in _BODIES) or "body"


_BODIES = ("body", "body of a map")


def _wrong(detail: Mapping[str, Any]) -> str:
    """What pydantic says, without the names of Python's things."""
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "expected a JSON object"
    if detail["type"] == "json_invalid":
        return f"{detail['msg']}: {detail['ctx']['error']}"
    if detail["type"] == "extra_forbidden":
        return "no key that is known here; /docs has those that are"
    return str(detail["msg"]).removeprefix("Value error, ")


def parse_item(value: Any, place: int) -> tuple[Item, Scope] | ItemError:
    """One entry of a batch as its item and what is read of it, or as the error that names it."""
    name = _name(value, place)
    if isinstance(value, ItemError):  # a line that is no JSON
        return ItemError(str(value), name)
    try:
        body = ItemBody.model_validate(value)
        return body.item(), Scope("all" if body.full else "decide")
    except ValidationError as error:
        return ItemError(str(invalid(error.errors(include_input=False))), name)
    except ItemError as error:
        return error if error.item is not None else ItemError(str(error), name)


def _name(value: Any, place: int) -> str:
    name = value.get("id") if isinstance(value, dict) else None
    if not isinstance(name, str | int):
        return str(place)
    return str(name).encode(errors="replace").decode()
