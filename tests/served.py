"""A service on a free port, in a thread of the test process or in another process."""

import asyncio
import io
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import torch
from families import build, tokenizer

from lastword import Item, Tracer
from lastword.decide.batch import Scope
from lastword.decide.decider import Decider
from lastword.service.app import create_app
from lastword.service.log import Log
from lastword.service.server import Server, run
from lastword.service.settings import Settings

PATIENCE_SECONDS = 30.0
BODY = {"prompt": "w5 w6 w7", "candidates": ["w8 w9", "w10", "w11 w12 w13"]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_until(
    condition: Callable[..., object], seconds: float = PATIENCE_SECONDS, pause: float = 0.005
) -> None:
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest, "the condition did not become true"
        time.sleep(pause)


def as_body(item: Item, **more: Any) -> dict[str, Any]:
    return {"id": item.id, "prompt": item.prompt, "candidates": list(item.candidates)} | more


def code_of(answer: httpx.Response) -> str:
    body = answer.json()
    assert body["schema"] == 1 and body["error"]["message"]
    return str(body["error"]["code"])


def tracer(**options: Any) -> Tracer:
    """Return a tracer of a tiny random model; I(M) = 2 lets items mix."""
    return Tracer(build("llama"), tokenizer(), invariant=2.0, **options)


def decider_of(model: Tracer | Decider) -> Decider:
    return model if isinstance(model, Decider) else Decider(model)


class Held(Decider):
    """A decider whose passes wait for the test, and that fails on chosen items.

    Attributes:
        go: Set while passes run. If it is cleared, the next pass waits.
        busy: True while a pass waits or runs.
        groups: Ids of the items of every pass.
        poison: The error to raise for an item, by its id.
    """

    def __init__(self, inner: Tracer | Decider) -> None:
        self.__dict__ |= decider_of(inner).__dict__
        self.go = threading.Event()
        self.go.set()
        self.busy = False
        self.groups: list[list[str | None]] = []
        self.poison: dict[str | None, BaseException] = {}

    def decide_group(self, encoded: Any, scope: Scope | None = None) -> Any:
        self.wait([e.item.id for e in encoded])
        return super().decide_group(encoded, scope)

    def answer(self, works: Any, known: Any = None) -> Any:
        self.wait([work.item.item.id for work in works if work.item is not None])
        return super().answer(works, known)

    def wait(self, ids: list[str | None]) -> None:
        """Wait for the test, and record a pass of these items."""
        self.busy = True
        assert self.go.wait(PATIENCE_SECONDS)
        self.busy = False
        self.groups.append(ids)
        for id in ids:
            if id in self.poison:
                raise self.poison[id]


class Endless(Decider):
    """A decider whose passes never end: its thread is always in torch, or about to be."""

    def __init__(self, inner: Tracer) -> None:
        super().__init__(inner)

    def decide_group(self, *_: Any, **__: Any) -> Any:
        square = torch.ones(200, 200)
        while True:
            torch.mm(square, square)


class Running:
    """A served application: its client, its log and the server."""

    def __init__(self, app: Any, server: Server, url: str, stream: io.StringIO) -> None:
        self.app, self.server, self.url, self._stream = app, server, url, stream
        self.client = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False)

    @property
    def service(self) -> Any:
        return self.app.state.service

    def events(self, name: str) -> list[dict[str, Any]]:
        assert self.service.log.flush(PATIENCE_SECONDS)
        lines = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0

    def wait_for(self, condition: Callable[..., object]) -> None:
        wait_until(condition)


def together(served: Running, held: Held, bodies: Sequence[Any]) -> list[httpx.Response]:
    """Return the answers to requests that wait behind a blocked one."""
    held.go.clear()
    with ThreadPoolExecutor(len(bodies) + 1) as pool:
        first = pool.submit(served.client.post, "/v1/correct", json=BODY | {"id": "first"})
        served.wait_for(lambda: held.busy)
        rest = [pool.submit(served.client.post, "/v1/correct", json=body) for body in bodies]
        served.wait_for(lambda: served.service.line.waiting == len(bodies))
        held.go.set()
        assert first.result().json()["id"] == "first"
        return [one.result() for one in rest]


def connect(served: Running) -> socket.socket:
    port = int(served.url.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=20)


@contextmanager
def running(
    model: Any,
    mount: Any = None,
    stream: io.StringIO | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve a tracer until the block ends; `mount` adds to the application before it starts."""
    stream = io.StringIO() if stream is None else stream
    chosen = Settings(port=0, **({"drain_seconds": 0.0} | settings))
    log = Log(stream)
    app = create_app(decider_of(model), chosen, log)
    if mount is not None:
        mount(app)
    server = Server(app, app.state.service)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()))
    thread.start()
    try:
        latest = time.monotonic() + PATIENCE_SECONDS
        while server.url is None:
            assert thread.is_alive() and time.monotonic() < latest, "the server did not start"
            time.sleep(0.005)
        served = Running(app, server, server.url, stream)
        with served.client:
            yield served
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the server did not stop"


if __name__ == "__main__":  # a process whose model hangs
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    run(create_app(Endless(tracer()), Settings(port=0, deadline_seconds=1.0, drain_seconds=0.0)))
