"""Whoever waits has a turn: what one request may take, and what becomes of the others."""

import json
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from families import random_items
from served import BODY, PATIENCE_SECONDS, Held, as_body, code_of, running, together, tracer

from lastword import Item
from lastword.service.service import characters

# What one request may take


@pytest.fixture
def encodes(model, monkeypatch):
    """The threads that have read text; that of an item called `end` ends."""
    threads: list[str] = []
    encode = type(model).encode

    def noted(self, items, *more):
        threads.append(threading.current_thread().name)
        if items[0].id == "end":
            raise SystemExit(3)
        return encode(self, items, *more)

    monkeypatch.setattr(type(model), "encode", noted)
    return threads


def test_text_that_is_long_to_read_is_refused_before_it_is_read(model, encodes):
    body = {"prompt": "w5 " * 316_000, "candidates": [f"w{i}" for i in range(64)]}
    with running(model) as served:
        answer = served.client.post("/v1/correct", json=body)
        assert answer.status_code == 413 and code_of(answer) == "too_many_characters"
        assert encodes == []
        lines = served.client.post("/v1/correct/batch", json={"items": [BODY, body]}).text
    assert codes_of(lines) == [None, "too_many_characters"]
    assert encodes == ["lastword-text"]  # never the model's


def test_a_long_prompt_that_fits_or_is_cut_is_answered(model):
    words = model.profile.context // 2
    with running(model) as served:
        body = BODY | {"prompt": "w5 " * words}
        assert served.client.post("/v1/correct", json=body).status_code == 200
    with running(tracer(overflow="truncate")) as served:
        body = BODY | {"prompt": "w5 " * 40 * words}
        assert served.client.post("/v1/correct", json=body).status_code == 200


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


def test_a_tokenizer_that_ends_the_process_ends_its_request(model, encodes):
    with running(model) as served:
        assert served.client.post("/v1/correct", json=BODY | {"id": "end"}).status_code == 500
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert served.events("failure")[0]["at"] == "lastword-text"


def test_a_thread_that_has_ended_is_said(model):
    with running(model) as served:
        worker = served.service.model
        assert worker.close(10.0) and not worker.alive
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
        answers = together(served, narrow, items)
        assert [a.status_code for a in answers] == [200] * 5 + [503]
        assert code_of(answers[5]) == "model" and "memory" in answers[5].text
        assert len(served.events("apart")) == 1


# The end


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
    assert {"abandoned", "stopped"} <= {*events[-3:]}


# Batches


@pytest.fixture
def narrow(held):
    """The model, of which each item of a batch is a pass of its own."""
    held.tracer.batch_tokens = 1
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
        served.wait_for(lambda: served.service.model.waiting == 6)
        narrow.go.set()
        assert single.result().status_code == 200
        assert codes_of(batch.result().text) == [None] * 6
    assert narrow.groups == [["b0"], ["alone"], ["b1"], ["b2"], ["b3"], ["b4"], ["b5"]]


@pytest.mark.parametrize("trusted", [None, "x-client"])
def test_a_client_is_a_connection_or_whom_the_proxy_names(narrow, trusted):
    """Three connections of two clients by their headers, which count where a proxy sets them."""
    with running(narrow, client_header=trusted) as served, ThreadPoolExecutor(3) as pool:
        sent = []
        for place, (name, client) in enumerate((("a", "1"), ("b", "1"), ("c", "2"))):
            items = [BODY | {"id": f"{name}{i}"} for i in range(3)]
            headers = {"x-client": client, "x-forwarded-for": client, "forwarded": f"for={client}"}
            post = partial(
                httpx.post,
                f"{served.url}/v1/correct/batch",
                timeout=PATIENCE_SECONDS,
                trust_env=False,
            )
            sent.append(pool.submit(post, json={"items": items}, headers=headers))
            served.wait_for(lambda n=3 * place + 2: served.service.model.waiting == n)
        narrow.go.set()
        assert [codes_of(one.result().text) for one in sent] == [[None] * 3] * 3
    by_connection = "a0 a1 b0 c0 a2 b1 c1 b2 c2"
    by_client = "a0 a1 c0 a2 c1 b0 c2 b1 b2"
    came = " ".join(name for (name,) in narrow.groups)
    assert came == (by_client if trusted else by_connection)


def test_the_deadline_is_each_items_of_a_batch(narrow):
    with running(narrow, deadline_seconds=3.0) as served:
        begun = time.monotonic()
        answer = served.client.post("/v1/correct/batch", json=batch_of(6))
        assert time.monotonic() - begun < 15  # not a deadline per item
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
        served.wait_for(lambda: not served.service.model.waiting)
        narrow.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "s"}).status_code == 200
    assert narrow.groups == [["b0"], ["s"]]


def test_items_too_long_to_be_answered_in_time_together_are_queued_in_parts(narrow, monkeypatch):
    monkeypatch.setattr(
        "lastword.service.dialects.native._WINDOW_CHARACTERS",
        3 * characters(Item(BODY["prompt"], tuple(BODY["candidates"]))),
    )
    with running(narrow) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(9))
        served.wait_for(lambda: narrow.busy and served.service.model.waiting == 2)
        time.sleep(0.1)
        assert served.service.model.waiting == 2
        narrow.go.set()
        assert codes_of(answer.result().text) == [None] * 9


def test_a_batch_that_a_stop_cuts_says_so_of_each_item(narrow):
    with running(narrow, deadline_seconds=1.0) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(200))
        served.wait_for(lambda: narrow.busy)
        served.server.stop()
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
