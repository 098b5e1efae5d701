"""Figures of the docs are those of the results that they come from."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


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
