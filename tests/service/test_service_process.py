"""The service as a process: it starts, answers, and stops after the last accepted request."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from forked import Fork, Forks

from lastword import Tracer
from lastword.lab import demo

pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 60


class Process:
    """`lastword serve` on the embedded model, with its log."""

    def __init__(self, process: Fork, first: dict) -> None:
        self.process, self.url = process, first["address"]
        self.events: list[dict] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.events.append(json.loads(line))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join()
        return code


@pytest.fixture
def serving(forks: Forks):
    @contextmanager
    def serve(*options: str, **environment: str):
        command = ("-m", "lastword", "serve", "--model", "lastword/demo-organism", "--port", "0")
        with forks.start(*command, *options, env=os.environ | environment) as process:
            loading, started = (json.loads(process.stderr.readline()) for _ in range(2))
            assert loading["event"] == "loading" and loading["model"] == "lastword/demo-organism"
            yield Process(process, started)

    return serve


def bodies(count: int) -> list[dict]:
    items = demo.items()
    return [
        {"id": str(i), "prompt": item.prompt, "candidates": list(item.candidates)}
        for i, item in ((i, items[i % len(items)]) for i in range(count))
    ]


def ask_until_refused(url: str, client: int, decisions: list[tuple[dict, dict]]) -> str:
    """Send one request after the other; return the reason for the end."""
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        for body in bodies(10_000)[client::7]:
            try:
                answer = http.post("/v1/correct", json=body)
            except httpx.ConnectError:
                return "closed"
            except httpx.TransportError:
                return "lost"  # sent, but neither answered nor refused
            if answer.status_code == 503:
                assert answer.json()["error"]["code"] == "draining"
                return "refused"
            assert answer.status_code == 200, answer.text
            decisions.append((body, answer.json()))
    return "done"


def test_a_stop_under_load_still_answers_every_accepted_request(serving):
    decisions: list[tuple[dict, dict]] = []
    with serving() as service, ThreadPoolExecutor(9) as pool:
        batch = pool.submit(send_batch, service.url, bodies(150))
        clients = [pool.submit(ask_until_refused, service.url, i, decisions) for i in range(8)]
        while len(decisions) < 40:  # a busy machine may take long
            time.sleep(0.01)
        code = service.stop()
        ends = {client.result(PATIENCE_SECONDS) for client in clients}
        lines = batch.result(PATIENCE_SECONDS)
    assert code == 0
    assert ends in ({"refused"}, {"refused", "closed"})
    assert len(lines) in (0, 150)  # the whole batch is refused or answered
    accepted = [e for e in service.events if e["event"] == "request" and e["status"] == 200]
    assert len(accepted) == len(decisions) + bool(lines)
    assert service.events[-1] == service.events[-1] | {"event": "stopped", "unanswered": 0}
    items, tracer = demo.items(), Tracer.demo()
    expected = [decision.index for decision in tracer.correct_many(items)]
    for body, answer in decisions[:40]:
        assert answer["id"] == body["id"]
        assert answer["index"] == expected[int(body["id"]) % len(items)]


def send_batch(url: str, items: list[dict]) -> list[dict]:
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        answer = http.post("/v1/correct/batch", json={"items": items})
        return answer.json()["items"] if answer.status_code == 200 else []


def test_the_token_comes_from_the_environment_and_other_hosts_need_one(serving, forks):
    with serving("--host", "0.0.0.0", LASTWORD_TOKEN="letmein") as service:
        url = service.url.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
            assert http.get("/v1/model").status_code == 401
            right = {"authorization": "Bearer letmein"}
            assert http.get("/v1/model", headers=right).json()["model"] == "lastword/demo-organism"
        assert service.stop() == 0
    command = ("-m", "lastword", "serve", "--model", "lastword/demo-organism", "--host", "0.0.0.0")
    refused = forks.run(*command)
    assert refused.returncode == 1 and "LASTWORD_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1
