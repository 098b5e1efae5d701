"""No route corrects answers unless its name or an option of the operator says so."""

import json
from typing import Any

import pytest
from fastapi.routing import APIRoute
from served import running

from lastword import Choice, Decider
from lastword.lab.benchmarks import find
from lastword.service.dialects import DIALECTS

NO_ANSWER = {"/v1/feedback"}
CORRECTING = {"/v1/correct", "/v1/correct/batch"}  # these routes correct by their names
PROMPT = "Question: Which goods come from Baevwick? Answer:"
GOODS = ["green wool combs", "pale cedar boats", "clay lamps"]


@pytest.fixture(scope="module")
def overridden_text() -> tuple[str, list[str]]:
    """A text and options for which TRACE overrides the answer."""
    trace = Decider.demo(correction="trace")
    for example in find("demo").load().examples:
        if len(example.candidates) > 2:
            text, options = example.fields["question"], list(example.candidates)
            if trace.decide(text, {"a": Choice("", options)})["a"].corrected:
                return text, options
    raise AssertionError("TRACE overrides nothing")


def bodies(model: str, text: str, options: list[str]) -> dict[str, dict[str, Any]]:
    item = {"prompt": PROMPT, "candidates": GOODS}
    listed = [{"type": "choice", "instructions": "", "choices": options}]
    mapped = {"a": {"type": "choice", "criteria": options}}
    messages = [{"role": "user", "content": text}]
    return {
        "/v1/correct": item,
        "/v1/correct/batch": {"items": [item]},
        "/v1/chat/completions": {"messages": messages, "structured_outputs": {"choice": options}},
        "/v1/decisions": {"model": model, "input": text, "questions": listed},
        "/v1/systemone": {"model": model, "state": text, "questions": mapped},
    }


def details_of(path: str, content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    if path in CORRECTING:
        return value["items"][0] if "items" in value else value
    if "answers" not in value:
        return value["lastword"]
    answers = value["answers"]
    (answer,) = answers if isinstance(answers, list) else answers.values()
    return answer["lastword"] if "lastword" in answer else answer["x_lastword"]


@pytest.mark.parametrize("options", [{}, {"correction": "trace"}, {"shadow": True}])
def test_a_route_corrects_only_by_its_name_or_an_option_of_the_operator(overridden_text, options):
    settings = {"shadow": True} if options.pop("shadow", False) else {}
    with running(Decider.demo(**options), **settings) as served:
        sent = bodies(served.service.name, *overridden_text)
        routes = [r for d in DIALECTS for r in d.router.routes if isinstance(r, APIRoute)]
        posts = {route.path for route in routes if "POST" in route.methods}
        assert posts - NO_ANSWER == {*sent}
        for path, body in sent.items():
            answer = served.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            details = details_of(path, answer.content)
            corrects = not settings and (bool(options) or path in CORRECTING)
            assert details["corrected"] is corrects, path
            assert details["method"] == ("trace" if corrects else "model"), path
