"""A new dialect is one file with its routes and one row in the table."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from served import running

from lastword import Item
from lastword.service import dialects
from lastword.service.call import ThisCall, plain_answer
from lastword.service.dialect import Dialect, routes
from lastword.service.dialects import DIALECTS
from lastword.service.refusal import Refusal

FOLDER = Path(dialects.__file__).parent


# The whole file of a new dialect: bodies, handlers, the form of its refusals, and the value.


class Vote(BaseModel):
    text: str
    options: list[str]


class Verdict(BaseModel):
    verdict: str


router = routes()


@router.post("/vote", response_model=Verdict)
async def vote(body: Vote, call: ThisCall) -> Response:
    """Choose an option for a text."""
    decision = await call.correct(Item(body.text, tuple(body.options)))
    return JSONResponse({"verdict": decision["answer"]})


def complain(refusal: Refusal) -> dict[str, Any]:
    return {"complaint": str(refusal)}


VOTES = Dialect(router, complain, statuses={422: 400})
# The row of the table.
TABLE = (*DIALECTS, VOTES)

BODY = {"text": "w5 w6 w7", "options": ["w8 w9", "w10", "w11 w12 w13"]}


@pytest.fixture(scope="module")
def served(model):
    with running(model, dialects=TABLE, token="letmein") as service:
        service.client.headers["authorization"] = "Bearer letmein"
        yield service


def test_a_dialect_works_like_the_others(served, model):
    decision = model.correct(BODY["text"], BODY["options"])
    answer = served.client.post("/vote", json=BODY)
    assert answer.json() == {"verdict": decision.answer}
    labels = {"route": "/vote", "status": "200"}  # counted once the answer is out
    served.wait_for(lambda: served.metric("lastword_requests_total", **labels) == 1)
    item = {"prompt": BODY["text"], "candidates": BODY["options"]}
    assert served.client.post("/v1/correct", json=item).json()["answer"] == decision.answer


def test_its_refusals_have_its_form_and_unknown_paths_the_default_form(served):
    answer = served.client.post("/vote", json={"text": "w5"})
    assert (answer.status_code, answer.headers["x-refusal"]) == (400, "invalid_body")
    assert list(answer.json()) == ["complaint"]
    assert served.client.post("/votes", json=BODY).json()["error"]["code"] == "not_found"


def test_the_schema_describes_the_answer_of_every_route(served):
    paths = served.client.get("/openapi.json").json()["paths"]
    responses = {
        path: routes["post"]["responses"] for path, routes in paths.items() if "post" in routes
    }
    assert paths["/vote"]["post"]["operationId"] == "vote"
    answer = responses["/vote"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"].endswith("/Verdict")
    assert all("default" in codes for codes in responses.values())
    assert "text/event-stream" in responses["/v1/chat/completions"]["200"]["content"]


def test_nan_is_null_in_an_answer():
    assert plain_answer({"a": float("nan"), "b": 0.5}).body == b'{"a":null,"b":0.5}'
