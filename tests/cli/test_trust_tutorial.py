"""The tutorial of docs/trust.md: its commands work and print what the page shows."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Forks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
COMMANDS = [text.strip() for kind, text in BLOCKS if kind == "sh"]
(PRINTED,) = (text for kind, text in BLOCKS if kind == "")
ENVIRONMENT = os.environ | {
    "NO_PROXY": "127.0.0.1",
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


@pytest.fixture
def run_text(forks: Forks, tmp_path: Path) -> Callable[[str], str]:
    """Run a program or a command of lastword in a folder, and return its output."""

    def run(text: str) -> str:
        command = ["-c", text]
        if text.startswith("lastword "):
            command = ["-m", *words(text)]
        process = forks.run(*command, cwd=tmp_path, env=ENVIRONMENT)
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run


@pytest.mark.slow
def test_the_tutorial_works_unchanged(run_text, forks, tmp_path):
    evaluate, certify, serve = COMMANDS
    make, ask, within = PYTHON
    run_text(make)
    assert "correction helps" in run_text(evaluate)
    assert run_text(certify) == PRINTED
    command = ("-m", *words(serve), "--port", "0")  # port 8000 may be in use
    with forks.start(*command, cwd=tmp_path, env=ENVIRONMENT) as served:
        events = map(json.loads, served.stderr)
        address = next(event["address"] for event in events if event["event"] == "started")
        output = run_text(ask.replace("http://127.0.0.1:8000", address))
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
    assert output == "pale cedar boats None\n1 0 False\n"
    assert run_text(within) == "corrected pale cedar boats\n"
    assert (tmp_path / "state.db").stat().st_size > 0
