"""The service returns the decisions of the library, guards its routes, and stops cleanly."""

import json
import math
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from families import random_items
from served import BODY, as_body, code_of, running, together

import lastword
from lastword import Decider
from lastword.decide.answer import answered_by
from lastword.errors import InputError, NonFiniteError
from lastword.service.settings import Settings

# Answers


def as_served(expected: dict) -> dict:
    """Name the method as the service does: `model` if nothing corrects."""
    return expected | {"method": answered_by(expected["method"], expected["operator"])}


def assert_same(answer: dict, expected: dict) -> None:
    """Assert equality up to rounding, which differs between a batch and a single item."""
    expected = as_served(expected)
    assert answer.keys() == expected.keys()
    for key, value in expected.items():
        if key in ("scores", "base_scores", "probabilities", "d_eff"):
            assert answer[key] == pytest.approx(value, abs=1e-4), key
        elif key not in ("gates", "trajectory", "t_scores"):
            assert answer[key] == value, key


@pytest.mark.parametrize(
    ("more", "how"),
    [
        ({}, {}),
        ({"full": True, "id": "one"}, {"read": "all"}),
        ({"prompt": "w5\n", "separator": ""}, {"separator": ""}),
    ],
)
def test_a_decision_is_that_of_the_library(plain, model, more, how):
    body = BODY | more
    answer = plain.client.post("/v1/correct", json=body)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    decision = model.correct(body["prompt"], BODY["candidates"], **how)
    named = {"id": "one"} if "id" in more else {}
    assert answer.json() == named | as_served(decision.to_dict(full="full" in more))
    assert "full" not in more or len(answer.json()["t_scores"]) == 3


def test_a_batch_is_answered_in_order_with_errors_in_their_places(plain, model):
    items = random_items(3, 40)
    bodies = [as_body(item) for item in items]
    bodies[4] = {"id": "bad", "prompt": "w5", "candidates": [" "]}
    answer = plain.client.post("/v1/correct/batch", json={"items": bodies})
    assert answer.status_code == 200
    answers = answer.json()["items"]
    assert [each["id"] for each in answers] == [*"0123", "bad", *map(str, range(5, 40))]
    assert answers[4]["error"]["code"] == "item"
    assert "candidate 0 is blank" in answers[4]["error"]["message"]
    for i, decision in enumerate(model.correct_many(items)):
        if i != 4:
            assert_same(answers[i], decision.to_dict())


def test_probes_and_counters(plain):
    assert plain.client.get("/healthz").json() == {"schema": 1, "status": "ok"}
    assert plain.client.get("/readyz").json()["status"] == "ready"
    before = plain.metric("lastword_requests_total", route="/v1/correct", status="200")
    plain.client.post("/v1/correct", json=BODY)
    scraped = plain.client.get("/metrics").text
    assert f'lastword_requests_total{{route="/v1/correct",status="200"}} {before + 1}' in scraped
    labels = {"version": lastword.__version__, "model": plain.service.name}
    assert plain.events("started")[0] | labels == plain.events("started")[0]
    assert plain.metric("lastword_info", **labels) == 1
    assert "lastword_decisions_total{" in scraped and "lastword_batch_items_bucket{" in scraped


# Access


def test_a_token_guards_every_route_but_the_probes(model):
    with running(model, token="letmein\n") as served:  # as a file may end
        for path in ("/v1/model", "/metrics", "/openapi.json", "/nothing"):
            answer = served.client.get(path)
            assert answer.status_code == 401 and code_of(answer) == "unauthorised"
        for wrong in ("Bearer letmei", "Bearer", "letmein", "Basic ???", "Bearer \xe9"):
            headers = {"authorization": wrong.encode("latin-1")}
            assert served.client.get("/v1/model", headers=headers).status_code == 401
        assert served.client.get("/healthz").status_code == 200
        right = {"authorization": "Bearer letmein"}
        assert served.client.get("/v1/model", headers=right).status_code == 200
        assert served.client.get("/v1/model", auth=("me", "letmein")).status_code == 200
        assert "security" in served.app.openapi()["paths"]["/v1/model"]["get"]


def test_only_a_loopback_host_needs_no_token():
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(InputError, match="LASTWORD_TOKEN"):
            Settings(host=host)
        assert Settings(host=host, token="x").token == "x"
    assert Settings(host="::1").loopback and Settings(host="localhost").loopback
    for token in (" ", "a\nb", "schlüssel"):
        with pytest.raises(InputError, match="one line of ASCII"):
            Settings(token=token)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_time_limits_are_positive_and_finite(seconds):
    for name in ("deadline_seconds", "header_seconds"):
        with pytest.raises(InputError, match="positive numbers of seconds"):
            Settings(**{name: seconds})


# Concurrent requests


@pytest.mark.parametrize(("most", "passes"), [(64, [1, 6]), (1, [1] * 7)])
def test_requests_that_wait_together_are_computed_together(held, model, most, passes):
    items = random_items(5, 6)
    with running(held, batch_items=most) as served:
        answers = together(served, held, [as_body(item) for item in items])
    assert [len(g) for g in held.groups] == passes
    for item, answer in zip(items, answers, strict=True):
        expected = model.correct(item.prompt, item.candidates).to_dict()
        assert_same(answer.json(), expected | {"id": item.id})


def test_a_failing_item_affects_no_other(held):
    items = random_items(7, 5)
    held.poison = {"1": NonFiniteError(3), "3": RuntimeError("w5 w6 secret")}
    with running(held) as served:
        answers = together(served, held, [as_body(item) for item in items])
        assert [a.status_code for a in answers] == [200, 503, 200, 500, 200]
        assert code_of(answers[1]) == "model" and code_of(answers[3]) == "internal"
        assert "depth 3" in answers[1].text and "secret" not in answers[3].text
        (failure,) = served.events("failure")
        assert failure["error"] == "RuntimeError" and "secret" not in json.dumps(failure)
        assert served.client.post("/v1/correct", json=BODY).status_code == 200


# Shadow, logs, stopping


def test_logs_have_no_text_of_a_request(model):
    secret = {"prompt": "w5 w77 w5", "candidates": ["w78 w8", "w9"], "id": "w79"}
    with running(model) as served:
        answer = served.client.post("/v1/correct", json=secret)
        served.client.post("/v1/correct", json=secret | {"candidates": ["w78", "w78"]})
        served.wait_for(lambda: len(served.events("request")) == 2)
        log = json.dumps([served.events("decision"), served.events("request")])
        (decision,) = served.events("decision")
    assert decision["request"] == answer.headers["x-request-id"]
    assert not any(word in log for word in ("w77", "w78", "w79"))


def test_a_valid_request_id_of_the_caller_is_used(plain):
    for request_id, valid in (("trace-7/a", True), ("two words", False), ("x" * 129, False)):
        answer = plain.client.post("/v1/correct", json=BODY, headers={"X-Request-ID": request_id})
        name = answer.headers["x-request-id"]
        assert (name == request_id) is valid
        plain.wait_for(lambda: plain.events("request")[-1]["request"] == name)  # noqa: B023


def test_stopping_answers_accepted_requests_and_refuses_new_ones(held):
    with running(held, drain_seconds=0.5) as served:
        held.go.clear()
        with ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(served.client.post, "/v1/correct", json=BODY) for _ in range(4)]
            served.wait_for(lambda: served.service.traffic.inside == 4)
            assert served.client.get("/readyz").status_code == 200
            served.server.stop()
            served.wait_for(lambda: served.service.traffic.draining)
            late = served.client.post("/v1/correct", json=BODY)
            assert late.status_code == 503 and code_of(late) == "draining"
            assert late.headers["connection"] == "close" and late.headers["retry-after"] == "1"
            assert served.client.get("/readyz").status_code == 503
            threading.Timer(0.3, held.go.set).start()
            assert [s.result().status_code for s in sent] == [200] * 4
    assert not served.service.line.alive
    assert served.events("stopped")[-1]["unanswered"] == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_command_on_the_page_of_the_service_is_answered():
    page = Path(__file__).resolve().parents[2] / "docs" / "service.md"
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    (command,) = (block for block in blocks if "v1/correct" in block)
    with running(Decider.demo()) as served:
        command = command.replace("http://127.0.0.1:8000", served.url)
        out = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    answer = json.loads(out.stdout)
    assert answer["answer"] == "pale cedar boats" and answer["corrected"]
