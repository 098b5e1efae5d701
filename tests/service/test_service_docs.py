"""The commands and programs on the page of the service work unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clients import PYTHON, needs_clients
from served import running

from lastword import Choice, Decider, Tracer

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
# The generator of the client is installed next to this Python.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
TEAMS, PLACES = ["billing", "delivery"], ["South America", "West Africa", "New Guinea"]
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


def test_httpx(served, tmp_path):
    first, second = run(block("python", "httpx"), "python", served.url, tmp_path).splitlines()
    assert first == "1 pale cedar boats None"
    assert second.startswith("2 in the ") and second.endswith(" None")


def test_the_generated_client(served, tmp_path):
    generate = block("sh", "openapi-python-client").split("\n", 1)[1]  # it is installed already
    run(generate, "sh", served.url, tmp_path)
    output = run(block("python", "lastword_client"), "python", served.url, tmp_path)
    assert output == "pale cedar boats decisive\n"


# Clients of other services, in a separate environment


@needs_clients
def test_the_openai_client(served, tmp_path):
    """Run each program for the client on the page."""

    def answer_of(word: str) -> str:
        text = block("python", word)
        return run(text, "python", served.url, tmp_path, str(PYTHON)).removesuffix("\n")

    demo = Tracer.demo()
    team = Decider(demo).decide("My parcel is not here.", {"q": Choice("Which team?", TEAMS)})
    assert answer_of("Literal[") == f"{team['q'].choice} model"
    where = Decider(demo).decide("Where do guinea pigs come from?", {"q": Choice("", PLACES)})
    answer, _, share = answer_of("stream=True").rpartition(" ")
    assert answer.strip() == where["q"].choice
    assert float(share) == pytest.approx(where["q"].probability, abs=1e-4)


def test_the_table_of_refusals_lists_every_code():
    from lastword.service.refusal import STATUS

    for code, status in STATUS.items():
        if code != "client_left":  # no client reads this refusal
            assert re.search(rf"\| [^|]*{status}[^|]* \| [^|]*`{code}`", PAGE), code
