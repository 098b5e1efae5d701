"""Two services behind a balancer, each restarted under load: no request is lost."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import populations
import pytest
from forked import Fork, Forks
from served import free_port, wait_until

from lastword import Decider
from lastword.lab import demo
from lastword.trust.policy import Policy
from lastword.trust.terms import Terms

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
PATIENCE_SECONDS = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="needs haproxy (Debian's package haproxy)"
    ),
]


class Replica:
    """One of the services; it has the same port after a restart."""

    def __init__(self, forks: Forks, certificate: Path, state: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *("-m", "lastword", "serve", "--model", "lastword/demo-organism"),
            *("--port", str(self.port), "--state", state, "--certificate", str(certificate)),
        ]
        self._forks = forks

    def start(self, stack: ExitStack) -> Fork:
        process = stack.enter_context(self._forks.start(*self._command))
        for line in process.stderr:
            if json.loads(line)["event"] == "started":
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()
        return process

    def remembered(self) -> int:
        status = httpx.get(f"{self.url}/v1/model", trust_env=False).json()
        return int(status["oversight"]["remembered"]["labels"])

    def wait_for_answers(self) -> None:
        """Wait for its first answer since its start; then the balancer uses it again."""
        name = 'lastword_requests_total{route="/v1/correct",status="200"}'
        wait_until(lambda: sum(self._metric(name)), PATIENCE_SECONDS, pause=0.1)

    def _metric(self, name: str) -> list[float]:
        lines = httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(name)]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def balanced(ports: list[int]):
    """Yield the address of a balancer in front of two services, once it listens."""
    port = free_port()
    front = f"127.0.0.1:{port}"
    addresses = [f"127.0.0.1:{port}" for port in ports]
    names = ("LASTWORD_FRONT", "LASTWORD_A", "LASTWORD_B")
    environment = os.environ | dict(zip(names, (front, *addresses), strict=True))
    with subprocess.Popen(["haproxy", "-db", "-f", str(CONFIGURATION)], env=environment) as process:
        try:
            wait_until(lambda: listens(port), PATIENCE_SECONDS)
            yield f"http://{front}"
        finally:
            process.terminate()


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


class Clients:
    """Clients that send one request after the other through the balancer, and label each answer.

    Attributes:
        statuses: Count of each status of the requests.
        labels: Count of each final status of the labels, after retries.
    """

    def __init__(self, url: str, count: int) -> None:
        self._url, self._stop = url, threading.Event()
        self.statuses: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def wait_for(self, more: int) -> None:
        """Wait until the clients have got so many more answers."""
        count = self.statuses.total() + more
        wait_until(lambda: self.statuses.total() >= count, PATIENCE_SECONDS)

    def _run(self) -> None:
        item = demo.items()[0]
        body = {"prompt": item.prompt, "candidates": list(item.candidates)}
        with httpx.Client(base_url=self._url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
            while not self._stop.is_set():
                try:
                    answer = http.post("/v1/correct", json=body)
                except httpx.HTTPError as error:
                    self.statuses[f"lost: {type(error).__name__}"] += 1
                    continue
                self.statuses[str(answer.status_code)] += 1
                if answer.status_code == 200:
                    self.labels[self._label(http, answer.json())] += 1
                self._stop.wait(0.05)

    def _label(self, http: httpx.Client, decision: dict) -> str:
        """Label an answer; try again while its service restarts."""
        label, latest = (
            {"id": decision["feedback_id"], "right": 0},
            time.monotonic() + PATIENCE_SECONDS,
        )
        while True:
            answer = http.post("/v1/feedback", json=label)
            if answer.status_code != 503 or time.monotonic() > latest:
                return str(answer.status_code)
            time.sleep(0.2)


def test_a_rolling_restart_loses_no_request_and_no_label(forks, tmp_path, database):
    subject, policy = Decider.demo().subject, Policy(("decisive", "early"), 0.25)
    certificate = populations.certificate(subject, policy, Terms(0.1), 18, 1, 120)
    path = tmp_path / "certificate.toml"
    path.write_text(certificate.to_toml(), encoding="utf-8")
    replicas = [Replica(forks, path, database) for _ in range(2)]
    with ExitStack() as stack:
        processes = [replica.start(stack) for replica in replicas]
        url = stack.enter_context(balanced([replica.port for replica in replicas]))
        with Clients(url, 4) as clients:
            clients.wait_for(20)
            for replica, process in zip(replicas, processes, strict=True):
                process.send_signal(signal.SIGTERM)
                clients.wait_for(10)  # from the other replica alone
                assert process.wait(PATIENCE_SECONDS) == 0
                replica.start(stack)
                replica.wait_for_answers()
        assert set(clients.statuses) == set(clients.labels) == {"200"}
        assert clients.labels.total() == clients.statuses.total()
        assert [replica.remembered() for replica in replicas] == 2 * [clients.labels.total()]
        for process in processes:
            process.kill()
