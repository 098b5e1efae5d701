"""One rule on every route: nothing is corrected unless the operator or the route asks for it."""

import json
from typing import Any

import pytest
from served import running

from lastword import Choice, Decider
from lastword.lab.benchmarks import find
from lastword.service.dialects import DIALECTS

NO_ANSWER = {"/v1/feedback"}
ASKS = {"/v1/correct", "/v1/correct/batch"}  # these routes ask for it by their names
PROMPT = "Question: Which goods come from Baevwick? Answer:"
GOODS = ["green wool combs", "pale cedar boats", "clay lamps"]


@pytest.fixture(scope="module")
def asked() -> tuple[str, list[str]]:
    """A text and options that TRACE overrides in the prompt of a decision."""
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
    said = [{"role": "user", "content": text}]
    return {
        "/v1/correct": item,
        "/v1/correct/batch": {"items": [item]},
        "/v1/completions": {"prompt": PROMPT, "guided_choice": GOODS},
        "/v1/chat/completions": {"messages": said, "guided_choice": options},
        "/v1/decisions": {"model": model, "input": text, "questions": listed},
        "/v1/systemone": {"model": model, "state": text, "questions": mapped},
    }


def reasons(path: str, content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    if path in ASKS:
        return value
    if "answers" not in value:
        return value["lastword"]
    answers = value["answers"]
    (own,) = answers if isinstance(answers, list) else answers.values()
    return own["lastword"] if "lastword" in own else own["x_lastword"]


@pytest.mark.parametrize("options", [{}, {"correction": "trace"}, {"shadow": True}])
def test_nothing_is_corrected_unasked_on_any_route(asked, options):
    settings = {"shadow": True} if options.pop("shadow", False) else {}
    with running(Decider.demo(**options), **settings) as served:
        sent = bodies(served.service.name, *asked)
        posts = {r.path for d in DIALECTS for r in d.routes if r.method == "POST"}
        assert posts - NO_ANSWER == {*sent}
        for path, body in sent.items():
            answer = served.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            told = reasons(path, answer.content)
            corrects = not settings and (bool(options) or path in ASKS)
            assert told["corrected"] is corrects, path
            assert told["method"] == ("trace" if corrects else "model"), path
