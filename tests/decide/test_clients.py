"""The programs of docs/service.md run with their clients and get a probe's answer."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import PYTHON, needs_clients
from served import running

from lastword import Choice, Decider, ProbeClassifier, Tracer

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
TEAMS, *PROGRAMS = re.findall(
    "```py\n(.*?)```", PAGE.partition("## Clients")[2].partition("\n## ")[0], re.DOTALL
)
TEXTS = {
    "account": ["I forgot my password.", "Change my address, please."],
    "billing": ["I paid twice.", "The invoice is wrong."],
    "returns": ["I want to send it back.", "Take it back, please."],
    "shipping": ["Where is my parcel?", "The parcel is late."],
    "technical": ["It does not switch on.", "How do I use it?"],
}


@pytest.fixture(scope="module")
def answers() -> Iterator[tuple[str, str]]:
    """Yield a server with a probe, and the probe's answer, which differs from the model's."""
    question, text = {"team": Choice("Which team?", [*TEXTS])}, "My parcel is not here."
    pairs = [(text, team) for team, texts in TEXTS.items() for text in texts]
    classifier = ProbeClassifier(Tracer.demo(), "Which team?").fit(*zip(*pairs, strict=True))
    bare, probed = Decider.demo(), Decider.demo(probes=[classifier.probe_])
    model, probe = (d.decide(text, question)["team"].choice for d in (bare, probed))
    assert probe != model
    with running(probed) as served:
        yield served.url, str(probe)


@needs_clients
@pytest.mark.parametrize("program", PROGRAMS, ids=["openai", "typesafe", "google", "chat"])
def test_every_client_gets_the_probes_answer(answers, program):
    url, team = answers
    program = program.replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        [PYTHON, "-c", TEAMS + program.replace("smollm2-135m", "demo-organism")],
        env={"NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, f"{team}\n"), done.stderr
