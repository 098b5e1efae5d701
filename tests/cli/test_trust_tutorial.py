"""The tutorial of docs/trust.md, run as it stands: four commands and what they print."""

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

from lastword.trust.terms import Terms

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
def typed(forks: Forks, tmp_path: Path) -> Callable[[str], str]:
    """What a program, or a command of lastword, prints in the reader's folder."""

    def run(text: str) -> str:
        command = ["-c", text]
        if text.startswith("lastword "):
            command = ["-m", *words(text)]
        done = forks.run(*command, cwd=tmp_path, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(typed, forks, tmp_path):
    evaluate, certify, serve = COMMANDS
    make, ask, within = PYTHON
    typed(make)
    assert "correction helps" in typed(evaluate)
    assert typed(certify) == PRINTED
    command = ("-m", *words(serve), "--port", "0")  # 8000 may be taken here
    with forks.start(*command, cwd=tmp_path, env=ENVIRONMENT) as served:
        events = map(json.loads, served.stderr)
        address = next(event["address"] for event in events if event["event"] == "started")
        told = typed(ask.replace("http://127.0.0.1:8000", address))
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
    assert told == "pale cedar boats None\n1 0 False\n"
    assert typed(within) == "corrected pale cedar boats\n"
    assert (tmp_path / "state.db").stat().st_size > 0


def test_the_needed_items_are_the_formula():
    (sentence,) = re.findall(r"^If no answer is broken, (.*)$", PAGE, flags=re.MULTILINE)
    numbers = re.findall(
        r"(\d+)(?: items)?(?: certify a broken rate of at most)? ([\d.]+)%", sentence
    )
    assert len(numbers) == 4
    for items, share in numbers:
        alpha = float(share) / 100
        assert Terms(alpha).least <= int(items)  # it is a promise: rounded up
        assert Terms(0.95 * alpha).least > int(items)
