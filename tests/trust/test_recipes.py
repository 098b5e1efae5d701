"""The recipes of docs/tables.md for the results of other tools."""

import json
import re
from pathlib import Path

import pytest

from lastword.trust.predictions import PlainTable, read_plain

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
HARNESS, PROMPTFOO = "samples_quiz.jsonl", "promptfoo-results.json"


@pytest.fixture
def example(tmp_path, monkeypatch) -> Path:
    """Return the folder of the examples, in which a recipe's input is written."""
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "examples").mkdir()
    return folder


def made_by(source: str, result: str, **given: object) -> PlainTable:
    (recipe,) = (r for r in re.findall("```py(?:thon)?\n(.*?)```", PAGE, re.DOTALL) if source in r)
    exec(recipe, given)
    return read_plain(Path(result))


def test_samples_of_one_filter_have_the_harness_accuracy(example):
    lines = (ROOT / "examples" / HARNESS).read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    others = [s | {"filter": "strict", "target": "9"} for s in samples]
    (example / HARNESS).write_text("\n".join(map(json.dumps, [*others, *samples])))
    table = made_by(HARNESS, "quiz.jsonl")
    assert (table.predictions == table.truths).tolist() == [s["acc"] == 1 for s in samples]
    assert (table.confidence > 0).all()


def test_systems_of_promptfoo_are_told_apart_by_their_index(example):
    """Results come in the order of completion, and a repeat of a test is no further row."""
    content = json.loads((ROOT / "examples" / PROMPTFOO).read_text())
    results = content["results"]["results"]
    right = dict.fromkeys((0, 1), 0)
    for result in results:
        right[result["promptIdx"]] += result["success"]
    content["results"]["results"] = [*results[::-1], *results[:7]]
    (example / PROMPTFOO).write_text(json.dumps(content))
    table = made_by(PROMPTFOO, "promptfoo.jsonl")
    assert len(table.rows) == len(results) // 2 == 24
    assert (table.columns["truth"], table.columns["text"]) == ("label", "text")
    assert (table.predictions == table.truths).sum() == right[0]
    assert (table.cells("rival") == table.truths).sum() == right[1]
