"""The script of the speed targets: its items, stages that are not done twice, and its table."""

import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def speed(script):
    return script("speed")


def test_the_table_of_the_docs_is_that_of_the_results(speed):
    told = (REPOSITORY / "docs" / "speed.md").read_text(encoding="utf-8").splitlines()
    kept = sorted((REPOSITORY / "experiments" / "results").glob("speed-*.json"))
    assert kept
    for file in kept:
        assert set(speed.rows(json.loads(file.read_text(encoding="utf-8")))) <= set(told), file


def test_the_costs_of_the_docs_are_those_of_the_results():
    told = (REPOSITORY / "docs" / "speed.md").read_text(encoding="utf-8").splitlines()
    folder = REPOSITORY / "experiments" / "results" / "plain"
    (file,) = folder.glob("*.json")
    costs = json.loads(file.read_text(encoding="utf-8"))["costs"]
    assert {f"| {name} | {ratio:.2f} |" for name, ratio in costs.items()} <= set(told)
    assert len(costs) == 3
