"""`lastword serve --engine vllm` as a process: it answers, and leaves no process behind."""

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
PATIENCE_SECONDS = 300.0  # each process of vLLM imports it anew
MARK = "LASTWORD_TEST_MARK"  # every process that a service starts inherits it
TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # one machine, without NUMA nodes


class Serving:
    """A service, and every process with its mark."""

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
        """Wait until the model is loaded, and return the address; later logs are discarded."""
        assert self.process.stderr is not None
        events = map(json.loads, iter(self.process.stderr.readline, ""))
        address: str = next(event["address"] for event in events if event["event"] == "started")
        self._drain.start()
        return address

    def end(self) -> None:
        """Kill its remaining processes."""
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self._drain.ident is not None:
            self._drain.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def running(self) -> list[int]:
        """Return its processes; a zombie has no environment and is not counted."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is(pid)]

    def _is(self, pid: int) -> bool:
        try:
            return self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def wait_for(self, count: int) -> bool:
        """Wait until at least so many of its processes run, or none; return True if so."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            running = len(self.running())
            if running == 0 or running >= count > 0:
                break
            time.sleep(0.2)
        return len(self.running()) >= count if count else not self.running()


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[Serving]:
    service = Serving(*options, **environment)
    try:
        yield service
    finally:
        service.end()


def ask(url: str) -> dict:
    """Check that the service is ready, and return its answer to one item."""
    item = demo.items()[0]
    body = {"prompt": item.prompt, "candidates": list(item.candidates)}
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/correct", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_answers_as_this_process_does_and_ends_on_a_signal(number):
    with serving() as service:
        answer = ask(service.address())
        (expected,) = Tracer.demo("organism").correct_many(demo.items()[:1])
        assert (answer["index"], answer["operator"]) == (expected.index, expected.operator)
        assert len(service.running()) >= 2
        service.process.send_signal(number)
        assert service.process.wait(PATIENCE_SECONDS) == 0
        assert service.wait_for(0)


def test_a_kill_leaves_no_rank_and_no_weights_behind():
    # Not `tmp_path`: the paths of vLLM's sockets may have only 107 characters.
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
def test_a_signal_while_it_loads_leaves_nothing_behind(number):
    with serving() as service:
        assert service.wait_for(2)  # vLLM has started, but is not ready
        service.process.send_signal(number)
        assert service.process.wait(PATIENCE_SECONDS) != 0
        assert service.wait_for(0)
