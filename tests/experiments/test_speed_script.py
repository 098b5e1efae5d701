"""The script of the speed targets: its items, stages that are not done twice, and its table."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from lastword import Item, Tracer

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def speed(script):
    return script("speed")


def test_neighbours_prompts_stand_before_an_items_own(speed):
    joined = speed.joined([Item(name, ("x", "y")) for name in "abc"], 2)
    assert [i.prompt.replace("\n\n", " ") for i in joined] == ["b c a", "c a b", "a b c"]


def test_a_prompt_is_cut_at_its_left_end(speed):
    (encoded,) = Tracer.demo().encode([Item("Question: Who came? Answer:", ("a hat", "a boat"))])
    short = speed.cut(encoded, 3)
    assert short.prompt.boundaries == (3, 3)
    for whole, end, boundary in zip(
        encoded.prompt.sequences, short.prompt.sequences, encoded.prompt.boundaries, strict=True
    ):
        assert end == whole[boundary - 3 :]
    assert speed.cut(encoded, 0) == encoded


def test_a_stage_that_is_kept_is_not_timed_again(speed, tmp_path, monkeypatch, capsys):
    command = ["speed.py", "--model", "lastword/demo-organism", "--setup", "one-item"]
    command += ["--against", "padded base", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    speed.main()
    (file,) = tmp_path.iterdir()
    record = json.loads(file.read_text())
    assert file.name == "speed-demo-organism-one-item.json"
    assert record["same_decisions"] and record["agreement"]["padded base"] <= record["tolerance"]
    first = capsys.readouterr().out
    reads = record["meters"]["ours, everything read"]["reads"]
    assert f"| {reads:,} (100%) |" in first and " of padded base |" in first
    monkeypatch.setattr(speed, "stage", lambda *_: pytest.fail("timed again"))
    speed.main()
    assert capsys.readouterr().out.splitlines()[-3:] == first.splitlines()[-3:]


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


def test_no_ratio_is_told_of_sums_that_do_not_agree(speed):
    record = {"seconds": {"ours, staged": 1.0, "lm-eval hf": 4.0}, "meters": {"ours, staged": {}}}
    record |= {"agreement": {"lm-eval hf": 0.1}}
    for tolerance, same, told in ((0.2, True, "0.250"), (0.01, True, "–"), (0.2, False, "–")):
        own = record | {"tolerance": tolerance, "same_decisions": same}
        assert speed.over(own, "ours, staged") == told


def test_files_are_named_after_the_model_and_its_dtype(speed):
    options = argparse.Namespace(model="a/b-c", dtype="bfloat16", head_dtype="model")
    assert speed.label(options) == "b-c-bfloat16-head-model"
