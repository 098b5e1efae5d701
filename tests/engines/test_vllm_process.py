"""The side process and its requests, without vLLM: any Python can start it."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lastword
from lastword.engines.vllm import side, worker
from lastword.engines.vllm.backend import requests
from lastword.engines.vllm.checkpoint import find
from lastword.engines.vllm.process import Process, SideLostError
from lastword.engines.vllm.settings import VllmSettings
from lastword.errors import InputError, ModelError
from lastword.model.options import LoadOptions
from lastword.text.branch import Branch
from lastword.text.forest import build

HERE = Path(sys.executable)


@pytest.fixture
def process():
    started = Process(HERE)
    yield started
    started.close()


def alive(pid: int) -> bool:
    """Return True if a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
class TestNoOrphans:
    def test_the_side_ends_when_it_is_closed(self, process):
        pid = process.pid
        assert alive(pid)
        process.close()
        assert not alive(pid)

    def test_the_side_ends_with_a_parent_that_is_killed_and_leaves_no_folder(self, tmp_path):
        program = (
            "import sys, tempfile, time\nfrom pathlib import Path\n"
            "from lastword.engines.vllm.process import Process\n"
            "weights = tempfile.mkdtemp()\n(Path(weights) / 'w').touch()\n"
            "side = Process(Path(sys.executable), [weights])\n"
            "print(side.pid, flush=True)\ntime.sleep(60)"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid) and len([*tmp_path.iterdir()]) == 2
        parent.kill()
        parent.wait()
        parent.stdout.close()
        assert gone(pid)
        assert not [*tmp_path.iterdir()]
        # The folder had only a link to lastword.
        assert (Path(lastword.__file__).parent / "version.py").is_file()

    def test_the_error_names_the_signal_that_ended_the_side(self, process):
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(SideLostError, match="ended by signal SIGKILL"):
            process.call("missing", [[1, 2]])


def test_the_error_of_a_failed_start_shows_its_last_lines(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    with pytest.raises(SideLostError, match="exit code 3.*last lines:\nno such luck"):
        Process(broken).call("load", {})


def test_an_error_in_the_side_is_one_line_and_the_side_continues(process):
    for _ in range(2):
        with pytest.raises(
            ModelError, match="^vLLM: AttributeError: .*has no attribute 'missing'$"
        ):
            process.call("missing", [[1, 2]])


def test_an_interpreter_without_vllm_is_refused_before_the_start(tmp_path):
    with pytest.raises(ModelError, match="no vLLM for .*: give --engine-options vllm_python=PATH"):
        VllmSettings(HERE).version()
    with pytest.raises(ModelError, match="no Python at .*: give --engine-options vllm_python=PATH"):
        VllmSettings(tmp_path / "python").version()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VllmSettings(HERE, options={"worker_cls": "x"}), "sets worker_cls"),
        (
            lambda: VllmSettings(HERE, options={"pipeline_parallel_size": 2}),
            "not pipeline parallelism",
        ),
        (lambda: find(LoadOptions("some/model", attention="eager")), "an option of transformers"),
        (lambda: find(LoadOptions("some/model", device_map="auto")), "an option of transformers"),
    ],
)
def test_options_that_the_hooks_set_and_those_of_transformers_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def closure(path: Path, visited: set[Path]) -> set[str]:
    """Return the packages that a module of lastword imports at load, directly or indirectly."""
    if path in visited:
        return set()
    visited.add(path)
    packages = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            ours = Path(lastword.__file__).parents[1] / name.replace(".", "/")
            inner = next(
                (p for p in (ours.with_suffix(".py"), ours / "__init__.py") if p.is_file()), None
            )
            packages |= {name.partition(".")[0]} if inner is None else closure(inner, visited)
    return packages - set(sys.stdlib_module_names)


def test_modules_that_run_with_vllm_import_only_its_packages():
    visited: set[Path] = set()
    packages = closure(Path(side.__file__), visited) | closure(Path(worker.__file__), visited)
    assert len(visited) > 5 and packages == {"jaxtyping", "numpy", "torch"}


def test_every_row_is_read_in_each_request_that_contains_it():
    branches = [
        Branch((1, 2, 3, 4), 2),
        Branch((1, 2, 3, 9, 7), 2),  # shares the rows up to token 3 with the first
        Branch((1, 2, 3, 9, 7, 5, 6), 5),  # its prompt contains the second
        Branch((8, 2, 3), 1),
    ]
    forest = build(branches)
    batch = requests(forest)
    # Only leaves of the forest are requests.
    assert sorted(r["ids"] for r in batch) == [[1, 2, 3, 9, 7, 5], [8, 2]]
    prefixes: dict[int, set[tuple[int, ...]]] = {}
    for r in batch:
        for position, row in zip(r["positions"], r["rows"], strict=True):
            prefixes.setdefault(row, set()).add(tuple(r["ids"][: position + 1]))
    reads = forest.reads
    assert sorted(prefixes) == list(range(len(reads.rows)))
    for place, (row, token) in enumerate(zip(reads.row, reads.token, strict=True)):
        branch = branches[reads.branch[place]]
        first = int(np.flatnonzero(reads.branch == reads.branch[place])[0])
        before = branch.tokens[: branch.boundary + place - first]
        assert prefixes[row] == {before} and branch.tokens[len(before)] == token
