"""The tables about speed agree with the stored results."""

import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "experiments" / "README.md"


@pytest.fixture(scope="module")
def speed(script):
    return script("speed")


def test_the_table_of_the_docs_agrees_with_the_results(speed):
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    files = sorted((REPOSITORY / "experiments" / "results").glob("speed-*.json"))
    assert files
    for file in files:
        assert set(speed.rows(json.loads(file.read_text(encoding="utf-8")))) <= set(lines), file


def test_the_costs_of_the_docs_agree_with_the_results():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    folder = REPOSITORY / "experiments" / "results" / "plain"
    (file,) = folder.glob("*.json")
    costs = json.loads(file.read_text(encoding="utf-8"))["costs"]
    assert {f"| {name} | {ratio:.2f} |" for name, ratio in costs.items()} <= set(lines)
    assert len(costs) == 3
