"""A full disk: commands print one line and leave existing files unchanged."""

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from forked import Forks

from lastword.records.info import find_cells
from lastword.records.store import part_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here"),
]


@pytest.fixture
def command(forks: Forks) -> Callable[..., CompletedProcess[str]]:
    """Run the command line with at most `most` bytes per file, or with stdout on a full disk."""
    variables = os.environ | {"COLUMNS": "200"}

    def call(*arguments: object, **limits: Any) -> CompletedProcess[str]:
        return forks.run("-m", "lastword", *arguments, env=variables, **limits)

    return call


def test_an_answer_that_cannot_be_written_is_an_error_in_one_line(command):
    candidates = ("--candidate", "a", "--candidate", "b")
    args = ("correct", "--model", "lastword/demo-organism", "--prompt", "Q:", *candidates)
    process = command(*args, stdout="/dev/full")
    assert process.returncode == 1
    message = "lastword: No space left on device: make room, and run it again\n"
    assert process.stderr.endswith(message) and "Traceback" not in process.stderr


def test_an_evaluation_resumes_after_a_full_disk(command, tmp_path):
    args = ["eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--out", tmp_path]
    args += ["--limit", "40", "--load", "batch_tokens=700"]
    whole = command(*args)
    assert whole.returncode == 0, whole.stderr
    (cell,) = find_cells(tmp_path)
    (part,) = part_files(cell)
    size = part.stat().st_size
    part.unlink()
    process = command(*args, most=size // 2)
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert "File too large" in process.stderr
    assert not part_files(cell) and not list(cell.glob(".*.tmp"))
    assert command(*args).returncode == 0
    assert part_files(cell) == [part]
