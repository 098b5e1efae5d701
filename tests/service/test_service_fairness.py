"""One request cannot block or break the others."""

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

# Limits of one request


@pytest.fixture
def encoding_threads(model, monkeypatch):
    """The threads that encoded items, in order. The thread of an item with the id `end` exits."""
    threads: list[str] = []
    encode = type(model).encode

    def encode_and_note(self, items, *options):
        threads.append(threading.current_thread().name)
        if items[0].id == "end":
            raise SystemExit(3)
        return encode(self, items, *options)

    monkeypatch.setattr(type(model), "encode", encode_and_note)
    return threads


def test_too_long_text_is_refused_before_it_is_encoded(model, encoding_threads):
    body = {"prompt": "w5 " * 316_000, "candidates": [f"w{i}" for i in range(64)]}
    with running(model) as served:
        answer = served.client.post("/v1/correct", json=body)
        assert answer.status_code == 413 and code_of(answer) == "too_many_characters"
        assert encoding_threads == []
        lines = served.client.post("/v1/correct/batch", json={"items": [BODY, body]}).text
    assert codes_of(lines) == [None, "too_many_characters"]
    assert encoding_threads == ["lastword-text"]  # not the thread of the model


def test_a_long_prompt_is_answered_if_it_fits_or_is_truncated(model):
    words = model.profile.context // 2
    with running(model) as served:
        body = BODY | {"prompt": "w5 " * words}
        assert served.client.post("/v1/correct", json=body).status_code == 200
    with running(tracer(overflow="truncate")) as served:
        body = BODY | {"prompt": "w5 " * 40 * words}
        assert served.client.post("/v1/correct", json=body).status_code == 200


# Failures


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_thread_of_the_model_survives_any_exception(held, end):
    held.poison = {"1": end}
    with running(held) as served:
        begun = time.monotonic()
        answer = served.client.post("/v1/correct", json=BODY | {"id": "1"})
        assert answer.status_code == 500 and code_of(answer) == "internal"
        assert time.monotonic() - begun < 15  # before the deadline
        (failure,) = served.events("failure")
        assert failure["error"] == type(end).__name__ and failure["at"] == "lastword-model"
        for path in ("/healthz", "/readyz"):
            assert served.client.get(path).status_code == 200
        assert served.client.post("/v1/correct", json=BODY).status_code == 200


def test_an_exit_in_the_tokenizer_ends_only_the_request(model, encoding_threads):
    with running(model) as served:
        assert served.client.post("/v1/correct", json=BODY | {"id": "end"}).status_code == 500
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert served.events("failure")[0]["at"] == "lastword-text"


def test_the_health_routes_report_a_dead_thread(model):
    with running(model) as served:
        worker = served.service.model
        assert worker.close(10.0) and not worker.alive
        assert served.client.get("/healthz").status_code == 500
        assert served.client.get("/readyz").status_code == 503


class Ballast:
    """An object that stands for the memory of a pass."""


class Narrow(Held):
    """A decider with memory for two items at most, and for no item with the id `huge`."""

    memory_error: BaseException
    held: list[weakref.ref[Ballast]]

    def decide_group(self, encoded: Any, *more: Any, **named: Any) -> Any:
        ballast = Ballast()
        assert not any(ref() for ref in self.held), "the failed pass kept its memory"
        if len(encoded) > 2 or any(e.item.id == "huge" for e in encoded):
            self.held.append(weakref.ref(ballast))
            # A new error, since an error keeps its frames.
            raise type(self.memory_error)(*self.memory_error.args)
        return super().decide_group(encoded, *more, **named)


@pytest.mark.parametrize(
    "memory_error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    ],
)
def test_an_item_without_enough_memory_affects_no_other(model, memory_error):
    narrow = Narrow(model)
    narrow.held, narrow.memory_error = [], memory_error
    items = [as_body(i) for i in random_items(5, 5)] + [BODY | {"id": "huge"}]
    with running(narrow) as served:
        answers = together(served, narrow, items)
        assert [a.status_code for a in answers] == [200] * 5 + [503]
        assert code_of(answers[5]) == "model" and "memory" in answers[5].text
        assert len(served.events("apart")) == 1


# Stopping


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_whose_model_hangs_still_stops_normally(number, forks):
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
    """The model, with a pass per item of a batch."""
    held.tracer.batch_tokens = 1
    held.go.clear()
    return held


def batch_of(count: int) -> dict:
    return {"items": [BODY | {"id": f"b{i}"} for i in range(count)]}


def codes_of(lines: str) -> list[str | None]:
    return [json.loads(line).get("error", {}).get("code") for line in lines.splitlines()]


def test_a_single_request_runs_between_the_passes_of_a_batch(narrow):
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
def test_a_client_is_a_connection_or_the_name_from_the_proxy(narrow, trusted):
    """The headers of three connections name two clients; they count only behind a proxy."""
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
    order = " ".join(name for (name,) in narrow.groups)
    assert order == (by_client if trusted else by_connection)


def test_a_deadline_applies_to_each_item_of_a_batch(narrow):
    with running(narrow, deadline_seconds=3.0) as served:
        begun = time.monotonic()
        answer = served.client.post("/v1/correct/batch", json=batch_of(6))
        assert time.monotonic() - begun < 15  # not a deadline per item
        assert codes_of(answer.text) == ["deadline"] * 6
        assert served.metric("lastword_refusals_total", code="deadline") == 6
        narrow.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "s"}).status_code == 200
    assert narrow.groups == [["b0"], ["s"]]


def test_the_rest_of_a_batch_is_dropped_after_its_client_left(narrow):
    with running(narrow) as served:
        with httpx.Client(base_url=served.url, trust_env=False) as leaving:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/correct/batch", json=batch_of(6), timeout=1.0)
        served.wait_for(lambda: not served.service.model.waiting)
        narrow.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "s"}).status_code == 200
    assert narrow.groups == [["b0"], ["s"]]


def test_a_batch_with_long_items_is_queued_in_parts(narrow, monkeypatch):
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


def test_each_remaining_item_of_a_stopped_batch_has_an_error(narrow):
    with running(narrow, deadline_seconds=1.0) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(200))
        served.wait_for(lambda: narrow.busy)
        served.server.stop()
        codes = codes_of(answer.result().text)
        narrow.go.set()
    assert len(codes) == 200 and set(codes) == {"deadline", "draining"} and codes[-1] == "draining"


def test_the_age_of_the_oldest_request_grows_while_the_model_hangs(narrow):
    oldest = "lastword_oldest_waiting_seconds"
    with running(narrow, deadline_seconds=0.2) as served:
        assert served.metric(oldest) == 0
        assert served.client.post("/v1/correct", json=BODY).status_code == 504
        served.wait_for(lambda: served.metric(oldest) > 0.5)  # although no client waits any more
        narrow.go.set()
        served.wait_for(lambda: served.metric(oldest) == 0)
