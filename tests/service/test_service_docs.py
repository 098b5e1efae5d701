"""The command on the page of the service works unchanged; test_clients.py runs its programs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from served import running

from lastword import Decider

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
# The generator of the client is installed next to this Python.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def served():
    with running(Decider.demo()) as service:
        yield service


def block(kind: str, word: str) -> str:
    (text,) = (text for k, text in BLOCKS if k == kind and word in text)
    return text


def run(text: str, kind: str, url: str, folder: Path, python: str = sys.executable) -> str:
    command = ["sh", "-c"] if kind == "sh" else [python, "-c"]
    process = subprocess.run(
        [*command, text.replace(ADDRESS, url)],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        | {"NO_PROXY": "127.0.0.1", "PATH": PATH},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl(served, tmp_path):
    answer = json.loads(run(block("sh", "v1/correct"), "sh", served.url, tmp_path))
    assert answer["schema"] == 1 and answer["answer"] == "pale cedar boats" and answer["corrected"]
