"""The service answers as the library does, refuses in the right words, and outlives bad items."""

import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from families import random_items
from served import BODY, as_body, code_of, running, together

import lastword
from lastword.decide.answer import answered_by
from lastword.errors import InputError, NonFiniteError
from lastword.service.settings import Settings

# What comes out


def as_served(expected: dict) -> dict:
    """The service says `model` where nothing corrects."""
    return expected | {"method": answered_by(expected["method"], expected["operator"])}


def assert_same(told: dict, expected: dict) -> None:
    """Equal but for float noise: a batch may round otherwise than an item alone."""
    expected = as_served(expected)
    assert told.keys() == expected.keys()
    for key, value in expected.items():
        if key in ("scores", "base_scores", "probabilities", "d_eff"):
            assert told[key] == pytest.approx(value, abs=1e-4), key
        elif key not in ("gates", "trajectory", "t_scores"):
            assert told[key] == value, key


@pytest.mark.parametrize(
    ("more", "how"),
    [
        ({}, {}),
        ({"full": True, "id": "one"}, {"read": "all"}),
        ({"prompt": "w5\n", "separator": ""}, {"separator": ""}),
    ],
)
def test_a_decision_is_the_librarys_own(plain, model, more, how):
    body = BODY | more
    answer = plain.client.post("/v1/correct", json=body)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    decision = model.correct(body["prompt"], BODY["candidates"], **how)
    named = {"id": "one"} if "id" in more else {}
    assert answer.json() == named | as_served(decision.to_dict(full="full" in more))
    assert "full" not in more or len(answer.json()["t_scores"]) == 3


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_batch_streams_one_line_an_item_in_order(plain, model, kind):
    items = random_items(3, 90)
    lines = [json.dumps(as_body(item)) for item in items]
    lines[4] = json.dumps({"id": "bad", "prompt": "w5", "candidates": [" "]})
    lines[5] = json.dumps({"prompt": "w5", "candidates": "w6"})
    body = "\n".join(lines) if kind.endswith("ndjson") else f'{{"items": [{",".join(lines)}]}}'
    answer = plain.client.post("/v1/correct/batch", content=body, headers={"content-type": kind})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert [t["id"] for t in told] == [*"0123", "bad", "6", *(str(i) for i in range(6, 90))]
    assert [t["error"]["code"] for t in told[4:6]] == ["item", "item"]
    assert "candidate 0 is blank" in told[4]["error"]["message"]
    for i, decision in enumerate(model.correct_many(items)):
        if i not in (4, 5):
            assert_same(told[i], decision.to_dict())


def test_the_model_says_what_it_is(plain):
    told = plain.client.get("/v1/model").json()
    assert told["schema"] == 1 and told["depth"] == 6 and told["invariant"] == 2.0
    assert told["theta"]["tau_dim"] == 1.0015 and told["shadow"] is False


def test_probes_and_counters(plain):
    assert plain.client.get("/healthz").json() == {"schema": 1, "status": "ok"}
    assert plain.client.get("/readyz").json()["status"] == "ready"
    before = plain.metric("lastword_requests_total", route="/v1/correct", status="200")
    plain.client.post("/v1/correct", json=BODY)
    scraped = plain.client.get("/metrics").text
    assert f'lastword_requests_total{{route="/v1/correct",status="200"}} {before + 1}' in scraped
    told = {"version": lastword.__version__, "model": plain.service.name}
    assert plain.events("started")[0] | told == plain.events("started")[0]
    assert plain.metric("lastword_info", **told) == 1
    assert "lastword_decisions_total{" in scraped and "lastword_batch_items_bucket{" in scraped


# Who may ask


def test_a_token_guards_every_route_but_the_probes(model):
    with running(model, token="letmein\n") as served:  # as files end
        for path in ("/v1/model", "/metrics", "/docs", "/openapi.json", "/nothing"):
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


def test_only_loopback_goes_without_a_token():
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(InputError, match="LASTWORD_TOKEN"):
            Settings(host=host)
        assert Settings(host=host, token="x").token == "x"
    assert Settings(host="::1").loopback and Settings(host="localhost").loopback
    with pytest.raises(InputError, match="empty"):
        Settings(token=" ")
    for token in ("a\nb", "schlüssel"):
        with pytest.raises(InputError, match="one line of ASCII"):
            Settings(token=token)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_deadline_ends(seconds):
    for name in ("deadline_seconds", "header_seconds", "feedback_seconds"):
        with pytest.raises(InputError, match="positive numbers of seconds"):
            Settings(**{name: seconds})


# Requests together


@pytest.mark.parametrize(("most", "passes"), [(64, [1, 6]), (1, [1] * 7)])
def test_requests_that_wait_together_are_computed_together(held, model, most, passes):
    items = random_items(5, 6)
    with running(held, batch_items=most) as served:
        answers = together(served, held, [as_body(item) for item in items])
    assert [len(g) for g in held.groups] == passes
    for item, told in zip(items, answers, strict=True):
        expected = model.correct(item.prompt, item.candidates).to_dict()
        assert_same(told.json(), expected | {"id": item.id})


def test_a_failing_item_takes_no_neighbour_down(held):
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


def test_the_deadline_is_kept_and_what_is_late_is_not_computed(held):
    with running(held, deadline_seconds=1.0) as served:
        held.go.clear()
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": "one"})
            served.wait_for(lambda: held.busy)
            two = pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": "two"})
            for answer in (one.result(), two.result()):
                assert answer.status_code == 504 and code_of(answer) == "deadline"
        held.go.set()
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
    assert [g for g in held.groups if "two" in g] == []


# Shadow, logs, the end


def test_shadow_answers_with_the_base_and_tells_the_log(model):
    items = random_items(11, 60)
    decisions = list(model.correct_many(items))
    changed = [d for d in decisions if d.corrected]
    assert changed, "the test needs items that correction changes"
    with running(model, shadow=True) as served:
        body = {"items": [as_body(i) for i in items]}
        lines = served.client.post("/v1/correct/batch", json=body).text.splitlines()
        assert served.client.get("/v1/model").json()["shadow"] is True
        shadows = served.events("shadow")
        counted = served.client.get("/metrics").text
    for line, decision in zip(lines, decisions, strict=True):
        told = json.loads(line)
        assert told["index"] == told["base_index"] == decision.base_index
        assert (told["method"], told["operator"]) == ("model", "base") and not told["corrected"]
        assert told["scores"] == told["base_scores"] and told["gates"] == {}
    assert sum(s["changed"] for s in shadows) == len(changed)
    assert [s["index"] for s in shadows] == [d.index for d in decisions]
    totals = re.findall(r"lastword_shadow_changes_total\{.*\} (.*)", counted)
    assert sum(map(float, totals)) == len(changed)


def test_logs_have_no_prompts_unless_asked(model):
    secret = {"prompt": "w5 w77 w5", "candidates": ["w78 w8", "w9"], "id": "w79"}
    bad = secret | {"candidates": ["w78", "w78"]}
    for asked in (False, True):
        with running(model, log_prompts=asked) as served:
            answer = served.client.post("/v1/correct", json=secret)
            served.client.post("/v1/correct", json=bad)
            served.wait_for(lambda: len(served.events("request")) == 2)  # noqa: B023
            log = json.dumps([served.events("decision"), served.events("request")])
            (decision,) = served.events("decision")
        assert decision["request"] == answer.headers["x-request-id"]
        assert ("w77" in log, "w78" in log, "w79" in log) == (asked,) * 3


def test_a_callers_own_request_id_is_kept_where_it_is_one(plain):
    for given, kept in (("trace-7/a", True), ("two words", False), ("x" * 129, False)):
        answer = plain.client.post("/v1/correct", json=BODY, headers={"X-Request-ID": given})
        name = answer.headers["x-request-id"]
        assert (name == given) is kept
        plain.wait_for(lambda: plain.events("request")[-1]["request"] == name)  # noqa: B023


def test_stopping_answers_what_was_accepted_and_turns_the_rest_away(held):
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
    assert not served.service.alive
    assert served.events("stopped")[-1]["unanswered"] == 0
