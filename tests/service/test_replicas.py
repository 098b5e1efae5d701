"""Certified services that share a Postgres database: one sequence of answers and labels."""

import io
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from math import log

import pytest
from certified import ITEMS, ask, label
from served import code_of, running
from sqlalchemy import text

from lastword import Decider
from lastword.errors import InputError
from lastword.lab.demo import items
from lastword.service.app import create_app
from lastword.service.database import Database, DatabaseError
from lastword.service.log import Log
from lastword.service.settings import Settings


@pytest.fixture(scope="module")
def model(certificate):
    return Decider.demo(certificate=certificate)


@pytest.fixture
def pair(model, database):
    """Two services on one database; after an alarm they return the model's answers."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(model, state=database, on_alarm="shadow")) for _ in range(2)
        ]


def oversight(service):
    return service.client.get("/v1/model").json()["oversight"]


def test_services_on_one_database_share_all_answers_and_labels(model, pair, database):
    with running(model) as alone:
        for place, item in enumerate([*ITEMS[:30], *ITEMS[:3]]):
            here, there = pair[place % 2], pair[(place + 1) % 2]
            answers = [ask(service, item) for service in (here, alone)]
            results = [
                label(service, answer, answer["base_index"], group=f"{place // 2}").json()
                for service, answer in zip((there, alone), answers, strict=True)
            ]
            assert results[0] == results[1]
            assert code_of(label(here, answers[0], 0)) == "repeated_feedback"
        assert oversight(alone) == oversight(pair[0]) == oversight(pair[1])
        assert 0 < oversight(alone)["monitors"]["breaks"]["labelled"] < 30
    with running(model, state=database) as third:
        assert oversight(third) == oversight(pair[0])
        pair[0].service.oversight.drift.see({"confidence": 0.5})  # its state is out of date now
        ask(pair[0], items()[-1])
        state = oversight(third)
        assert state == oversight(pair[0])
        for service in (pair[0], third):
            test = service.service.oversight.drift.tests["confidence"]
            assert test.seen == state["remembered"]["groups"]


def test_an_alarm_of_one_service_applies_to_the_next_answer_of_the_other(
    pair, overridden, model, database
):
    here, there = pair
    remaining = iter(overridden)
    result = {"alarm": False}
    while not result["alarm"]:
        answer = ask(here, next(remaining))
        assert answer["corrected"]
        result = label(here, answer, answer["base_index"]).json()
    assert there.metric("lastword_alarm", of="breaks") == 0
    answer = ask(there, next(remaining))
    assert answer["method"] == "model" and not answer["corrected"]
    for service in pair:
        (event,) = service.events("alarm")
        assert event["broken"] == result["broken"] and event["log_wealth"] >= log(20)
        assert service.metric("lastword_alarm", of="breaks") == 1
    assert [event["event"] for event in there.events("shadow")] == ["shadow"]
    with running(model, state=database, on_alarm="shadow") as third:
        assert len(third.events("alarm")) == 1 and label(third, answer, 0).status_code == 200


def test_concurrent_requests_lose_no_label(pair):
    def both(place):
        answer = ask(pair[place % 2], ITEMS[place])
        return label(pair[(place + 1) % 2], answer, 0).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(both, range(40))) == {200}
    here, there = map(oversight, pair)
    assert here == there and here["remembered"]["labels"] == 40


def test_a_closed_connection_is_opened_again(server, pair):
    answer = ask(pair[0], ITEMS[0])
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ~ '^test'")
    assert label(pair[0], answer, 0).status_code == 200
    assert ask(pair[1], ITEMS[1])["feedback_id"] is not None


def test_a_stopped_database_costs_no_answer(server, pair, monkeypatch):
    monkeypatch.setattr("lastword.service.database.PAUSE_SECONDS", 1)
    here, there = pair
    answer = ask(here, ITEMS[0])
    server.stop()
    try:
        assert ask(here, ITEMS[1])["feedback_id"] is None
        refused = label(there, answer, 0)
        assert refused.status_code == 503 and code_of(refused) == "unkept"
        assert refused.headers["retry-after"] == "5"
        assert oversight(here)["remembered"] is None
        assert here.client.get("/readyz").status_code == 200
        assert there.metric("lastword_unkept_total") == 1
        reasons = [event["reason"] for event in there.events("failure")]
        assert len(reasons) == 1 and "secret" not in reasons[0]
    finally:
        server.start()
    there.wait_for(lambda: label(there, answer, 0).status_code == 200)
    here.wait_for(lambda: ask(here, ITEMS[2])["feedback_id"] is not None)
    assert oversight(here) == oversight(there)


def test_a_long_lock_delays_answers_only_briefly(pair, database, monkeypatch):
    monkeypatch.setattr("lastword.service.database.PAUSE_SECONDS", 0)
    hung = Database(database)
    with pytest.raises(DatabaseError), hung.event():
        begin = time.monotonic()
        ask(pair[0], ITEMS[0])
        assert time.monotonic() - begin > 1
        pair[0].wait_for(lambda: ask(pair[0], ITEMS[1])["feedback_id"] is not None)
        hung.execute(text("SELECT 1"))


@pytest.mark.parametrize(
    "body", [{"id": "a\0b"}, {"group": "a\0b"}, {"group": "\N{SNOWMAN}" * 501}]
)
def test_a_label_that_postgres_cannot_store_is_refused(pair, body):
    answer = ask(pair[0], ITEMS[0])
    refused = pair[0].client.post(
        "/v1/feedback", json={"id": answer["feedback_id"], "right": 0} | body
    )
    assert refused.status_code == 422 and code_of(refused) == "invalid_body"
    assert label(pair[0], answer, 0, group="\N{SNOWMAN}" * 500).status_code == 200


def test_a_database_of_another_certificate_is_refused(model, certificate, database):
    with running(model, state=database):
        pass
    other = Decider.demo(certificate=replace(certificate, date="later"))
    with pytest.raises(InputError, match="another certificate") as refused:
        create_app(other, Settings(state=database), Log(io.StringIO()))
    assert "secret" not in str(refused.value)


def test_an_unreachable_database_is_refused_in_one_line(model):
    # No server listens at this address.
    with pytest.raises(InputError, match="refused") as refused:
        create_app(
            model, Settings(state="postgresql://me:secret@127.0.0.1:9/x"), Log(io.StringIO())
        )
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)
