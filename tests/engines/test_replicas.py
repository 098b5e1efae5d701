"""The service on Ray Serve: the same application, several times behind one address."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from lastword import Item, Tracer

pytest.importorskip("ray", reason="no Ray here: pip install 'lastword[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_alone")]

PATIENCE_SECONDS = 900.0  # after which a process that lives does nothing more
TOKEN = {"Authorization": "Bearer secret"}


SERVE = ("-m", "lastword", "serve", "--engine", "ray", "--cpus-per-worker", "0.5")
# On a busy machine Ray kills a proxy that is still starting every five seconds, for ever.
PATIENT = {f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": "600" for check in ("READY", "HEALTH")}
ENVIRONMENT = os.environ | {"RAY_ADDRESS": "local"} | PATIENT


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *SERVE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | environment,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    port = free_port()
    child = start(
        "--model", "lastword/demo-organism", "--workers", 2, "--port", port, "--max-candidates", 8,
        LASTWORD_TOKEN="secret",
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=TOKEN) as client:
        try:
            wait_for(client, child)
            yield client, child
        finally:
            child.terminate()
            child.communicate(timeout=PATIENCE_SECONDS)


def wait_for(client: httpx.Client, child: subprocess.Popen[str]) -> None:
    latest = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < latest:
        assert child.poll() is None, child.communicate()[1]
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail("the service did not start")


def items(count: int) -> list[Item]:
    from lastword.benchmarks import find

    benchmark = find("demo")
    made = benchmark.load(None, limit=count).items(benchmark.template())
    return [item for item in made if len(item.candidates) <= 8]


def body(item: Item) -> dict[str, Any]:
    return {"prompt": item.prompt, "candidates": item.candidates, "separator": item.separator}


def test_replicas_answer_as_the_library_does(served):
    client, _ = served
    asked = items(40)
    assert len(asked) > 10
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda i: client.post("/v1/correct", json=body(i)), asked))
    tracer = Tracer.demo()
    for item, answer in zip(asked, answers, strict=True):
        assert answer.status_code == 200, answer.text
        known = tracer.correct(item.prompt, item.candidates, separator=item.separator)
        told = answer.json()
        assert (told["index"], told["operator"]) == (known.index, known.operator)
        assert told["scores"] == pytest.approx(known.scores.tolist(), abs=1e-4)
    # Each replica counts its own requests. The address answers as soon as one of them is ready.
    sent, latest = len(asked), time.monotonic() + PATIENCE_SECONDS
    while not 0 < max(share(client.get("/metrics").text) for _ in range(20)) < sent:
        assert time.monotonic() < latest, "one replica answered everything"
        assert client.post("/v1/correct", json=body(asked[0])).status_code == 200
        sent += 1


def share(page: str) -> float:
    """How many corrections the replica of a page has made."""
    name = 'lastword_requests_total{route="/v1/correct",status="200"} '
    return sum(float(line.removeprefix(name)) for line in page.split("\n") if line.startswith(name))


def test_limits_token_and_streams_are_those_of_the_service(served):
    client, _ = served
    item = items(1)[0]
    assert client.post("/v1/correct", json=body(item), headers={"Authorization": "Bearer x"}
                       ).status_code == 401  # fmt: skip
    many = body(item) | {"candidates": [f"answer {i}" for i in range(9)]}
    refused = client.post("/v1/correct", json=many)
    assert refused.status_code == 422 and "takes 8" in refused.text
    lines = client.post("/v1/correct/batch", json={"items": [body(item)] * 5}).text.splitlines()
    assert len(lines) == 5 and len(set(lines)) == 1
    assert client.get("/openapi.json").json()["info"]["title"] == "lastword"


def test_replicas_that_are_killed_are_replaced_behind_the_same_address(served):
    client, child = served
    item = body(items(1)[0])
    before = client.post("/v1/correct", json=item).json()
    replicas = [
        process
        for process in psutil.Process(child.pid).children(recursive=True)
        if "ServeReplica" in " ".join(process.cmdline())
    ]
    assert len(replicas) == 2
    for replica in replicas:
        replica.kill()
    psutil.wait_procs(replicas, timeout=PATIENCE_SECONDS)
    latest, status = time.monotonic() + PATIENCE_SECONDS, 0
    while status != 200:
        assert time.monotonic() < latest and child.poll() is None, f"last was {status}"
        time.sleep(0.2)
        try:
            answer = client.post("/v1/correct", json=item)
            status = answer.status_code
        except httpx.TransportError:
            status = 0
    assert answer.json() == before


def test_sigterm_under_load_answers_what_was_accepted(served):
    client, child = served
    item = body(items(1)[0])
    answered: list[int] = []

    def ask(_: int) -> None:
        while child.poll() is None:
            try:
                answer = client.post("/v1/correct", json=item)
            except httpx.ConnectError:
                return  # not accepted any more
            answered.append(answer.status_code)
            if answer.status_code != 200:
                return

    with ThreadPoolExecutor(4) as threads:
        running = threads.map(ask, range(4))
        while len(answered) < 20:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        list(running)
    out, err = child.communicate(timeout=PATIENCE_SECONDS)
    assert (child.returncode, out) == (0, ""), err
    assert '"event": "stopped"' in err
    # Nothing broke in the middle: 200, then one refusal (404 once Serve has taken the route away).
    assert set(answered) <= {200, 404, 503} and answered.count(200) >= 20


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--model", "/no/such/model", "--port", "8799"), 1, "no replica starts: no model at"),
        (("--model", "m", "--port", "0"), 1, "give --port a number"),
        (("--model", "m", "--address", "auto"), 1, "set --token"),
        (("--model", "m", "--explorer"), 2, "not with --engine ray"),
    ],
)
def test_what_cannot_be_served_is_one_line(forks, arguments, code, said):
    done = forks.run(*SERVE, *arguments, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (code, "") and said in done.stderr, done.stderr
    *logged, _ = done.stderr.splitlines()
    assert code == 2 or all(json.loads(line)["event"] == "loading" for line in logged)
