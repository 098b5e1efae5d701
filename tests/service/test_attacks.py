"""Attacks that once stopped the service, each next to an honest client."""

import asyncio
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

import attackers
import httpx
import psutil
import pytest
from attackers import HEAD
from families import build
from served import BODY, Held, connect, running
from test_decisions import byte_tokenizer

from lastword import Choice, Tracer
from lastword.decide.questionnaire import prepare
from lastword.service import guard, passes, questions, traffic

ASK = {"authorization": "Bearer ask"}
LARGE = 2**17


def answers(served, seconds: float) -> int:
    """Return the number of answers that an honest client gets."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        assert served.client.post("/v1/correct", json=BODY, headers=ASK).status_code == 200
        count += 1
    return count


@contextmanager
def attack(served, name: str, hands: int):
    """Run an attack in another process while the block runs."""
    port = served.url.rsplit(":", 1)[1]
    sender = subprocess.Popen([sys.executable, attackers.__file__, name, port, str(hands)])
    try:
        yield
    finally:
        sender.kill()
        sender.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hands"), [("A", 4), ("B", 12), ("C", 12)])
def test_clients_without_a_token_do_not_stop_clients_with_one(model, name, hands):
    with running(model, token="ask") as served:
        quiet = answers(served, 3.0)
        with attack(served, name, hands):
            assert answers(served, 3.0) > 0.2 * quiet  # the senders have half of this machine
            assert served.client.get("/healthz").status_code == 200


def test_a_body_on_a_route_that_has_none_is_not_stored(model):
    with running(model, token="ask") as served, ExitStack() as stack:
        before = psutil.Process().memory_info().rss
        for _ in range(200):
            raw = stack.enter_context(closing(connect(served)))
            with suppress(OSError):  # the service may close the connection while this sends
                raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1048576\r\n\r\n")
                raw.sendall(b"x" * 2**18)
        assert served.client.request("GET", "/healthz", content=b"x").status_code == 422
        assert served.metric("lastword_body_bytes") == 0
        assert served.client.post("/v1/correct", json=BODY, headers=ASK).status_code == 200
        assert psutil.Process().memory_info().rss - before < 2**26


def test_after_a_refusal_the_connection_closes(model):
    with running(model, token="ask") as served, closing(connect(served)) as raw:
        raw.sendall(HEAD + b"content-length: 1000\r\n\r\n")
        data = b"".join(iter(lambda: raw.recv(65536), b""))
    assert data.startswith(b"HTTP/1.1 401") and b"connection: close" in data


def test_the_total_size_of_bodies_is_bounded_and_measured(model):
    with running(model, flight_bytes=5000) as served, ExitStack() as stack:
        raws = [stack.enter_context(closing(connect(served))) for _ in range(2)]
        raws[0].sendall(HEAD + b"content-length: 4001\r\n\r\n" + b" " * 4000)
        served.wait_for(lambda: served.metric("lastword_body_bytes") == 4000)
        raws[1].sendall(HEAD + b"content-length: 4001\r\n\r\n" + b" " * 4000)
        assert raws[1].recv(65536).startswith(b"HTTP/1.1 429")
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        raws[0].close()
        served.wait_for(lambda: served.metric("lastword_body_bytes") == 0)


def test_large_bodies_leave_room_for_small_ones(model):
    with running(model, flight_bytes=10 * LARGE) as served, ExitStack() as stack:
        raws = [stack.enter_context(closing(connect(served))) for _ in range(8)]
        for raw in raws:
            raw.sendall(HEAD + b"content-length: %d\r\n\r\n" % (LARGE + 1) + b" " * LARGE)
        full = {"code": "queue_full"}
        served.wait_for(lambda: served.metric("lastword_refusals_total", **full) == 1)
        small = BODY | {"question": "w" * 2**14}
        assert served.client.post("/v1/correct", json=small).status_code == 200


@pytest.mark.parametrize("coding", ["identity", "zstd"])
def test_large_bodies_take_turns_and_small_ones_do_not_wait(model, monkeypatch, coding):
    monkeypatch.setattr(traffic, "_RATE", LARGE / 2)
    body = json.dumps(BODY | {"question": "w" * LARGE}).encode()
    if coding == "zstd":
        body = pytest.importorskip("backports.zstd").compress(body)
    headers = {"content-type": "application/json", "content-encoding": coding}
    with running(model) as served, ThreadPoolExecutor(2) as pool:
        begun = time.monotonic()
        send = partial(served.client.post, "/v1/correct", content=body, headers=headers)
        sent = [pool.submit(send) for _ in range(2)]
        served.wait_for(lambda: served.metric("lastword_body_bytes") > LARGE)
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert not all(one.done() for one in sent)
        assert [one.result().status_code for one in sent] == [200, 200]
    assert time.monotonic() - begun > 2  # the second waits for the turn of the first


def test_refusals_take_turns(model, monkeypatch):
    monkeypatch.setattr(guard, "_REFUSAL_SECONDS", 0.5)
    with running(model, token="ask") as served, ThreadPoolExecutor(3) as pool:
        begun = time.monotonic()
        sent = [pool.submit(served.client.post, "/v1/correct", json=BODY) for _ in range(3)]
        assert served.client.post("/v1/correct", json=BODY, headers=ASK).status_code == 200
        assert [one.result().status_code for one in sent] == [401] * 3
    assert time.monotonic() - begun > 1


def test_the_wait_for_a_turn_is_limited():
    async def turns() -> None:
        pace = traffic.Turns(longest=1.0)
        async with asyncio.timeout(20):
            for _ in range(100):
                await pace.turn(60.0)

    asyncio.run(turns())


@pytest.mark.parametrize(("included", "most"), [("trajectory", 6), ("view", 3)])
def test_targets_of_a_pass_are_bounded(model, monkeypatch, included, most):
    monkeypatch.setattr(passes, "TARGETS", 12)
    held = Held(model)
    question = {
        "type": "choice",
        "instructions": "w5",
        "choices": [{"value": "w6"}, {"value": "w7"}],
    }
    body = {"model": "", "input": "w8", "questions": [question] * 12, "include": [included]}
    with running(held) as served:
        body["model"] = served.service.name
        answer = served.client.post("/v1/decisions", json=body)
        assert answer.status_code == 200 and len(answer.json()["answers"]) == 12
    assert len(held.groups) >= 2 and max(map(len, held.groups)) <= most


def test_batches_of_clients_that_left_delay_nobody(model):
    with running(model) as served, attack(served, "E", 4):
        served.wait_for(lambda: served.metric("lastword_refusals_total", code="client_left") > 20)
        body = BODY | {"question": "w" * 18_000}
        assert served.client.post("/v1/correct", json=body).status_code == 200
        served.wait_for(lambda: served.service.traffic.inside == 0)
        assert served.service.reader.waiting == 0


def test_requests_in_progress_are_bounded_and_a_refusal_says_when_to_retry(model):
    held = Held(model)
    with running(held, requests=2) as served, ThreadPoolExecutor(2) as pool:
        held.go.clear()
        sent = [pool.submit(served.client.post, "/v1/correct", json=BODY) for _ in range(2)]
        served.wait_for(lambda: served.service.traffic.inside == 2)
        refused = served.client.post("/v1/correct", json=BODY)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert served.client.get("/healthz").status_code == 200
        held.go.set()
        assert [one.result().status_code for one in sent] == [200, 200]


def test_many_short_questions_are_tokenised_in_turns():
    ready = prepare({str(i): Choice(f"w{i}", ["w1", "w2", "w3"]) for i in range(400)})
    pieces = [len(piece.questions) for piece, _ in questions._pieces(ready, "w5")]
    assert sum(pieces) == 400 and max(pieces) < 150


def test_requests_of_clients_that_left_are_removed_at_once(model):
    held = Held(model)
    with running(held) as served:
        held.go.clear()
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                served.client.post("/v1/correct", json=BODY, timeout=0.3)
        served.wait_for(lambda: served.service.traffic.inside == 0)
        assert served.service.model.waiting == 0
        left = {"route": "/v1/correct", "status": "499"}
        assert served.metric("lastword_requests_total", **left) == 3
        held.go.set()
    assert held.groups == [[None]]  # the pass in progress, and no waiting request


def test_idle_connections_leave_room(model):
    with running(model) as served, ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(closing(connect(served)))
        assert served.client.post("/v1/correct", json=BODY).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil@127.0.0.1"},
        {"host": "evil.example"},
        {"host": "127.0.0.1:80:80"},
        {"origin": "chrome-extension://HOST"},
        {"origin": "http://evil@HOST"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://[::1"},
        {"origin": "["},
    ],
)
def test_other_hosts_and_origins_are_refused(plain, headers):
    host = plain.url.removeprefix("http://")
    sent = {name: value.replace("HOST", host) for name, value in headers.items()}
    answer = plain.client.post("/v1/correct", json=BODY, headers=sent)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "forbidden"
    assert "access-control-allow-origin" not in answer.headers
    assert plain.events("failure") == []
    same_origin = {"origin": f"http://{host}"}
    assert plain.client.post("/v1/correct", json=BODY, headers=same_origin).status_code == 200


def test_two_hosts_are_refused(plain):
    """RFC 9112, section 3.2 requires status 400, even if both hosts are the same."""
    host = plain.url.removeprefix("http://")
    for first, second in ((host, "evil.example"), (host, host)):
        with connect(plain) as door:
            lines = ["GET /v1/model HTTP/1.1", f"Host: {first}", f"Host: {second}", "", ""]
            door.sendall("\r\n".join(lines).encode())
            assert door.recv(2**16).startswith(b"HTTP/1.1 400 ")


LONG = {"words": "w5 " * 300_000, "letter": "a" * 900_000, "blanks": " " * 900_000 + "w5"}


@pytest.fixture(scope="module")
def byte_tracer() -> Tracer:
    return Tracer(
        build("llama", vocab_size=258, max_position_embeddings=512), byte_tokenizer(), invariant=2.0
    )


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("route", ["correct", "batch", "decisions", "instructions"])
def test_a_long_text_is_refused_before_it_is_tokenised(byte_tracer, monkeypatch, text, route):
    """A text of 900,000 characters is tokenised only as far as the context may hold."""
    read: list[int] = []
    with running(byte_tracer, characters=2**21) as served:
        kind = type(byte_tracer.tokenizer)
        calls = kind.__call__

        def counted(self: Any, texts: Any, *arguments: Any, **options: Any) -> Any:
            read.append(sum(map(len, texts)))
            return calls(self, texts, *arguments, **options)

        monkeypatch.setattr(kind, "__call__", counted)
        item = {"prompt": LONG[text], "candidates": ["w6", "w7"]}
        question = {"type": "choice", "instructions": "Which?", "choices": ["w6", "w7"]}
        body = {"model": served.service.name, "input": "w5", "questions": [question]}
        if route == "correct":
            answer = served.client.post("/v1/correct", json=item)
        elif route == "batch":
            answer = served.client.post("/v1/correct/batch", json={"items": [item, BODY]})
            first, second = map(json.loads, answer.text.splitlines())
            assert first["error"]["code"] == "too_many_tokens" and "answer" in second
        else:
            changes: dict[str, Any] = {"input": LONG[text]}
            if route == "instructions":
                changes = {"questions": [question | {"instructions": LONG[text]}]}
            answer = served.client.post("/v1/decisions", json=body | changes)
        if route != "batch":
            assert answer.headers["x-refusal"] == "too_many_tokens"
        assert sum(read) < 2**14


def test_the_character_limit_of_an_item_follows_from_the_context(model):
    body = {"prompt": "w5 " * 100_000, "candidates": ["w6"]}
    with running(model) as served:
        context = model.profile.context
        longest = max(16, *map(len, model.tokenizer.get_vocab()))
        answer = served.client.post("/v1/correct", json=body)
        assert answer.headers["x-refusal"] == "too_many_characters"
        assert f"the service takes {(context + 1) * longest}" in answer.text
