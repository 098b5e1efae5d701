"""`lastword serve --engine vllm` as a process: it answers, and leaves nothing running behind it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from vllm_home import PYTHON, needs_vllm

from lastword import Tracer
from lastword.lab import demo

pytestmark = [
    pytest.mark.slow,
    needs_vllm,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc"),
]
PATIENCE_SECONDS = 300.0  # vLLM is imported once by each of its processes
MARK = "LASTWORD_TEST_MARK"  # inherited by whatever a service starts, whatever group it makes
TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # one machine, without NUMA nodes


class Serving:
    """A service that is starting, and every process that carries its mark."""

    def __init__(self, *options: str, **environment: str) -> None:
        mark = {MARK: str(uuid4())}
        self._mark = f"{MARK}={mark[MARK]}"
        command = [sys.executable, "-m", "lastword", "serve", "--model", "lastword/demo-organism"]
        command += [
            "--engine",
            "vllm",
            "--engine-options",
            f"vllm_python={PYTHON}",
            "--port",
            "0",
            *options,
        ]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | environment | mark
        )
        assert self.process.stderr is not None
        self._drain = threading.Thread(target=self.process.stderr.read, daemon=True)

    def address(self) -> str:
        """Where it listens, once the model is loaded; what it logs after that is let go."""
        assert self.process.stderr is not None
        events = map(json.loads, iter(self.process.stderr.readline, ""))
        told: str = next(event["address"] for event in events if event["event"] == "started")
        self._drain.start()
        return told

    def end(self) -> None:
        """Kill whatever is left of it."""
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self._drain.ident is not None:
            self._drain.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def running(self) -> list[int]:
        """Processes of it; one that has ended and is not yet waited for shows no environment."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is(pid)]

    def _is(self, pid: int) -> bool:
        try:
            return self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def wait_for(self, count: int) -> bool:
        """Whether so many of it run in the end: at least, or none at all."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            found = len(self.running())
            if found == 0 or found >= count > 0:
                break
            time.sleep(0.2)
        return len(self.running()) >= count if count else not self.running()


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[Serving]:
    started = Serving(*options, **environment)
    try:
        yield started
    finally:
        started.end()


def ask(url: str) -> dict:
    """What the service says of one item, over the network; it is well, too."""
    item = demo.items()[0]
    body = {"prompt": item.prompt, "candidates": list(item.candidates)}
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/correct", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_answers_as_this_process_does_and_ends_when_told(number):
    with serving() as service:
        answer = ask(service.address())
        (expected,) = Tracer.demo("organism").correct_many(demo.items()[:1])
        assert (answer["index"], answer["operator"]) == (expected.index, expected.operator)
        assert len(service.running()) >= 2
        service.process.send_signal(number)
        assert service.process.wait(PATIENCE_SECONDS) == 0
        assert service.wait_for(0)


def test_killed_it_leaves_no_rank_and_no_weights_behind():
    # Not `tmp_path`: vLLM's sockets lie there, whose names may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        with serving(
            "--engine-options", "tensor_parallel=2", **TWO_RANKS, TMPDIR=folder
        ) as service:
            ask(service.address())
            assert len(service.running()) >= 4  # the service, vLLM, and its ranks
            assert [*Path(folder).glob("lastword-dense-*/*.safetensors")]
            service.process.kill()
            assert service.wait_for(0)
            assert not [*Path(folder).glob("lastword-*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_told_to_end_while_it_loads_it_leaves_nothing_behind(number):
    with serving() as service:
        assert service.wait_for(2)  # vLLM has been started, and is far from ready
        service.process.send_signal(number)
        assert service.process.wait(PATIENCE_SECONDS) != 0
        assert service.wait_for(0)
