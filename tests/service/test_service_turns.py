"""Whoever waits has a turn: what one request may take, and what becomes of the others."""

import json
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from families import random_items
from served import PATIENCE_SECONDS, Held, running, tracer

from lastword import Item
from lastword.service.orders import characters
from lastword.text.tokens import count_tokens

BODY = {"prompt": "w5 w6 w7", "candidates": ["w8 w9", "w10", "w11 w12 w13"]}
ALONE = Item("w5 w6 w7", ("w8 w9", "w10", "w11 w12 w13"))
QUESTION = {"question": "w5 w6 w7", "k": 2, "max_new_tokens": 40}


@contextmanager
def slowed(model, seconds: float):
    """The model, each of whose passes takes a while; gives the list of those that ran."""
    passes: list[float] = []

    def wait(*_):
        time.sleep(seconds)
        passes.append(time.monotonic())

    hook = model.backbone.model.register_forward_hook(wait)
    try:
        yield passes
    finally:
        hook.remove()


def turns_of(batcher) -> list[str]:
    """Whose turn it is, from now on."""
    turns: list[str] = []
    following = batcher._next

    def noted():
        orders = following()
        turns.extend(order.kind for order in orders[:1])
        return orders

    batcher._next = noted
    return turns


def code_of(answer) -> str:
    return answer.json()["error"]["code"]


def as_body(item) -> dict:
    return {"id": item.id, "prompt": item.prompt, "candidates": list(item.candidates)}


# What one request may take


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("correct", {"prompt": "w5 " * 316_000, "candidates": [f"w{i}" for i in range(64)]}),
        ("ask", {"question": "w5 " * 300_000, "k": 8}),
    ],
)
def test_text_that_is_long_to_read_is_refused_before_it_is_read(model, monkeypatch, path, body):
    read = []
    encode = type(model).encode

    def noted(self, items, *more):
        read.append(items)
        return encode(self, items, *more)

    monkeypatch.setattr(type(model), "encode", noted)
    with running(model) as served:
        answer = served.client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 413 and code_of(answer) == "too_many_characters"
        assert read == []
        batch = {"items": [BODY, body]} if path == "correct" else {"items": [BODY]}
        lines = served.client.post("/v1/correct/batch", json=batch).text.splitlines()
    assert "error" not in json.loads(lines[0])
    assert [json.loads(line)["error"]["code"] for line in lines[1:]] == (
        ["too_many_characters"] if path == "correct" else []
    )


def test_of_a_prompt_that_cannot_fit_only_a_beginning_is_read(model, monkeypatch):
    sizes, context = [], model.profile.context

    def noted(text, tokenizer):
        sizes.append(len(text))
        return count_tokens(text, tokenizer)

    monkeypatch.setattr("lastword.service.reading.count_tokens", noted)
    monkeypatch.setattr(type(model), "encode", lambda self, items, *more: 1 / 0 if items else [])
    with running(model) as served:
        body = BODY | {"prompt": "w5 " * 200_000}
        answer = served.client.post("/v1/correct", json=body)
    assert answer.status_code == 422 and code_of(answer) == "item"
    assert f"context is {context}" in answer.text
    assert sizes and sum(sizes) < 32 * context


def test_a_long_prompt_that_fits_or_is_cut_is_answered(model):
    words = model.profile.context // 2
    with running(model) as served:
        body = BODY | {"prompt": "w5 " * words}
        assert served.client.post("/v1/correct", json=body).status_code == 200
    with running(tracer(overflow="truncate")) as served:
        body = BODY | {"prompt": "w5 " * 40 * words}
        assert served.client.post("/v1/correct", json=body).status_code == 200


def test_a_question_takes_no_more_tokens_than_an_item(model):
    with running(model, tokens=100) as served:
        answer = served.client.post("/v1/ask", json={"question": "w5 " * 10, "k": 10})
        assert answer.status_code == 422 and code_of(answer) == "too_many_tokens"
        assert "lower k" in answer.text
        few = {"question": "w5 w6", "k": 2, "max_new_tokens": 4}
        assert served.client.post("/v1/ask", json=few).status_code == 200


def test_the_models_thread_reads_no_text(model, monkeypatch):
    names: list[str] = []
    encode = type(model).encode

    def noted(self, *arguments):
        names.append(threading.current_thread().name)
        return encode(self, *arguments)

    monkeypatch.setattr(type(model), "encode", noted)
    with running(model) as served:
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
    assert names == ["lastword-tokens"]


# Turns


def test_corrections_do_not_wait_for_questions(model):
    body = QUESTION | {"max_new_tokens": 16}
    with slowed(model, 0.02) as passes, running(model, queue_asks=4) as served:
        with ThreadPoolExecutor(12) as pool:
            asks = [pool.submit(served.client.post, "/v1/ask", json=body) for _ in range(12)]
            served.wait_for(lambda: sum(a.done() for a in asks) >= 7 and len(passes) > 5)
            assert {code_of(a.result()) for a in asks if a.done()} == {"queue_full"}
            assert served.client.get("/readyz").status_code == 200
            corrector = served.service.corrector
            turns = turns_of(corrector.batcher)
            for _ in range(5):
                before = len(turns)
                assert corrector.start(ALONE, "decide").result(PATIENCE_SECONDS).index >= 0
                # The step in hand, and those while it was tokenised; 32 wait.
                assert turns[before:].index("item") < 10
            answers = [a.result() for a in asks]
    answered = [a for a in answers if a.status_code == 200]
    assert len(answered) in (4, 5)
    assert all(sum(a.json()["counts"]) <= 2 for a in answered)


def test_questions_do_not_wait_for_corrections(model):
    short = QUESTION | {"max_new_tokens": 12}
    with slowed(model, 0.02), running(model, deadline_seconds=60.0) as served:
        stop = threading.Event()

        def send() -> int:
            count = 0
            while not stop.is_set():
                assert served.client.post("/v1/correct", json=BODY).status_code == 200
                count += 1
            return count

        with ThreadPoolExecutor(4) as pool:
            senders = [pool.submit(send) for _ in range(4)]
            served.wait_for(lambda: served.metric("lastword_batch_items_count") > 5)
            before = served.metric("lastword_batch_items_count")
            assert served.client.post("/v1/ask", json=short).status_code == 200
            meanwhile = served.metric("lastword_batch_items_count") - before
            stop.set()
            assert all(s.result() > 0 for s in senders)
    # 24 passes of the question in 8 steps: as much time for the corrections between them.
    assert 3 <= meanwhile < 60


def test_a_question_ends_at_its_deadline(model):
    with slowed(model, 0.2) as passes, running(model, deadline_seconds=3.0) as served:
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        alone = len(passes)
        answer = served.client.post("/v1/ask", json=QUESTION)
        assert answer.status_code == 504 and code_of(answer) == "deadline"
        served.wait_for(lambda: not served.service.corrector.batcher.waiting("ask"))
        ran = len(passes)
        assert alone < ran < 30  # of 80
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert len(passes) == ran + alone  # nothing went on behind it


def test_a_question_ends_when_its_client_leaves(model):
    with slowed(model, 0.05) as passes, running(model) as served:
        with httpx.Client(base_url=served.url, trust_env=False) as leaving:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/ask", json=QUESTION, timeout=0.5)
        served.wait_for(lambda: not served.service.corrector.batcher.waiting("ask"))
        assert len(passes) < 100


# What fails


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_models_thread_outlives_whatever_is_raised_on_it(held, end):
    held.poison = {"1": end}
    with running(held) as served:
        begun = time.monotonic()
        answer = served.client.post("/v1/correct", json=BODY | {"id": "1"})
        assert answer.status_code == 500 and code_of(answer) == "internal"
        assert time.monotonic() - begun < 15  # not at the deadline
        (failure,) = served.events("failure")
        assert failure["error"] == type(end).__name__ and failure["at"] == "lastword-model"
        for path in ("/healthz", "/readyz"):
            assert served.client.get(path).status_code == 200
        assert served.client.post("/v1/correct", json=BODY).status_code == 200


def test_a_tokenizer_that_ends_the_process_ends_its_request(model, monkeypatch):
    encode = type(model).encode

    def ending(self, items, *more):
        if items[0].id == "1":
            raise SystemExit(3)
        return encode(self, items, *more)

    monkeypatch.setattr(type(model), "encode", ending)
    with running(model) as served:
        assert served.client.post("/v1/correct", json=BODY | {"id": "1"}).status_code == 500
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert served.events("failure")[0]["at"] == "lastword-tokens"


def test_a_thread_that_has_ended_is_said(model):
    with running(model) as served:
        batcher = served.service.corrector.batcher
        batcher.close(10.0)
        assert not batcher.alive
        assert served.client.get("/healthz").status_code == 500
        assert served.client.get("/readyz").status_code == 503


class Ballast:
    """What a pass holds in memory."""


class Narrow(Held):
    """A tracer whose memory is enough for two items at most, and for none called `huge`."""

    lacking: BaseException
    held: list[weakref.ref[Ballast]]

    def decide_group(self, encoded: Any, *more: Any, **named: Any) -> Any:
        ballast = Ballast()
        assert not any(ref() for ref in self.held), "the failed pass kept its memory"
        if len(encoded) > 2 or any(e.item.id == "huge" for e in encoded):
            self.held.append(weakref.ref(ballast))
            raise type(self.lacking)(*self.lacking.args)  # anew: an error keeps its frames
        return super().decide_group(encoded, *more, **named)


@pytest.mark.parametrize(
    "lacking",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    ],
)
def test_memory_that_is_lacking_for_one_takes_no_other_down(model, lacking):
    narrow = Narrow(model)
    narrow.held, narrow.lacking = [], lacking
    items = [as_body(i) for i in random_items(5, 5)] + [BODY | {"id": "huge"}]
    with running(narrow) as served:
        narrow.go.clear()
        with ThreadPoolExecutor(7) as pool:
            first = pool.submit(served.client.post, "/v1/correct", json=BODY)
            served.wait_for(lambda: narrow.busy)
            rest = [pool.submit(served.client.post, "/v1/correct", json=i) for i in items]
            served.wait_for(lambda: len(served.service.corrector.batcher._queues.items) == 6)
            narrow.go.set()
            assert first.result().status_code == 200
            answers = [r.result() for r in rest]
        assert [a.status_code for a in answers] == [200] * 5 + [503]
        assert code_of(answers[5]) == "model" and "memory" in answers[5].text
        assert len(served.events("apart")) == 1


# The end


def test_stopping_ends_though_the_model_hangs(held):
    with running(held, deadline_seconds=1.0) as served:
        held.go.clear()
        with ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(served.client.post, "/v1/correct", json=BODY) for _ in range(2)]
            served.wait_for(lambda: held.busy)
            begun = time.monotonic()
            served.server.should_exit = True
            served.wait_for(lambda: served.events("stopped"))
            assert time.monotonic() - begun < 15
            assert [s.result().status_code for s in sent] == [504, 504]
    assert served.events("abandoned")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_whose_model_hangs_ends_as_one_that_was_told_to(number, forks):
    with forks.start("-m", "served", cwd=Path(__file__).parents[1]) as process:
        url = json.loads(process.stderr.readline())["address"]
        answer = httpx.post(f"{url}/v1/correct", json=BODY, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 504
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
        events = [json.loads(line)["event"] for line in process.stderr]
    assert events[-2:] == ["abandoned", "stopped"]


def test_who_asks_while_it_stops_is_told_so_and_not_cut_off(model):
    answers: list[str] = []

    def ask(url: str) -> None:
        while True:
            with httpx.Client(timeout=30.0, trust_env=False, verify=False) as client:
                try:
                    answers.append(client.post(f"{url}/v1/correct", json=BODY).text)
                except httpx.ConnectError:
                    return
                except httpx.HTTPError as error:
                    answers.append(f"cut off: {type(error).__name__}")

    with ThreadPoolExecutor(12) as pool:
        with running(model, drain_seconds=0.5) as served:
            asks = [pool.submit(ask, served.url) for _ in range(12)]
            served.wait_for(lambda: len(answers) > 24)
        for one in asks:
            one.result(PATIENCE_SECONDS)
    assert any("draining" in text for text in answers)
    assert sum(text.startswith("cut off") for text in answers) <= 1  # between two turns of the loop


# Batches


@pytest.fixture
def narrow(held):
    """The model, of which each item of a batch is a pass of its own."""
    held.batch_tokens = 1
    held.go.clear()
    return held


def batch_of(count: int) -> dict:
    return {"items": [BODY | {"id": f"b{i}"} for i in range(count)]}


def codes_of(lines: str) -> list[str | None]:
    return [json.loads(line).get("error", {}).get("code") for line in lines.splitlines()]


def test_who_comes_alone_goes_between_the_passes_of_a_batch(narrow):
    with running(narrow) as served, ThreadPoolExecutor(2) as pool:
        batch = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(6))
        served.wait_for(lambda: narrow.busy)
        single = pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": "alone"})
        served.wait_for(lambda: len(served.service.corrector.batcher._queues.items) == 6)
        narrow.go.set()
        assert single.result().status_code == 200
        assert codes_of(batch.result().text) == [None] * 6
    assert narrow.groups == [["b0"], ["alone"], ["b1"], ["b2"], ["b3"], ["b4"], ["b5"]]


def test_no_single_request_is_refused_while_batches_hold_their_places(narrow):
    narrow.go.set()
    with running(narrow, queue_items=8) as served, ThreadPoolExecutor(6) as pool:
        done = threading.Event()

        def send_batches() -> set[int]:
            statuses = set()
            while not done.is_set():
                answer = served.client.post("/v1/correct/batch", json=batch_of(20))
                statuses.add(answer.status_code)
            return statuses

        batches = [pool.submit(send_batches) for _ in range(5)]
        served.wait_for(lambda: served.service.corrector.batcher.waiting("item") >= 5)
        singles = [served.client.post("/v1/correct", json=BODY).status_code for _ in range(30)]
        done.set()
        assert {*singles} == {200}
        # One that comes while others still hold more than is left them may be told to come again.
        assert all(200 in b.result() and b.result() <= {200, 429} for b in batches)


def test_a_batch_is_not_starved_by_those_who_come_alone(narrow):
    with running(narrow) as served, ThreadPoolExecutor(4) as pool:
        alone = [
            pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": f"s{i}"})
            for i in range(3)
        ]
        batch = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(2))
        served.wait_for(lambda: len(served.service.corrector.batcher._queues.items) == 4)
        narrow.go.set()
        assert codes_of(batch.result().text) == [None] * 2
        assert [a.result().status_code for a in alone] == [200] * 3
    assert "b0" in narrow.groups[0] + narrow.groups[1]


def test_the_deadline_is_each_items_of_a_batch(narrow):
    with running(narrow, deadline_seconds=1.0) as served:
        begun = time.monotonic()
        answer = served.client.post("/v1/correct/batch", json=batch_of(6))
        assert time.monotonic() - begun < 5  # not a deadline a line
        assert codes_of(answer.text) == ["deadline"] * 6
        assert served.metric("lastword_refusals_total", code="deadline") == 6
        narrow.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "s"}).status_code == 200
    assert narrow.groups == [["b0"], ["s"]]


def test_nothing_of_a_batch_is_computed_once_its_client_has_left(narrow):
    with running(narrow) as served:
        with httpx.Client(base_url=served.url, trust_env=False) as leaving:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/correct/batch", json=batch_of(6), timeout=1.0)
        queues = served.service.corrector.batcher._queues
        served.wait_for(lambda: all(order.future.done() for order in queues.items))
        narrow.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "s"}).status_code == 200
    assert narrow.groups == [["b0"], ["s"]]


def test_items_too_long_to_be_answered_in_time_together_are_queued_in_parts(narrow, monkeypatch):
    monkeypatch.setattr(
        "lastword.service.dialects.own.batch._WINDOW_CHARACTERS", 3 * characters(ALONE)
    )
    with running(narrow) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(9))
        waiting = served.service.corrector.batcher.waiting
        served.wait_for(lambda: narrow.busy and waiting("item") == 2)
        time.sleep(0.1)
        assert waiting("item") == 2
        narrow.go.set()
        assert codes_of(answer.result().text) == [None] * 9


def test_a_batch_that_a_stop_cuts_says_so_of_each_item(narrow):
    with running(narrow, deadline_seconds=1.0) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(200))
        served.wait_for(lambda: narrow.busy)
        served.server.should_exit = True
        codes = codes_of(answer.result().text)
        narrow.go.set()
    assert len(codes) == 200 and set(codes) == {"deadline", "draining"} and codes[-1] == "draining"


def test_the_age_of_the_oldest_shows_a_model_that_hangs(narrow):
    oldest = "lastword_oldest_waiting_seconds"
    with running(narrow, deadline_seconds=0.2) as served:
        assert served.metric(oldest) == 0
        assert served.client.post("/v1/correct", json=BODY).status_code == 504
        served.wait_for(lambda: served.metric(oldest) > 0.5)  # though nobody waits any more
        narrow.go.set()
        served.wait_for(lambda: served.metric(oldest) == 0)
