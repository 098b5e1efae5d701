"""Two services behind a balancer, with a token of the environment; none loses a request."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import free_port, wait_until

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
PATIENCE_SECONDS = 120.0
SERVE = ("-m", "lastword", "serve", "--model", "lastword/demo-organism", "--port")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="needs haproxy (Debian's package haproxy)"
    ),
]


@contextmanager
def balanced(ports: list[int]):
    """Yield the address of a balancer in front of two services, once it listens."""
    front, *behind = (f"127.0.0.1:{port}" for port in (free_port(), *ports))
    names = ("LASTWORD_FRONT", "LASTWORD_A", "LASTWORD_B")
    environment = os.environ | dict(zip(names, (front, *behind), strict=True))
    with subprocess.Popen(["haproxy", "-db", "-f", str(CONFIGURATION)], env=environment) as process:
        try:
            wait_until(lambda: listens(front), PATIENCE_SECONDS)
            yield f"http://{front}"
        finally:
            process.terminate()


def listens(address: str) -> bool:
    host, port = address.split(":")
    with suppress(ConnectionRefusedError), socket.create_connection((host, int(port))):
        return True
    return False


class Echo(BaseHTTPRequestHandler):
    """A service that returns the client header that the balancer sets."""

    def do_GET(self) -> None:
        body = json.dumps(self.headers.get_all("x-client")).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_the_balancer_names_the_client_whatever_header_it_sends():
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        with balanced([service.server_port] * 2) as url:
            headers = [("x-client", "forged"), ("x-client", "again")]
            answer = httpx.get(url, headers=headers, trust_env=False)
        service.shutdown()
    assert answer.json() == ["127.0.0.1"]


AS_CALLER: dict[str, Any] = {
    "headers": {"authorization": "Bearer me"},
    "timeout": PATIENCE_SECONDS,
    "trust_env": False,
}
ITEM = {"prompt": "Which goods?", "candidates": ["clay lamps", "wool combs"]}


def ask(url: str, count: int) -> Counter[str]:
    """Send so many requests one after the other, and count their statuses."""
    statuses = Counter[str]()
    with httpx.Client(base_url=url, **AS_CALLER) as http:
        for _ in range(count):
            try:
                statuses[str(http.post("/v1/correct", json=ITEM).status_code)] += 1
            except httpx.HTTPError as error:
                statuses[f"lost: {type(error).__name__}"] += 1
    return statuses


def answers(port: int) -> bool:
    """Return True if the balancer uses a service again."""
    counts = httpx.get(f"http://127.0.0.1:{port}/metrics", **AS_CALLER).text
    return 'lastword_requests_total{route="/v1/correct",status="200"}' in counts


def test_a_rolling_restart_loses_no_request(forks):
    ports = [free_port(), free_port()]
    with ExitStack() as stack:

        def start(port: int):
            environment = os.environ | {"LASTWORD_TOKEN": "me"}
            process = stack.enter_context(forks.start(*SERVE, str(port), env=environment))
            events = (json.loads(line)["event"] for line in process.stderr)
            assert next(events) == "loading" and "started" in events
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process

        processes = [start(port) for port in ports]
        with balanced(ports) as url:
            assert httpx.get(f"{url}/v1/model", trust_env=False).status_code == 401
            loads, stop = Counter[str](), threading.Event()

            def load() -> None:
                while not stop.is_set():
                    loads.update(ask(url, 5))

            thread = threading.Thread(target=load)
            thread.start()
            for place, port in enumerate(ports):
                count = loads.total()
                processes[place].send_signal(signal.SIGTERM)
                # From the other one alone.
                wait_until(lambda n=count: loads.total() >= n + 10, PATIENCE_SECONDS)
                assert processes[place].wait(PATIENCE_SECONDS) == 0
                processes[place] = start(port)
                wait_until(lambda p=port: answers(p), PATIENCE_SECONDS, pause=0.1)
            stop.set()
            thread.join(PATIENCE_SECONDS)
        assert set(loads) == {"200"}
        for process in processes:
            process.kill()
