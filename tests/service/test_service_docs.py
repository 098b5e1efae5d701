"""What the service's page tells a stranger to type works as it stands."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from served import running

from tracelm import Tracer

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
# The client's generator is installed beside this Python.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def served():
    with running(Tracer.demo()) as service:
        yield service


def block(kind: str, word: str) -> str:
    (text,) = (text for k, text in BLOCKS if k == kind and word in text)
    return text


def run(text: str, kind: str, url: str, folder: Path) -> str:
    command = ["sh", "-c"] if kind == "sh" else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, text.replace(ADDRESS, url)],
        cwd=folder,
        env=os.environ | {"NO_PROXY": "127.0.0.1", "PATH": PATH},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl(served, tmp_path):
    told = json.loads(run(block("sh", "curl"), "sh", served.url, tmp_path))
    assert told["schema"] == 1 and told["answer"] == "pale cedar boats" and told["corrected"]


def test_httpx(served, tmp_path):
    first, second = run(block("python", "httpx"), "python", served.url, tmp_path).splitlines()
    assert first == "1 pale cedar boats None"
    assert second.startswith("2 in the ") and second.endswith(" None")


def test_the_generated_client(served, tmp_path):
    generate = block("sh", "openapi-python-client").split("\n", 1)[1]  # it is installed
    run(generate, "sh", served.url, tmp_path)
    told = run(block("python", "tracelm_client"), "python", served.url, tmp_path)
    assert told == "pale cedar boats decisive\n"


def test_every_option_of_the_page_is_one_of_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "tracelm", "serve", "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
        check=True,
    ).stdout
    options = set(re.findall(r"`(--[a-z-]+)`", PAGE)) - {"--model"}
    assert {"--shadow", "--log-prompts", "--batch-items", "--deadline"} <= options
    assert [o for o in options if o not in told] == []


def test_the_table_of_refusals_has_every_code():
    from tracelm.service.refusal import STATUS

    for code, status in STATUS.items():
        if code != "client_left":  # nobody is there to read it
            assert re.search(rf"\| [^|]*{status}[^|]* \| [^|]*`{code}`", PAGE), code
