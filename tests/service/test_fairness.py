"""One request cannot block or break the others."""

import json
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from families import random_items
from served import BODY, PATIENCE_SECONDS, Held, as_body, code_of, running, together, tracer

from lastword import Choice, Decider, Tracer
from lastword.probes import Probe
from lastword.service import chunks, passes
from lastword.service.chunks import Chunks
from lastword.service.queue import Order

# Limits of one request


def test_targets_of_a_pass_are_bounded(model, monkeypatch):
    monkeypatch.setattr(passes, "TARGETS", 12)
    held = Held(model)
    question = {"type": "choice", "instructions": "w5", "choices": ["w6", "w7"]}
    body = {"input": "w8", "questions": [question] * 12, "include": ["trajectory"]}
    with running(held) as served:
        answer = served.client.post("/v1/decisions", json=body | {"model": served.service.name})
        assert answer.status_code == 200 and len(answer.json()["answers"]) == 12
    assert len(held.groups) >= 2 and max(map(len, held.groups)) <= 6


def test_content_free_prompts_are_used_if_the_correction_needs_them():
    decider = Decider.demo(correction="contextual")
    prompts = {
        "prompt": "Which goods come from Baevwick?",
        "content_free": ["Which goods come from N/A?", "Which goods come from ?"],
    }
    goods = ["clay lamps", "pale cedar boats", "green wool combs"]
    expected = decider.correct(candidates=goods, **prompts)
    assert not np.allclose(expected.scores, expected.base_scores)
    with running(decider, characters=500) as served:
        body = {"candidates": goods} | prompts
        answer = served.client.post("/v1/correct", json=body)
        assert answer.json()["scores"] == pytest.approx(list(expected.scores), abs=1e-5)
        # They count as characters of the request.
        long = served.client.post("/v1/correct", json=body | {"content_free": ["w" * 200]})
        assert code_of(long) == "too_many_characters"


# Failures


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_service_survives_any_exception_of_the_model(held, end):
    held.poison = {"1": end}
    with running(held) as served:
        answer = served.client.post("/v1/correct", json=BODY | {"id": "1"})
        assert answer.status_code == 500 and code_of(answer) == "internal"
        (failure,) = served.events("failure")
        assert failure["error"] == type(end).__name__ and failure["at"] == "item"
        assert served.client.get("/healthz").status_code == 200
        assert served.client.post("/v1/correct", json=BODY).status_code == 200


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


def test_a_single_request_runs_between_the_passes_of_a_batch(narrow):
    with running(narrow) as served, ThreadPoolExecutor(2) as pool:
        batch = pool.submit(served.client.post, "/v1/correct/batch", json=batch_of(6))
        served.wait_for(lambda: narrow.busy)
        single = pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": "alone"})
        served.wait_for(lambda: served.service.line.waiting == 6)
        narrow.go.set()
        assert single.result().status_code == batch.result().status_code == 200
    assert narrow.groups == [["b0"], ["alone"], ["b1"], ["b2"], ["b3"], ["b4"], ["b5"]]


@pytest.mark.parametrize("trusted", [None, "x-client"])
def test_a_client_is_a_connection_or_the_name_from_the_proxy(narrow, trusted):
    """The headers of three connections name two clients; they count only behind a proxy."""
    with running(narrow, client_header=trusted) as served, ThreadPoolExecutor(3) as pool:
        sent = []
        url = f"{served.url}/v1/correct/batch"
        for place, (name, client) in enumerate((("a", "1"), ("b", "1"), ("c", "2"))):
            items = [BODY | {"id": f"{name}{i}"} for i in range(3)]
            headers = {"x-client": client, "x-forwarded-for": client, "forwarded": f"for={client}"}
            post = partial(httpx.post, url, timeout=PATIENCE_SECONDS, trust_env=False)
            sent.append(pool.submit(post, json={"items": items}, headers=headers))
            served.wait_for(lambda n=3 * place + 2: served.service.line.waiting == n)
        narrow.go.set()
        assert [one.result().status_code for one in sent] == [200] * 3
    by_connection = "a0 a1 b0 c0 a2 b1 c1 b2 c2"
    by_client = "a0 a1 c0 a2 c1 b0 c2 b1 b2"
    order = " ".join(name for (name,) in narrow.groups)
    assert order == (by_client if trusted else by_connection)


@pytest.mark.parametrize("leaves", [True, False])
def test_the_rest_of_a_batch_is_dropped_at_its_end(narrow, leaves):
    """Its client leaves, or the deadline passes."""
    with running(narrow, deadline_seconds=30.0 if leaves else 1.0) as served:
        with httpx.Client(base_url=served.url, trust_env=False) as client:
            if leaves:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/correct/batch", json=batch_of(6), timeout=1.0)
            else:
                assert client.post("/v1/correct/batch", json=batch_of(6)).status_code == 504
        served.wait_for(lambda: not served.service.line.waiting)
        narrow.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "s"}).status_code == 200
    assert narrow.groups == [["b0"], ["s"]]


def test_the_age_of_the_oldest_request_grows_while_the_model_hangs(narrow):
    oldest = "lastword_oldest_waiting_seconds"
    with running(narrow, deadline_seconds=0.2) as served:
        assert served.metric(oldest) == 0
        assert served.client.post("/v1/correct", json=BODY).status_code == 504
        served.wait_for(lambda: served.metric(oldest) > 0.5)  # although no client waits any more
        narrow.go.set()
        served.wait_for(lambda: served.metric(oldest) == 0)


# Long texts


@pytest.fixture
def chunked(monkeypatch):
    """A function that gives a decider that reads chunks of 16 tokens, each counted as a pass."""
    monkeypatch.setattr(chunks, "CHUNK", 16)
    read = Chunks.read

    def chunked(inner: Tracer | Decider) -> Held:
        held = Held(inner)

        def recorded(self: Chunks, order: Order) -> None:
            held.wait(["chunk"])
            read(self, order)

        monkeypatch.setattr(Chunks, "read", recorded)
        held.go.clear()
        return held

    return chunked


@pytest.fixture
def demo(topic: Probe) -> Decider:
    """The embedded model, with a probe."""
    return Decider.demo(probes=[topic])


LONG = BODY | {"id": "long", "prompt": "w5 w6 w7 w8 " * 15}
TOPIC = {"type": "choice", "instructions": "What is it about?", "choices": ["animal", "money"]}
FOX = "the red fox runs " * 8
PROBED = {"input": FOX, "questions": [TOPIC], "model": "lastword/demo-organism"}


def test_a_short_request_runs_between_the_chunks_of_a_long_text(chunked, model):
    held = chunked(tracer(prefix_cache=64))
    other = LONG | {"prompt": LONG["prompt"][3:], "id": "other"}
    bodies = [BODY | {"id": "first"}, LONG, other, BODY | {"id": "short"}]
    with running(held) as served, ThreadPoolExecutor(4) as pool:
        sent = []
        for place, body in enumerate(bodies):
            sent.append(pool.submit(served.client.post, "/v1/correct", json=body))
            served.wait_for(lambda n=place: held.busy and served.service.line.waiting == n)
        held.go.set()
        assert [one.result().status_code for one in sent] == [200] * 4
        scores = sent[1].result().json()["scores"]
        assert served.service.passes.chunks.rate > 0
    read = [["chunk"]] * 3  # of one text after the other
    rest = [*read[1:], ["long"], *read, ["other"]]
    assert held.groups == [["first"], ["chunk"], ["short"], *rest]
    expected = model.correct(LONG["prompt"], LONG["candidates"])
    assert scores == pytest.approx(expected.scores.tolist(), abs=1e-5)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5])
def test_a_short_request_runs_between_the_chunks_that_a_probe_reads(chunked, topic, threshold):
    """With a threshold of 0.5, the model answers, and its prompt is read in chunks too."""
    demo = Decider.demo(probes=[replace(topic, threshold=threshold)])
    held = chunked(demo)
    with running(held) as served, ThreadPoolExecutor(2) as pool:
        long = pool.submit(served.client.post, "/v1/decisions", json=PROBED)
        served.wait_for(lambda: held.busy)
        short = pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": "short"})
        served.wait_for(lambda: served.service.line.waiting == 1)
        held.go.set()
        assert short.result().status_code == 200
        (answer,) = long.result().json()["answers"]
    assert held.groups[:2] == [["chunk"], ["short"]] and held.groups[-1] != ["chunk"]
    assert (held.groups.count(["chunk"]) > 10) == (threshold == 0.5)
    question = Choice(TOPIC["instructions"], TOPIC["choices"])
    expected = demo.decide(FOX, {"topic": question})["topic"].probabilities
    p = [one["probability"] for one in answer["probabilities"]]
    assert p == pytest.approx([*expected], abs=1e-7)


@pytest.mark.parametrize("distinct", [False, True])
def test_probes_have_several_passes_only_for_several_prompts(topic, distinct):
    topics = [TOPIC | {"instructions": f"Topic {n * distinct}?"} for n in range(4)]
    questions = [Choice(one["instructions"], one["choices"]) for one in topics]
    demo = Decider.demo(probes=[replace(topic, question=one) for one in dict.fromkeys(questions)])
    demo.tracer.batch_tokens = 100
    with running(held := Held(demo)) as served:
        answer = served.client.post("/v1/decisions", json=PROBED | {"questions": topics})
        assert answer.status_code == 200 and len(answer.json()["answers"]) == 4
    assert (len(held.groups) > 1) == distinct


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/correct", BODY | {"prompt": FOX}), ("/v1/decisions", PROBED)]
)
def test_a_long_text_ends_at_the_next_chunk_if_its_client_leaves(chunked, demo, path, body):
    held = chunked(demo)
    with running(held) as served:
        with pytest.raises(httpx.ReadTimeout):
            served.client.post(path, json=body, timeout=0.5)
        served.wait_for(lambda: served.service.traffic.inside == 0)
        held.go.set()
        assert served.client.post("/v1/correct", json=BODY | {"id": "short"}).status_code == 200
    assert held.groups == [["chunk"], ["short"]]


def test_a_batch_of_long_texts_with_more_items_than_a_pass_takes_is_answered(chunked):
    held = chunked(tracer(prefix_cache=64))
    held.go.set()
    items = [LONG | {"prompt": f"w{n} {LONG['prompt']}"} for n in range(10, 14)]
    with running(held, batch_items=2, deadline_seconds=20.0) as served:
        answer = served.client.post("/v1/correct/batch", json={"items": items})
        assert [item.get("error") for item in answer.json()["items"]] == [None] * 4


def test_a_text_that_cannot_be_read_in_time_is_refused_with_the_limit(chunked):
    held = chunked(tracer(prefix_cache=64))
    held.go.set()
    with running(held, deadline_seconds=20.0) as served:
        assert served.client.post("/v1/correct", json=LONG).status_code == 200
        served.service.passes.chunks.rate = 1.0
        refused = served.client.post("/v1/correct", json=LONG)
        assert refused.status_code == 413 and code_of(refused) == "beyond_deadline"
        assert "takes about 16" in refused.text
        assert served.client.post("/v1/correct", json=BODY).status_code == 200


def test_a_text_is_tried_after_a_slow_moment(chunked, monkeypatch):
    monkeypatch.setattr(chunks, "FRESH", 0.5)
    held = chunked(tracer(prefix_cache=64))
    held.go.set()
    with running(held, deadline_seconds=20.0) as served:
        served.service.passes.chunks.rate = 1.0
        assert served.client.post("/v1/correct", json=LONG).status_code == 413
        served.wait_for(lambda: served.service.passes.chunks.rate is None)
        assert served.client.post("/v1/correct", json=LONG).status_code == 200


def test_a_text_that_waited_too_long_for_others_is_refused_at_its_turn(chunked):
    held = chunked(tracer(prefix_cache=64))
    with running(held, deadline_seconds=20.0) as served, ThreadPoolExecutor(2) as pool:
        first = pool.submit(served.client.post, "/v1/correct", json=LONG)
        served.wait_for(lambda: held.busy)
        other = LONG | {"prompt": LONG["prompt"][3:]}
        later = pool.submit(served.client.post, "/v1/correct", json=other)
        served.wait_for(lambda: served.service.line.waiting == 1)
        (order,) = served.service.line._queue
        order.since -= 20.0
        held.go.set()
        assert first.result().status_code == 200
        assert later.result().status_code == 429 and code_of(later.result()) == "queue_full"
        assert int(later.result().headers["retry-after"]) >= 1


def test_a_text_that_does_not_fit_the_cache_is_refused_with_the_limit(chunked):
    inner = tracer(prefix_cache=64)
    held = chunked(inner)
    held.go.set()
    with running(held) as served:
        inner.backbone.prefixes.budget = 3 * 10_000
        refused = served.client.post("/v1/correct", json=LONG)
        assert refused.status_code == 422 and code_of(refused) == "too_many_tokens"
        assert "cache holds" in refused.text
    assert held.groups == [["chunk"]]


def test_prompts_that_do_not_fit_the_cache_together_are_refused(chunked):
    """Otherwise the pass that answers would read most of them again, in one piece."""
    inner = Decider(tracer(prefix_cache=64, batch_tokens=50), correction="contextual")
    held = chunked(inner)
    held.go.set()
    prefixes, body = inner.tracer.backbone.prefixes, LONG | {"content_free": ["w5"]}
    with running(held) as served:
        assert served.client.post("/v1/correct", json=body).status_code == 200
        prefixes.budget = int(prefixes.budget * 100 / prefixes.capacity)  # for 100 tokens
        free = [f"w{n} {LONG['prompt']}" for n in (10, 11)]
        refused = served.client.post("/v1/correct", json=LONG | {"content_free": free})
        assert refused.status_code == 422 and code_of(refused) == "too_many_tokens"
