"""A disk that is full, for the commands that write: one line, and what was there is as it was."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from forked import Forks

from lastword.records.info import find_cells
from lastword.records.parts import part_paths

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here"),
]
ITEM = {"prompt": "Question: Which goods come from Baevwick? Answer:", "candidates": ["a", "b"]}


@pytest.fixture
def command(forks: Forks) -> Callable[..., CompletedProcess[str]]:
    """The command line: `most` bytes a file, or its output on a disk that is full."""
    variables = os.environ | {"COLUMNS": "200"}

    def call(*arguments: object, **limits: Any) -> CompletedProcess[str]:
        return forks.run("-m", "lastword", *arguments, env=variables, **limits)

    return call


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_one_line(command, form):
    candidates = ("--candidate", "a", "--candidate", "b")
    asked = ("correct", "--model", "lastword/demo-organism", "--prompt", "Q:", *candidates)
    done = command(*asked, *form, stdout="/dev/full")
    assert done.returncode == 1
    told = "lastword: No space left on device: make room, and run it again\n"
    assert done.stderr.endswith(told) and "Traceback" not in done.stderr


def test_corrections_that_cannot_be_written_leave_the_file_as_it_was(command, tmp_path):
    items, out = tmp_path / "items.jsonl", tmp_path / "out.jsonl"
    items.write_text("".join(json.dumps(ITEM | {"id": str(i)}) + "\n" for i in range(40)))
    out.write_text("what was there\n")
    asked = ("correct", "--model", "lastword/demo-organism", "--input", items, "--output", out)
    done = command(*asked, "--full", most=8 * 1024)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert "cannot write" in done.stderr and str(out) in done.stderr
    assert out.read_text() == "what was there\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["items.jsonl", "out.jsonl"]


def test_an_evaluation_that_cannot_be_written_goes_on_where_it_stopped(command, tmp_path):
    asked = ["eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--out", tmp_path]
    asked += ["--limit", "40", "--load", "batch_tokens=700"]
    whole = command(*asked)
    assert whole.returncode == 0, whole.stderr
    (cell,) = find_cells(tmp_path)
    parts = part_paths(cell)
    sizes = {group: path.stat().st_size for group, path in parts.items()}
    largest = max(sizes, key=lambda group: sizes[group])
    kept = {g: p.read_bytes() for g, p in parts.items() if sizes[g] < sizes[largest]}
    parts[largest].unlink()
    done = command(*asked, most=sizes[largest] // 2)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert {g: p.read_bytes() for g, p in part_paths(cell).items() if g in kept} == kept
    assert kept and largest not in part_paths(cell) and not list(cell.glob(".*.tmp"))
    assert command(*asked).returncode == 0
    assert part_paths(cell).keys() == parts.keys()
