"""The service as a process: it starts, answers, and answers what it accepted when told to stop."""

import json
import os
import signal
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from forked import Fork, Forks

from lastword import Tracer, demo

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


class Load:
    """Clients that send one request after the other until they are turned away."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self.answered: list[tuple[dict, dict]] = []
        self.turned_away = self.lost = 0
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        timeout = httpx.Timeout(PATIENCE_SECONDS)
        with httpx.Client(base_url=self._url, timeout=timeout, trust_env=False) as http:
            for body in bodies(10_000)[client::7]:
                try:
                    answer = http.post("/v1/correct", json=body)
                except httpx.ConnectError:
                    return
                except httpx.TransportError:
                    self.lost += 1  # sent, and neither answered nor turned away
                    return
                if answer.status_code == 503:
                    assert answer.json()["error"]["code"] == "draining"
                    self.turned_away += 1
                    return
                assert answer.status_code == 200, answer.text
                self.answered.append((body, answer.json()))

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def test_told_to_stop_under_load_it_answers_all_that_it_accepted(serving):
    with serving() as service:
        load = Load(service.url, clients=8)
        batch: list[str] = []
        sender = threading.Thread(target=lambda: batch.extend(_batch(service.url, bodies(150))))
        sender.start()
        while len(load.answered) < 40:  # however long a busy machine takes for them
            time.sleep(0.01)
        code = service.stop()
        load.join()
        sender.join(PATIENCE_SECONDS)
    assert code == 0
    assert load.lost == 0 and load.turned_away > 0
    assert len(batch) in (0, 150)  # turned away whole, or answered whole
    accepted = [e for e in service.events if e["event"] == "request" and e["status"] == 200]
    assert len(accepted) == len(load.answered) + bool(batch)
    assert service.events[-1] == service.events[-1] | {"event": "stopped", "unanswered": 0}
    tracer = Tracer.demo()
    expected: dict[str, int] = {}
    for body, told in load.answered[:40]:
        key = json.dumps([body["prompt"], body["candidates"]])
        if key not in expected:
            expected[key] = tracer.correct(body["prompt"], body["candidates"]).index
        assert told["id"] == body["id"] and told["index"] == expected[key]


def _batch(url: str, items: list[dict]) -> list[str]:
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        answer = http.post("/v1/correct/batch", json={"items": items})
        return answer.text.splitlines() if answer.status_code == 200 else []


def test_the_token_comes_from_the_environment_and_the_door_is_closed_without_one(serving, forks):
    with serving("--host", "0.0.0.0", LASTWORD_TOKEN="letmein") as service:
        url = service.url.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=url, trust_env=False) as http:
            assert http.get("/v1/model").status_code == 401
            right = {"authorization": "Bearer letmein"}
            assert http.get("/v1/model", headers=right).json()["model"] == "lastword/demo-organism"
        assert service.stop() == 0
    asked = ("-m", "lastword", "serve", "--model", "lastword/demo-organism", "--host", "0.0.0.0")
    refused = forks.run(*asked)
    assert refused.returncode == 1 and "LASTWORD_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1
