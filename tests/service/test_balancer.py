"""Two services behind a balancer, each stopped and started anew under load: nothing is lost."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import populations
import pytest
from clients import PYTHON
from forked import Fork, Forks
from served import free_port

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
    """One of the services: its port stays when it is started anew."""

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
        told = httpx.get(f"{self.url}/v1/model", trust_env=False).json()
        return int(told["oversight"]["remembered"]["labels"])

    def wait_for_answers(self) -> None:
        """Wait until it has answered since its start: then the balancer knows that it is there."""
        latest = time.monotonic() + PATIENCE_SECONDS
        while not sum(self._metric('lastword_requests_total{route="/v1/correct",status="200"}')):
            assert time.monotonic() < latest, "the balancer sends it nothing"
            time.sleep(0.1)

    def _metric(self, name: str) -> list[float]:
        lines = httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(name)]


@contextmanager
def balanced(ports: list[int]):
    """The address of a balancer in front of two services."""
    front = f"127.0.0.1:{free_port()}"
    addresses = [f"127.0.0.1:{port}" for port in ports]
    names = ("LASTWORD_FRONT", "LASTWORD_A", "LASTWORD_B")
    environment = os.environ | dict(zip(names, (front, *addresses), strict=True))
    with subprocess.Popen(["haproxy", "-db", "-f", str(CONFIGURATION)], env=environment) as process:
        try:
            yield f"http://{front}"
        finally:
            process.terminate()


class Echo(BaseHTTPRequestHandler):
    """A service that says who the balancer says is asking."""

    def do_GET(self) -> None:
        said = json.dumps(self.headers.get_all("x-client")).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_whoever_asks_is_named_by_the_balancer_and_not_by_himself():
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        with balanced([service.server_port] * 2) as url:
            asked, latest = None, time.monotonic() + PATIENCE_SECONDS
            while asked is None or asked.status_code != 200:
                assert time.monotonic() < latest
                with suppress(httpx.HTTPError):
                    headers = [("x-client", "forged"), ("x-client", "again")]
                    asked = httpx.get(url, headers=headers, trust_env=False)
                time.sleep(0.1)
        service.shutdown()
    assert asked.json() == ["127.0.0.1"]


class Clients:
    """Ask through the balancer, one request after the other, and label every answer at once.

    Attributes:
        statuses: Of what was asked.
        labels: What labels were told in the end; one that is told to come again does.
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
        """Wait until so many more have been answered."""
        latest, many = time.monotonic() + PATIENCE_SECONDS, self.statuses.total() + more
        while self.statuses.total() < many:
            assert time.monotonic() < latest, "nothing is answered"
            time.sleep(0.01)

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

    def _label(self, http: httpx.Client, told: dict) -> str:
        """Label an answer; whose service is being started anew is told so until it is there."""
        label, latest = {"id": told["feedback_id"], "right": 0}, time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = http.post("/v1/feedback", json=label)
            if answer.status_code != 503 or time.monotonic() > latest:
                return str(answer.status_code)
            time.sleep(0.2)


# Until its input ends; it comes again by itself as often as it does for everybody.
STOCK = """
import sys, threading
from openai import OpenAI
client, stop = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none"), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
goods, count = {"guided_choice": ["clay lamps", "cedar boats"]}, 0
(model,) = client.models.list()
while not stop.wait(0.05):
    client.completions.create(model=model.id, prompt="Baevwick sells", extra_body=goods)
    count += 1
print(count)
"""


@contextmanager
def stock_client(url: str):
    """A stock client that asks until the block ends, and must never meet an error."""
    if not PYTHON.is_file():
        yield
        return
    command = [str(PYTHON), "-c", STOCK, url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        yield
        told, wrong = process.communicate("", PATIENCE_SECONDS)
    assert process.returncode == 0 and int(told) > 20, wrong


def test_a_rolling_restart_loses_no_request_and_no_label(forks, tmp_path, database):
    subject, policy = Decider.demo().subject, Policy(("decisive", "early"), 0.25)
    certificate = populations.certificate(subject, policy, Terms(0.1), 18, 1, 120)
    path = tmp_path / "certificate.toml"
    path.write_text(certificate.to_toml(), encoding="utf-8")
    replicas = [Replica(forks, path, database) for _ in range(2)]
    with ExitStack() as stack:
        processes = [replica.start(stack) for replica in replicas]
        url = stack.enter_context(balanced([own.port for own in replicas]))
        with Clients(url, 4) as clients, stock_client(url):
            clients.wait_for(20)
            for replica, process in zip(replicas, processes, strict=True):
                process.send_signal(signal.SIGTERM)
                clients.wait_for(10)  # of the other one alone
                assert process.wait(PATIENCE_SECONDS) == 0
                replica.start(stack)
                replica.wait_for_answers()
        assert set(clients.statuses) == set(clients.labels) == {"200"}
        assert clients.labels.total() == clients.statuses.total()
        assert [replica.remembered() for replica in replicas] == 2 * [clients.labels.total()]
        for process in processes:
            process.kill()
