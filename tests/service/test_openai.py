"""OpenAI's routes give the corrected choice of a list with its reasons, and refuse other things."""

import json
from enum import Enum
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field
from scipy.special import log_softmax

from lastword import Choice, Multi, Option
from lastword.decisions.question import question_digest
from lastword.service.dialects.openai.choices import (
    JsonSchema,
    ResponseFormat,
    StructuredOutputs,
    read_choices,
)
from lastword.service.refusal import Refusal

CHOICES = ["w8 w9", "w10", "w11 w12 w13"]
TEXT = {"prompt": "w5 w6 w7", "guided_choice": CHOICES}
MESSAGES = [{"role": "system", "content": "w4"}, {"role": "user", "content": "w5 w6 w7"}]
CHAT = {"messages": MESSAGES, "structured_outputs": {"choice": CHOICES}}


def post(served, kind: str, body: dict):
    return served.client.post(f"/v1/{kind}", json=body)


def pieces_of(answer) -> list[dict]:
    """The pieces of a stream, which ends as it should."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = answer.text.split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


# What comes out


def test_a_completion_is_the_corrected_choice(plain, model):
    decision = model.correct(TEXT["prompt"], CHOICES)
    told = post(plain, "completions", TEXT).json()
    assert told["object"] == "text_completion" and told["id"].startswith("cmpl-")
    assert told["choices"] == [
        {"index": 0, "finish_reason": "stop", "text": decision.answer, "logprobs": None}
    ]
    assert told["lastword"] == decision.to_dict()
    assert told["model"] == model.source["model"]


def test_a_message_is_the_decision_about_what_the_user_said(plain, model):
    own = model.decide("w5 w6 w7", {"a": Choice("w4", CHOICES)}).choices["a"]
    told = post(plain, "chat/completions", CHAT).json()
    assert told["choices"][0]["message"] == {
        "role": "assistant",
        "content": own.choice,
        "refusal": None,
    }
    same = {"model": told["model"], "input": "w5 w6 w7"}
    asked = {
        "type": "choice",
        "instructions": "w4",
        "choices": [{"value": value} for value in CHOICES],
    }
    decided = post(plain, "decisions", same | {"questions": [asked]}).json()
    (answer,) = decided["answers"]
    assert told["lastword"]["probabilities"] == answer["probabilities"]
    assert told["lastword"] | answer["lastword"] == told["lastword"]
    assert told["lastword"]["method"] == "base"
    assert told["usage"]["prompt_tokens"] == decided["usage"]["input_tokens"]


def test_a_conversation_is_a_text_with_its_roles(plain, model):
    said = [*MESSAGES[1:], {"role": "assistant", "content": "w9"}]
    own = model.decide(said, {"a": Choice("w4", CHOICES)})["a"]
    told = post(plain, "chat/completions", CHAT | {"messages": [MESSAGES[0], *said]}).json()
    shares = [entry["probability"] for entry in told["lastword"]["probabilities"]]
    assert shares == pytest.approx(own.probabilities.tolist(), abs=1e-5)


def test_content_may_come_in_parts(plain):
    parts = [{"type": "text", "text": "w5 "}, {"type": "text", "text": "w6 w7"}]
    said = [MESSAGES[0], {"role": "user", "content": parts}]
    told = post(plain, "chat/completions", CHAT | {"messages": said}).json()
    assert told["lastword"] == post(plain, "chat/completions", CHAT).json()["lastword"]


def test_what_clients_send_by_default_changes_nothing(plain):
    defaults = {"temperature": 0.7, "top_p": 1, "seed": 3, "max_tokens": 1, "n": 1, "user": "u"}
    defaults |= {"frequency_penalty": 0, "presence_penalty": 0.0, "stop": None, "stream": False}
    told = post(plain, "completions", TEXT | defaults | {"prompt": [TEXT["prompt"]]})
    assert told.status_code == 200, told.text
    assert told.json()["lastword"] == post(plain, "completions", TEXT).json()["lastword"]


def test_log_probabilities_are_those_of_the_choices(plain, model):
    decision = model.correct(TEXT["prompt"], CHOICES)
    logs = log_softmax(decision.scores)
    order = np.argsort(-logs)
    (choice,) = post(plain, "completions", TEXT | {"logprobs": 2}).json()["choices"]
    told = choice["logprobs"]
    assert told["tokens"] == [decision.answer]
    assert told["token_logprobs"] == pytest.approx([logs[decision.index]], abs=1e-5)
    assert list(told["top_logprobs"][0]) == [CHOICES[i] for i in order[:2]]
    asked = CHAT | {"logprobs": True, "top_logprobs": 3}
    (choice,) = post(plain, "chat/completions", asked).json()["choices"]
    (token,) = choice["logprobs"]["content"]
    assert bytes(token["bytes"]).decode() == choice["message"]["content"] == token["token"]
    total = sum(np.exp(entry["logprob"]) for entry in token["top_logprobs"])
    assert total == pytest.approx(1) and len(token["top_logprobs"]) == 3


def test_a_stream_says_the_same_in_pieces(plain):
    whole = post(plain, "chat/completions", CHAT).json()
    asked = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    *pieces, counted = pieces_of(post(plain, "chat/completions", asked))
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0]["role"] == "assistant"
    said = "".join(delta.get("content", "") for delta in deltas)
    assert said == whole["choices"][0]["message"]["content"]
    assert [p["choices"][0]["finish_reason"] for p in pieces] == [None, None, "stop"]
    assert pieces[2]["lastword"] == whole["lastword"] and "lastword" not in pieces[0]
    assert counted["choices"] == [] and counted["usage"] == whole["usage"]
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}


def test_a_completion_streams_too(plain):
    pieces = pieces_of(post(plain, "completions", TEXT | {"stream": True}))
    whole = post(plain, "completions", TEXT).json()
    assert "".join(p["choices"][0]["text"] for p in pieces) == whole["choices"][0]["text"]
    assert pieces[-1]["lastword"] == whole["lastword"] and "usage" not in pieces[-1]


def test_the_answer_is_written_as_the_schema_says(plain):
    expected = post(plain, "completions", TEXT).json()["choices"][0]["text"]
    schemas = [
        ({"type": "string", "enum": CHOICES}, expected),
        ({"type": "object", "properties": {"a": {"enum": CHOICES}}}, {"a": expected}),
    ]
    for schema, value in schemas:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        told = post(plain, "completions", {"prompt": "w5 w6 w7", "response_format": form}).json()
        assert json.loads(told["choices"][0]["text"]) == value


def test_models_are_the_one_that_is_served(plain, model):
    (told,) = plain.client.get("/v1/models").json()["data"]
    assert told["id"] == model.source["model"] and told["object"] == "model"


# Choice lists


def form(schema: dict) -> ResponseFormat:
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=schema))


def test_an_enum_of_numbers_is_read_and_written_as_json():
    choices = read_choices(None, None, form({"enum": [1, 2.5, True, "a"]}))
    assert choices.candidates == ("1", "2.5", "true", "a")
    assert [choices.written(i) for i in range(4)] == ["1", "2.5", "true", '"a"']


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
def test_an_enum_of_pydantic_is_the_question(body):
    choices = read_choices(None, None, form(body.model_json_schema()))
    asked = choices.question([])
    assert question_digest(asked) == question_digest(Choice("Which way?", ["north", "south"]))
    assert body.model_validate_json(choices.written(1)) == body(way="south")
    assert asked.abstain == (body is OrNone)
    if asked.abstain:
        assert body.model_validate_json(choices.written(None)) == body(way=None)


class Both(BaseModel):
    ways: list[Literal["north", "south"]] = Field(description="Which ways?")


def test_a_list_of_an_enum_asks_which_apply():
    choices = read_choices(None, None, form(Both.model_json_schema()))
    assert choices.question([]) == Multi("Which ways?", ["north", "south"])
    assert Both.model_validate_json(choices.array(["south"])) == Both(ways=["south"])
    assert Both.model_validate_json(choices.array([])) == Both(ways=[])


def test_the_text_of_a_completion_is_no_array(plain):
    schema = {"type": "array", "items": {"enum": CHOICES}}
    format = {"type": "json_schema", "json_schema": {"schema": schema}}
    text = post(plain, "completions", {"prompt": "w5 w6 w7", "response_format": format})
    assert (text.status_code, text.json()["error"]["code"]) == (400, "no_choices")


def test_constants_are_options_with_their_descriptions():
    for key in ("anyOf", "oneOf"):
        asked = read_choices(None, None, form({key: NORTH_OR_SOUTH})).question(["Which way?"])
        assert asked == Choice("Which way?", [Option("north", "up"), "south"])


def test_the_system_and_the_schema_both_ask():
    schema = {"enum": ["a", "b"], "description": "Which?"}
    assert (
        read_choices(None, None, form(schema)).question(["Look."]).instructions == "Look.\nWhich?"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        {"enum": []},
        {"enum": [["a"], ["b"]]},
        {"enum": [float("nan"), 1]},
        {"enum": ["\ud800"]},
        {"properties": {"a": {"enum": ["x"]}, "b": {"enum": ["y"]}}},
        {"properties": {"\ud800": {"enum": ["x"]}}},
        {"properties": {"a": {"$ref": "#/$defs/B"}}, "$defs": {"B": {"type": "string"}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"$ref": "#/$defs/A", "$defs": []},
        {"anyOf": [{"enum": ["a"]}, {"type": "string"}]},
        {"enum": [None]},
    ],
)
def test_a_schema_that_is_no_choice_is_none(schema):
    with pytest.raises(Refusal, match="enum") as refused:
        read_choices(None, None, form(schema))
    assert refused.value.code == "no_choices"


def test_two_lists_are_one_too_many():
    with pytest.raises(Refusal, match="2 choice lists"):
        read_choices(StructuredOutputs(choice=["a"]), ["b"], None)


# What is refused


@pytest.mark.parametrize("kind", ["completions", "chat/completions"])
def test_without_a_choice_list_it_says_what_it_does(plain, kind):
    body = {"prompt": "w5"} if kind == "completions" else {"messages": MESSAGES}
    for more in ({}, {"response_format": {"type": "text"}}, {"stream": True}):
        answer = post(plain, kind, body | more)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "no_choices" and error["type"] == "invalid_request_error"
        assert "chooses among answers" in error["message"] and error["param"] is None


@pytest.mark.parametrize(
    ("more", "status", "word"),
    [
        ({"n": 2}, 400, "n: "),
        ({"stop": ["w6"]}, 400, "stop: "),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias: "),
        ({"tools": [{}]}, 400, "tools: "),
        ({"presence_penalty": 0.5}, 400, "presence_penalty: "),
        ({"structured_outputs": {"regex": "a"}}, 400, "structured_outputs.choice"),
        ({"min_p": 0.5}, 400, "min_p: no key that is known here"),
        ({"model": "gpt-4o"}, 404, "'gpt-4o' is not served here"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "type"),
        ({"structured_outputs": {"choice": ["w6", " "]}}, 400, "blank"),
        ({"structured_outputs": {"choice": ["w6", "w6"]}}, 400, "is twice"),
        ({"structured_outputs": {"choice": ["w6"]}}, 400, "expected 2 to 255"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_name(plain, more, status, word):
    answer = post(plain, "chat/completions", CHAT | more)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]["message"]


def test_several_prompts_are_several_requests(plain):
    answer = post(plain, "completions", TEXT | {"prompt": ["w5", "w6"]})
    assert answer.status_code == 400 and "prompt: " in answer.json()["error"]["message"]


def test_types_of_documented_answers_are_those_that_come(plain):
    schema = plain.client.get("/openapi.json").json()
    told = schema["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "404", "429", "503", "504"} <= told.keys()
    assert "422" not in told and "text/event-stream" in told["200"]["content"]
