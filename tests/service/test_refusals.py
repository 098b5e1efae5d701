"""Refusals have the form, status and code that each client expects."""

import json
from typing import Any
from unittest.mock import ANY

import pytest
from served import BODY, code_of, running

NAME = "LlamaForCausalLM"
WORDS = BODY["candidates"]


def given(words: list[str]) -> dict[str, Any]:
    """Return the options of a chat."""
    return {"structured_outputs": {"choice": words}}


GOOGLES = {"type": "choice", "instructions": "w5"}
OPTIONS = {"type": "choice", "instructions": "w5", "choices": WORDS}
MESSAGES = [{"role": "system", "content": "w4"}, {"role": "user", "content": "w5 w6 w7"}]
# The path, body and headers of a request in each form.
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "native": ("/v1/correct", BODY, {}),
    "openai": ("/v1/decisions", {"model": NAME, "input": "w5", "questions": [OPTIONS]}, {}),
    "chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES} | given(WORDS),
        {},
    ),
    "typesafe": (
        "/v1/systemone",
        {
            "model": "jev-latest",
            "state": "w5",
            "questions": {"q": {"type": "choice", "criteria": WORDS}},
        },
        {},
    ),
    "google": (
        "/v1/decisions",
        {
            "model": f"models/{NAME}",
            "input": "w5",
            "questions": {"q": GOOGLES | {"criteria": dict.fromkeys(WORDS, "")}},
        },
        {"x-goog-api-key": "any"},
    ),
}


@pytest.fixture(scope="module")
def served(model):
    with running(model, tokens=150, body_bytes=150_000, token="letmein") as service:
        service.client.headers["authorization"] = "Bearer letmein"
        yield service


def expected(form: str, status: int, code: str) -> dict[str, Any]:
    """Return the body of a refusal in a form."""
    if form == "native":
        return {"schema": 1, "error": {"code": code, "message": ANY}}
    if form == "google":
        names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND"}
        return {"error": {"code": status, "message": ANY, "status": names[status]}}
    if form == "typesafe" and status == 422:
        return {"detail": [{"loc": ["body"], "msg": ANY, "type": code}]}
    kind = {401: "authentication_error"}.get(status, "invalid_request_error")
    if form == "typesafe":
        return {"detail": {"error_type": kind, "message": ANY}}
    kind = "not_found_error" if status == 404 else kind
    return {"error": {"message": ANY, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_token_is_refused_in_the_form_of_the_client(served, form):
    path, body, headers = FORMS[form]
    headers = headers | {"authorization": "Bearer other"}
    answer = served.client.post(path, json=body, headers=headers)
    assert (answer.status_code, answer.headers["x-refusal"]) == (401, "unauthorised")
    assert answer.json() == expected(form, 401, "unauthorised")


def listed(**changes: Any) -> dict[str, Any]:
    """Return OpenAI's list with one question."""
    return {"questions": [OPTIONS | changes]}


def named(**question: Any) -> dict[str, Any]:
    """Return the object with one question that the other forms use."""
    return {"questions": {"q": question}}


def schema(**keywords: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"schema": keywords}}
    return {"structured_outputs": None, "response_format": form}


BOTH = schema(enum=WORDS) | given(WORDS)
IMAGE = {"role": "user", "content": [{"type": "input_image"}]}
MANY = [f"w{i}" for i in range(300)]
CONSTANTS = [{"const": text} for text in MANY]


@pytest.mark.parametrize(
    ("form", "changes", "status", "code", "where"),
    [
        ("native", {"candidates": []}, 422, "invalid_body", "candidates"),
        ("native", {"prompt": None}, 422, "invalid_body", "prompt"),
        ("native", {"candidates": ["\ud800"]}, 422, "invalid_body", "candidates"),
        ("native", {"candidates": [" ", "w6"]}, 422, "item", "candidate 0"),
        ("native", {"prompt": "w5\0"}, 422, "item", ""),
        ("native", {"candidates": ["w6"] * 65}, 422, "too_many_candidates", "65"),
        ("native", {"prompt": "w5 " * 160, "candidates": ["w6"]}, 422, "too_many_tokens", "162"),
        ("native", {"prompt": "w5 " * 500}, 422, "item", ""),
        ("native", {"prompt": "w" * 150_000}, 413, "body_too_large", ""),
        ("openai", {"questions": []}, 400, "invalid_body", "questions"),
        ("openai", {"model": "gpt-6-luna"}, 404, "unknown_model", repr(NAME)),
        ("openai", {"questions": [OPTIONS, {"type": "chioce"}]}, 400, "invalid_body", "ions.1"),
        ("openai", {"questions": [OPTIONS] * 1001}, 400, "invalid_body", "1001 qu"),
        ("openai", listed(choices=[{"name": "w8"}, "w9"]), 400, "invalid_body", "questions.0"),
        ("openai", listed(choices=[1.5, 2]), 400, "invalid_body", "an option is a text"),
        ("openai", {"input": [IMAGE]}, 400, "invalid_body", "input.parts.0.content"),
        ("openai", {"input": "w5 " * 500}, 400, "item", "needs"),
        (
            "openai",
            {"questions": [OPTIONS | {"instructions": f"w{i} " * 40} for i in range(20)]},
            400,
            "too_many_tokens",
            "takes 600",
        ),
        ("openai", listed(oops=1), 400, "invalid_body", "questions.0: the key 'oops'"),
        ("openai", listed(type="x" * 9000), 400, "invalid_body", "questions.0"),
        ("typesafe", named(type="noul", oops=1), 422, "invalid_body", "the key 'oops'"),
        ("typesafe", {"questions": {}}, 422, "invalid_body", "questions"),
        ("typesafe", {"model": "gpt-6-luna"}, 404, "unknown_model", repr(NAME)),
        ("typesafe", named(type="box"), 422, "invalid_body", "questions.q"),
        ("typesafe", named(type="score", criteria={"0": "w8"}), 422, "invalid_body", "questions.q"),
        ("typesafe", {"assets": {"a": {}}}, 422, "invalid_body", "assets"),
        ("google", {"model": "models/gpt"}, 404, "unknown_model", repr(NAME)),
        ("google", named(**GOOGLES, criteria={"a": ""}), 400, "invalid_body", "questions.q"),
        ("google", named(**GOOGLES, criteria=None), 400, "invalid_body", "questions.q"),
        *(
            ("chat", {"structured_outputs": None} | more, 400, "no_choices", "structured_outputs")
            for more in ({}, {"response_format": {"type": "text"}}, {"stream": True})
        ),
        ("chat", {"n": 2}, 400, "invalid_body", "n: "),
        ("chat", {"stop": ["w6"]}, 400, "invalid_body", "stop: "),
        ("chat", {"presence_penalty": 0.5}, 400, "invalid_body", "presence_penalty: "),
        ("chat", BOTH, 400, "invalid_body", "2 choice lists"),
        ("chat", schema(enum=["\ud800", "a"]), 400, "invalid_body", "surrogate"),
        ("chat", schema(enum=[float("nan"), 1]), 400, "invalid_body", "JSON"),
        ("chat", {"model": "gpt-4o"}, 404, "unknown_model", repr(NAME)),
        ("chat", {"messages": [IMAGE]}, 400, "invalid_body", "type"),
        ("chat", given(["w6", "w6"]), 400, "invalid_body", "twice"),
        *(
            ("chat", {"structured_outputs": None} | more, 400, "too_many_candidates", "300 entries")
            for more in (given(MANY), schema(enum=MANY), schema(anyOf=CONSTANTS))
        ),
    ],
)
def test_invalid_requests_are_refused_in_the_form_of_the_client(
    served, form, changes, status, code, where
):
    path, body, headers = FORMS[form]
    content = json.dumps(body | changes).encode()
    headers = headers | {"content-type": "application/json"}
    answer = served.client.post(path, content=content, headers=headers)
    assert (answer.status_code, answer.headers["x-refusal"]) == (status, code), answer.text
    assert answer.json() == expected(form, status, code)
    assert where in answer.text


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"null", b"[" * 100_000),
        b'{"prompt": "w5", "candidates": [' + b"1" * 5000 + b"]}",
        b'{"prompt": "w5"}',
        b'{"prompt": "w5", "candidates": [NaN]}',
    ],
)
def test_an_invalid_body_is_refused(served, content):
    headers = {"content-type": "application/json"}
    answer = served.client.post("/v1/correct", content=content, headers=headers)
    assert (answer.status_code, code_of(answer)) == (422, "invalid_body")
    assert "\n" not in answer.json()["error"]["message"]


def test_invalid_json_is_refused_with_the_place_of_the_fault(served):
    broken = b'{"prompt": "w5", oops'
    headers = {"content-type": "application/json"}
    answer = served.client.post("/v1/correct", content=broken, headers=headers)
    message = answer.json()["error"]["message"]
    assert message.startswith(f"body, after {broken.index(b'oops')} characters: ")
    without_type = served.client.post("/v1/correct", content=broken)
    assert (without_type.status_code, code_of(without_type)) == (415, "unsupported_media_type")


def test_unknown_routes_and_methods_are_refused(served):
    for path in ("/", "/v1", "/gradio_api/upload", "/v1/correct/"):
        assert code_of(served.client.get(path)) == "not_found"
    answer = served.client.get("/v1/correct")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert served.client.options("/v1/correct").status_code == 405
