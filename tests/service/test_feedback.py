"""Labels, the alarm, drift, and a state that survives a restart."""

import io
import random
import sqlite3
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest
from certified import ITEMS, ask, label
from served import code_of, running
from sqlalchemy import text

from lastword import Decider, Tracer
from lastword.errors import InputError
from lastword.lab.demo import items
from lastword.service.app import create_app
from lastword.service.ledger import Entry, Ledger
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.oversight import Oversight
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.trust.drift import Drift, statistics
from lastword.trust.monitor import Monitor


@pytest.fixture(scope="module")
def model(certificate):
    return Decider.demo(certificate=certificate)


def test_an_answer_takes_one_label(model, overridden):
    item, other = overridden[:2]
    with running(model) as service:
        answer = ask(service, item)
        assert answer["corrected"] and answer["withheld"] is None
        result = label(service, answer, answer["base_index"]).json()
        assert result["overridden"] and result["was_broken"] and not result["was_fixed"]
        assert (result["labelled"], result["broken"], result["alarm"]) == (1, 1, False)
        assert code_of(label(service, answer, answer["index"])) == "repeated_feedback"
        second = ask(service, other)
        result = label(service, second, [second["index"]]).json()
        assert result["was_fixed"] and (result["labelled"], result["broken"]) == (2, 1)
        assert service.metric("lastword_labelled", of="breaks") == 2
        assert service.metric("lastword_broken", of="breaks") == 1
        assert service.metric("lastword_fixed_total") == 1
        wealth = Monitor(0.1, 0.05).seen(True).seen(False).log_wealth
        assert service.metric("lastword_monitor_log_wealth", of="breaks") == pytest.approx(wealth)


def test_invalid_feedback_is_refused(model):
    places: list[Any] = [-1, [], True, 99]
    with running(model) as service:
        decision = ask(service, ITEMS[0])
        for wrong in (*({"right": place} for place in places), {}):
            body = {"id": decision["feedback_id"]} | wrong
            refused = service.client.post("/v1/feedback", json=body)
            assert (code_of(refused), refused.status_code) == ("invalid_body", 422)
        unknown = service.client.post("/v1/feedback", json={"id": "nobody", "right": 0})
        assert (code_of(unknown), unknown.status_code) == ("unknown_answer", 404)
        # The refusals did not use up the answer.
        assert label(service, decision, 0).status_code == 200


def test_without_a_certificate_feedback_is_refused():
    with running(Decider.demo()) as service:
        answer = ask(service, ITEMS[0])
        assert "feedback_id" not in answer
        refused = service.client.post("/v1/feedback", json={"id": "x", "right": 0})
        assert code_of(refused) == "uncertified" and refused.status_code == 409
        description = service.client.get("/v1/model").json()
        assert not description["certified"] and description["certificate"] is None
        assert "no guarantee" in service.events("uncertified")[0]["told"]
    for settings in (Settings(on_alarm="shadow"), Settings(state=Path("state.db"))):
        with pytest.raises(InputError, match="give --certificate"):
            create_app(Decider.demo(), settings)


def test_a_label_token_separates_callers_from_labellers(model):
    def bearer(token):
        return {"authorization": f"Bearer {token}"}

    with running(model, token="ask", label_token="judge") as service:
        body = {"prompt": ITEMS[0].prompt, "candidates": list(ITEMS[0].candidates)}
        answer = service.client.post("/v1/correct", json=body, headers=bearer("ask"))
        judgement = {"id": answer.json()["feedback_id"], "right": 0}
        for path, content, token in (("feedback", judgement, "ask"), ("correct", body, "judge")):
            refused = service.client.post(f"/v1/{path}", json=content, headers=bearer(token))
            assert (refused.status_code, code_of(refused)) == (401, "unauthorised")
        accepted = service.client.post("/v1/feedback", json=judgement, headers=bearer("judge"))
        assert accepted.status_code == 200 and service.events("labels") == []
    with pytest.raises(InputError, match="choose another"):
        Settings(token="ask", label_token="ask\n")
    with running(model, token="ask") as service:
        assert "--label-token" in service.events("labels")[0]["told"]


@pytest.mark.parametrize("on_alarm", ["log", "shadow"])
def test_too_many_breaks_raise_an_alarm(model, overridden, on_alarm, tmp_path):
    with running(model, on_alarm=on_alarm, state=tmp_path / "state.db") as service:
        result = {"alarm": False}
        remaining = iter(overridden)
        for item in remaining:
            if result["alarm"]:
                break
            answer = ask(service, item)
            assert answer["corrected"]
            result = label(service, answer, answer["base_index"]).json()
        assert result["alarm"] and service.metric("lastword_alarm", of="breaks") == 1
        (event,) = service.events("alarm")
        assert event["broken"] == result["broken"] and event["log_wealth"] >= log(20)
        assert service.client.get("/readyz").status_code == 200
        description = service.client.get("/v1/model").json()
        assert description["oversight"]["monitors"]["breaks"]["alarm"] and description["certified"]
        assert description["shadow"] == (on_alarm == "shadow")
        after = ask(service, next(remaining))
        assert after["corrected"] == (on_alarm == "log")
        assert after["method"] == ("model" if on_alarm == "shadow" else "trace")
        # A label judges the certified correction, even if it is not shown.
        assert label(service, after, after["base_index"]).json()["was_broken"]
        assert len(service.events("alarm")) == 1
        slip = service.client.get("/v1/model").json()["oversight"]["monitors"]["breaks"]["log_slip"]
    with running(model, on_alarm=on_alarm, state=tmp_path / "state.db") as service:
        (restored,) = service.events("alarm")  # a restart reports the alarm again
        assert restored["broken"] == event["broken"] + 1 and restored["alarm"]
        monitor = service.client.get("/v1/model").json()["oversight"]["monitors"]["breaks"]
        assert monitor["log_slip"] == slip


def test_a_change_after_a_good_start_is_reported_before_the_alarm(model, overridden):
    with running(model) as service:
        oversight = service.service.oversight
        for _ in range(300):
            oversight.monitors["breaks"] = oversight.monitors["breaks"].seen(broken=False)
        result = {"slipping": False}
        for item in overridden:
            if result["slipping"]:
                break
            answer = ask(service, item)
            result = label(service, answer, answer["base_index"]).json()
        assert result["slipping"] and not result["alarm"]
        assert (
            service.metric("lastword_slipping", of="breaks") == 1
            and service.metric("lastword_alarm", of="breaks") == 0
        )
        (event,) = service.events("slipping")
        assert event["broken"] == result["broken"] and event["log_slip"] >= log(20_000)
        assert service.client.get("/v1/model").json()["oversight"]["monitors"]["breaks"]["slipping"]
        assert ask(service, item)["corrected"]  # the warning changes no answer


def test_a_restart_restores_the_state(model, trace_decisions, certificate, tmp_path):
    path = tmp_path / "state.db"
    with running(model, state=path) as service:
        answers = [ask(service, item) for item in ITEMS[:12]]
        label(service, answers[0], 0)
        before = service.client.get("/v1/model").json()["oversight"]
    with running(model, state=path) as service:
        assert service.client.get("/v1/model").json()["oversight"] == before
        assert code_of(label(service, answers[0], 0)) == "repeated_feedback"
        assert label(service, answers[1], 0).json()["labelled"] == 2
        ask(service, ITEMS[12])
        after = service.client.get("/v1/model").json()["oversight"]
        with pytest.raises(InputError, match="cannot keep state"), running(model, state=path):
            pass  # one service per file
    drift = Drift(certificate.reference, 0.05)
    for decision in trace_decisions[:13]:
        drift.see(statistics(decision.to_dict()))
    wealth = {name: test.log_wealth for name, test in drift.tests.items()}
    assert after["drift"] == pytest.approx(wealth, abs=0.02)  # ties differ in a batch
    other = Decider.demo(certificate=replace(certificate, date="later"))
    with pytest.raises(InputError, match="of another certificate"), running(other, state=path):
        pass


def test_a_label_that_cannot_be_stored_is_not_counted(model, overridden, tmp_path):
    item = overridden[0]
    with running(model, state=tmp_path / "state.db") as service:
        answer = ask(service, item)
        execute = service.service.oversight.ledger._execute
        execute(text("PRAGMA query_only = 1"))  # as if the disk had become read-only
        refused = label(service, answer, answer["base_index"])
        assert refused.status_code == 503 and code_of(refused) == "unkept"
        assert service.metric("lastword_labelled", of="breaks") == 0
        assert ask(service, item)["feedback_id"] is None
        execute(text("PRAGMA query_only = 0"))
        assert label(service, answer, answer["base_index"]).json()["labelled"] == 1
        failures = service.events("failure")
        assert {event["at"] for event in failures} == {"state"}
        assert all("readonly" in event["reason"] for event in failures)
        assert service.metric("lastword_unkept_total") == len(failures) == 2


def broken_page(path):
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):  # the first page describes the others
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)


def bad_json(name, path):
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT OR REPLACE INTO state VALUES (?, '{')", (name,))
    connection.close()


@pytest.mark.parametrize(
    "spoil",
    [
        broken_page,
        lambda path: path.write_text("no database at all, and long enough to be one " * 40),
        *(partial(bad_json, name) for name in ("monitors", "drift", "certificate")),
    ],
)
def test_an_unreadable_state_is_refused_in_one_line(model, tmp_path, spoil):
    path = tmp_path / "state.db"
    with running(model, state=path) as service:
        for item in ITEMS[:3]:
            ask(service, item)
    spoil(path)
    with pytest.raises(InputError, match="state") as refused:
        create_app(model, Settings(state=path), Log(io.StringIO()))
    assert "\n" not in str(refused.value)


def test_a_kill_loses_at_most_the_current_event(forks, tmp_path):
    path = tmp_path / "state.db"
    program = """
import sys
from pathlib import Path
from lastword.service.app import create_app
from lastword.service.ledger import Entry, Ledger
ledger = Ledger(Path(sys.argv[1]), "c", 10**6)
count = 0
while True:
    name = str(count)
    with ledger.event():
        ledger.remember(name, Entry(2, [0], [1], True), "t")
        ledger.see({"s": 1.0}, {"seen": {"s": count + 1}})
    count += 1
    with ledger.event():
        ledger.label(name, None, [0], {"labelled": count})
    print(count, flush=True)
"""
    with forks.start("-c", program, path) as writing:
        for _ in range(200):
            line = writing.stdout.readline()
        writing.kill()
        rest = writing.stdout.read().split()
    last = int((rest or [line])[-1])
    ledger = Ledger(path, "c", 10**6)
    assert last >= 200 and last <= ledger.state("monitors")["labelled"] <= last + 1
    assert last <= len(ledger.seen()["s"]) <= last + 2
    with pytest.raises(Refusal, match="has its label"):
        ledger.find(str(last - 1))


def test_drift_compares_new_items_with_the_certified_ones(model):
    new = [item for item in items() if len(item.candidates) > 2 and item not in ITEMS]
    decisions = zip(Tracer.demo().correct_many(new), new, strict=True)
    easy = sorted(decisions, key=lambda pair: -statistics(pair[0].to_dict())["confidence"])
    with running(model) as service:
        for item in ITEMS[:60]:
            ask(service, item)
        assert service.events("drift") == []
        for _, item in easy[:60]:
            ask(service, item)
        warned = {event["statistic"] for event in service.events("drift")}
        description = service.client.get("/v1/model").json()
        assert warned and warned == set(description["oversight"]["drifted"])
        for name in warned:
            assert service.metric("lastword_drifted", statistic=name) == 1
            assert service.metric("lastword_drift_log_wealth", statistic=name) > 0
        assert description["shadow"] is False


def test_a_group_counts_once_also_after_a_restart(model, overridden, tmp_path):
    one, two, three = overridden[:3]
    again = replace(one, prompt=one.prompt.replace(" ", "  ").upper())
    same = {"candidates": list(reversed(one.candidates))}

    def judge(service, answer, **options):
        result = label(service, answer, answer["base_index"], **options).json()
        return result["was_broken"], result["counts"], result["labelled"]

    with running(model, state=tmp_path / "state.db") as service:
        answers = [ask(service, item) for item in (one, two, three)]
        later = ask(service, one, **same)
        assert judge(service, later) == (True, True, 1)  # the first label of the group
        assert judge(service, answers[0]) == (True, False, 1)
        assert (
            service.metric("lastword_labelled", of="breaks")
            == service.metric("lastword_broken", of="breaks")
            == 1
        )
        assert label(service, ask(service, again), 0).json()["counts"] is False
        assert judge(service, answers[1], group="g") == (True, True, 2)
    with running(model, state=tmp_path / "state.db") as service:
        assert judge(service, answers[2], group="g") == (True, False, 2)
        # The text already has a label.
        assert judge(service, ask(service, three)) == (True, False, 2)


def test_callers_cannot_join_groups(model, overridden):
    chosen = overridden[:20]
    with running(model, token="ask", label_token="judge") as service:
        service.client.headers["authorization"] = "Bearer ask"
        answers = [ask(service, item, id=f"pair/{i}/a") for i, item in enumerate(chosen)]
        for i, item in enumerate(chosen):
            ask(service, chosen[0], id=f"pair/{i}/b")
            ask(service, item, id="chain/a")
        service.client.headers["authorization"] = "Bearer judge"
        counts = [label(service, a, a["index"]).json()["counts"] for a in answers]
    assert sum(counts) == len({item.prompt for item in chosen}) == len(chosen)


def test_counts_include_only_the_answers_in_the_ledger():
    ledger, entry = Ledger(None, "c", 5), Entry(2, [0], [1], True)
    for place in range(7):
        ledger.remember(str(place), entry, f"text {place // 2}")
    ledger.label("5", None, [0], {})
    assert ledger.counts() == {"answers": 5, "groups": 3, "labels": 1}
    assert not ledger.first("4", None) and ledger.first("6", None)
    assert ledger.knows("text 1") and not ledger.knows("text 0")
    ledger.close()


def test_repeated_items_are_no_drift(certificate, trace_decisions):
    alone = together = 0
    answers = [(decision, statistics(decision.to_dict())) for decision in trace_decisions]
    for seed in range(4):
        draw = random.Random(seed)
        labelled = [values for _, values in draw.choices(answers, k=100)]
        reference = {n: tuple(v[n] for v in labelled if n in v) for n in certificate.reference}
        resampled = replace(certificate, reference=reference)
        oversight = Oversight(resampled, Settings(), Metrics(), Log(io.StringIO()))
        by_answer = Drift(reference, certificate.terms.delta)
        for place, (decision, values) in enumerate(draw.choices(answers, k=300)):
            item = Item(f"question {place}", decision.candidates)
            for _ in range(3):
                oversight.answered(decision, item)
                by_answer.see(values)
        assert max(test.seen for test in oversight.drift.tests.values()) == 300
        together += bool(oversight.drift.warned)
        alone += bool(by_answer.warned)
        oversight.ledger.close()
    assert together <= 1 and alone >= 2
