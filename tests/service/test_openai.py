"""OpenAI's routes choose from a list and explain the decision; they refuse other requests."""

import json
import time
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from lastword import Choice, Multi, Option
from lastword.decide.decider import Decider
from lastword.service.dialects.openai.choices import choices_of
from lastword.service.refusal import Refusal
from lastword.text.question import question_digest

CHOICES = ["w8 w9", "w10", "w11 w12 w13"]
MESSAGES = [{"role": "system", "content": "w4"}, {"role": "user", "content": "w5 w6 w7"}]
CHAT = {"messages": MESSAGES, "structured_outputs": {"choice": CHOICES}}


def post(served, kind: str, body: dict):
    return served.client.post(f"/v1/{kind}", json=body)


def pieces_of(response) -> list[dict]:
    """Return the pieces of a stream, and check how it ends."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


# Answers


def test_a_chat_returns_the_decision_about_the_users_message(plain, model):
    expected = Decider(model).decide("w5 w6 w7", {"a": Choice("w4", CHOICES)})["a"]
    response = post(plain, "chat/completions", CHAT).json()
    message = {"role": "assistant", "content": expected.choice, "refusal": None}
    assert response["choices"][0]["message"] == message
    same = {"model": response["model"], "input": "w5 w6 w7"}
    question = {"type": "choice", "instructions": "w4", "choices": CHOICES}
    decided = post(plain, "decisions", same | {"questions": [question]}).json()
    (answer,) = decided["answers"]
    assert response["lastword"]["probabilities"] == answer["probabilities"]
    assert response["lastword"] | answer["lastword"] == response["lastword"]
    assert response["lastword"]["method"] == "model"
    assert response["usage"]["prompt_tokens"] == decided["usage"]["input_tokens"]


def test_default_parameters_and_other_forms_change_nothing(plain):
    parts = [{"type": "text", "text": "w5 "}, {"type": "text", "text": "w6 w7"}]
    chat: dict[str, Any] = {"messages": [MESSAGES[0], {"role": "user", "content": parts}]}
    chat |= {"temperature": 0.7, "top_p": 1, "seed": 3, "max_tokens": 1, "n": 1, "user": "u"}
    chat |= {"frequency_penalty": 0, "presence_penalty": 0.0, "stream": False}
    response = post(plain, "chat/completions", CHAT | chat)
    assert response.status_code == 200, response.text
    assert response.json()["lastword"] == post(plain, "chat/completions", CHAT).json()["lastword"]


def test_a_stream_has_the_same_content_in_pieces(plain):
    whole = post(plain, "chat/completions", CHAT).json()
    request = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    *pieces, counted = pieces_of(post(plain, "chat/completions", request))
    choices = [piece["choices"][0] for piece in pieces]
    (only,) = whole["choices"]
    assert "".join(c["delta"].get("content", "") for c in choices) == only["message"]["content"]
    assert choices[0]["delta"]["role"] == "assistant"
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
    assert pieces[-1]["lastword"] == whole["lastword"]
    assert counted["choices"] == [] and counted["usage"] == whole["usage"]
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert "usage" not in pieces_of(post(plain, "chat/completions", CHAT | {"stream": True}))[-1]


def test_the_answer_is_written_in_the_form_of_the_schema(plain):
    def content(**schema: Any) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"messages": MESSAGES, "response_format": form}
        (choice,) = post(plain, "chat/completions", body).json()["choices"]
        return json.loads(choice["message"]["content"])

    (choice,) = post(plain, "chat/completions", CHAT).json()["choices"]
    expected = choice["message"]["content"]
    assert content(type="string", enum=CHOICES) == expected
    assert content(type="object", properties={"a": {"enum": CHOICES}}) == {"a": expected}


# Choice lists


def test_an_enum_of_numbers_is_read_and_written_as_json():
    choices = choices_of({"enum": [1, 2.5, True, "a"]})
    assert choices.options == ("1", "2.5", True, "a")
    assert [choices.written([one]) for one in choices.options] == ["1", "2.5", "true", '"a"']


class Way(Enum):
    NORTH = "north"
    SOUTH = "south"


class ByReference(BaseModel):
    way: Way = Field(description="Which way?")


class ByLiteral(BaseModel):
    way: Literal["north", "south"] = Field(description="Which way?")


class OrNone(BaseModel):
    way: Way | None = Field(description="Which way?")


NORTH_OR_SOUTH = [{"const": "north", "description": "up"}, {"const": "south"}]


@pytest.mark.parametrize("body", [ByReference, ByLiteral, OrNone])
def test_an_enum_of_pydantic_is_a_question(body):
    choices = choices_of(body.model_json_schema())
    question = choices.question([])
    assert question_digest(question) == question_digest(Choice("Which way?", ["north", "south"]))
    assert body.model_validate_json(choices.written(["south"])) == body(way="south")
    assert question.abstain == (body is OrNone)
    if question.abstain:
        assert body.model_validate_json(choices.written([])) == body(way=None)


def test_a_list_of_an_enum_is_a_multi_question():
    class Both(BaseModel):
        ways: list[Literal["north", "south"]] = Field(description="Which ways?")

    choices = choices_of(Both.model_json_schema())
    assert choices.question([]) == Multi("Which ways?", ["north", "south"])
    for ways in (["south"], []):
        assert Both.model_validate_json(choices.written(ways)) == Both(ways=ways)


def test_true_differs_from_1_and_definitions_are_followed():
    """Draft 7 writes `definitions`, and pydantic a description beside a reference."""
    assert choices_of({"enum": [1, True, 0, False]}).values == (1, True, 0, False)
    ways = {"Way": {"enum": ["north", "south"]}, "Again": {"$ref": "#/definitions/Way"}}
    by_reference = {"$ref": "#/definitions/Again", "description": "Which way?", "title": "Way"}
    choices = choices_of(of(by_reference, definitions=ways))
    assert choices.question([]) == Choice("Which way?", ["north", "south"])
    assert choices.written(["south"]) == '{"team": "south"}'
    whole = {"$ref": "#/definitions/T", "definitions": {"T": of({"enum": ["a", "b"]})}}
    assert choices_of(whole).values == ("a", "b")


def test_constants_are_options_and_instructions_join_system_message_and_schema():
    schema = {"anyOf": NORTH_OR_SOUTH, "description": "Which way?"}
    question = choices_of(schema).question(["Look."])
    assert question == Choice("Look.\nWhich way?", [Option("north", "up"), "south"])


def of(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"team": value}} | more


AB, A = {"enum": ["a", "b"]}, {"enum": ["a"]}
ARRAY = {"type": "array", "items": AB}
DEFINED = {"$defs": {"A": A, "B": AB}}
TWO = {"a": {"enum": ["x"]}, "b": {"enum": ["y"]}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        # No choice.
        ({}, "no enum and no const"),
        (of({"enum": []}), "no enum and no const"),
        (of({"enum": "ab"}), "no enum and no const"),
        ({"enum": ["b", {"x": 1}]}, "{'x': 1} is no text"),
        ({"properties": TWO}, "expected one property"),
        (of({"$ref": "#/$defs/B"}, **{"$defs": {"B": {"type": "string"}}}), "no enum"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "refers to itself"),
        ({"$ref": "#/$defs/A", "$defs": []}, "'#/$defs/A' is not there"),
        (DEFINED | {"$ref": "http://x/y#/$defs/A"}, "is not there"),
        ({"anyOf": [{"enum": ["a"]}, {"type": "string"}]}, "no enum"),
        ({"type": "array", "items": 3}, "3 is no object"),
        ({"enum": [None]}, "null is the only value"),
        ({"type": "array", "items": {"enum": ["a", None]}}, "null is"),
        # Keywords that may exclude an answer.
        (ARRAY | {"minItems": 1}, "minItems"),
        (ARRAY | {"enum": [["a"]]}, "enum"),
        (AB | DEFINED | {"$ref": "#/$defs/A"}, "enum"),
        (AB | {"anyOf": [{"const": "c"}, {"const": "d"}]}, "enum"),
        ({"enum": [True], "const": 1}, "enum"),
        ({"anyOf": [A | {"maxLength": 0}]}, "maxLength"),
        (of(AB, minProperties=2), "minProperties"),
        (of(AB, required=["team", "other"]), "required"),
        ({"$ref": "#/$defs/O", "additionalProperties": False, "$defs": {"O": of(AB)}}, "addit"),
        (of(AB, type="array"), "type"),
        ({"type": "string", "enum": ["a", 1]}, "excludes the answer 1"),
        ({"type": "integer", "enum": [1, 2.5]}, "excludes the answer 2.5"),
        ({"type": "string", "anyOf": [A, {"type": "null"}]}, "excludes the answer null"),
        ({"type": ["number", "null"], "enum": [1, True]}, "excludes the answer true"),
    ],
)
def test_a_schema_without_a_choice_or_that_excludes_an_answer_is_refused(schema, message):
    with pytest.raises(Refusal) as refused:
        choices_of(schema)
    assert message in str(refused.value) and str(refused.value).startswith("response_format: ")
    assert refused.value.code == "no_choices" and "\n" not in str(refused.value)


def test_a_schema_that_repeats_a_long_enum_is_read_fast():
    part = {"enum": [*range(250), "x" * 450_000]}
    schema = {"$defs": {"a": part}, "anyOf": [{"$ref": "#/$defs/a"} for _ in range(250)]}
    start = time.process_time()
    with pytest.raises(Refusal):
        choices_of(schema)
    assert time.process_time() - start < 0.5


def test_keywords_that_exclude_no_answer_are_accepted():
    notes = {"title": "T", "default": "a", "examples": ["a"], "$id": "i", "format": "word"}
    ab = AB | notes | {"type": ["string", "null"]}
    more = {"required": ["team"], "additionalProperties": False, **notes}
    referred = of({"$ref": "#/$defs/A", "default": "b"}, **more, **{"$defs": {"A": AB}})
    listed = {"type": "array", "items": ab, "uniqueItems": True}
    constants = {"type": "string", "anyOf": [{"const": "a"} | notes, {"const": "b"}]}
    for schema in (ab, of(ab, **more), referred, listed, constants):
        assert choices_of(schema).values == ("a", "b")
