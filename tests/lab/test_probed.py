"""Probes over records: states as a try reads them, and no text answered by its own fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lastword import Choice, Tracer
from lastword.decide.decider import Decider, read_states
from lastword.decide.item import item_of
from lastword.decide.templates import TEMPLATES
from lastword.errors import InputError, RecordError
from lastword.lab.benchmarks.jsonl import jsonl
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.probed import LAST, PROBE, WORDS, obstacle, probed
from lastword.lab.evaluation.work import Work
from lastword.lab.report.comparison import comparison_tables, read_comparisons
from lastword.lab.report.depths import Depths, depths, depths_figure, depths_table
from lastword.methods import resolve
from lastword.probes.state import POOLINGS
from lastword.records.cells import Cell
from lastword.records.merge import merge
from lastword.records.run import Shard
from lastword.records.stored import read_cells
from lastword.text.messages import Message

QUESTION = Choice("What is it about?", ["animal", "money", "rain"])
TEMPLATE = TEMPLATES["decide/plain"]
WORDS_OF = {
    "animal": "fox cat dog bird",
    "money": "bill bank price cost",
    "rain": "wet sky umbrella",
}


@pytest.fixture(scope="module")
def tracer() -> Tracer:
    return Tracer.demo()


def labelled(count: int = 36) -> list[tuple[str, str]]:
    """Texts that name one of their class's words, with their labels."""
    rng = np.random.default_rng(0)
    frames = ("the {} was old", "I saw a {} there", "no {} today", "one {} is enough, they said")
    labels = [list(WORDS_OF)[i % 3] for i in range(count)]
    return [
        (f"{rng.choice(frames).format(rng.choice(WORDS_OF[label].split()))} {i}", label)
        for i, label in enumerate(labels)
    ]


def work_of(folder: Path, rows: list[tuple[str, str]], **options: Any) -> Work:
    lines = []
    for i, (text, label) in enumerate(rows):
        item = item_of(text, QUESTION, TEMPLATE, id=str(i))
        candidates = item.candidates[i % 3 :] + item.candidates[: i % 3]  # the same in any order
        content = {"prompt": item.prompt, "candidates": candidates, "id": str(i), "question": text}
        lines.append(json.dumps(content | {"truthful": candidates.index(label)}))
    path = folder / "made.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    data = jsonl(path).load()
    return Work(data, data.benchmark.template(), **options)


def ran(tracer: Tracer, work: Work, folder: Path) -> Cell:
    (cell,) = read_cells(
        runner.execute(Decider(tracer), runner.prepare(Decider(tracer), work), folder).cell
    )
    return cell


@pytest.fixture(scope="module")
def cell(tracer: Tracer, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    folder = tmp_path_factory.mktemp("states")
    methods = resolve(["trace", "base-mean"], tracer.facts)
    return ran(tracer, work_of(folder, labelled(), methods=methods, states=True), folder)


def states_of(cell: Cell, tracer: Tracer) -> np.ndarray:
    shape = (tracer.profile.depth + 1, len(POOLINGS), tracer.profile.width)
    rows = {
        place: np.frombuffer(raw, "<f4").reshape(shape)
        for places, frame in cell.slices("states")
        for place, raw in zip(places.tolist(), frame["states"], strict=True)
    }
    return np.stack([rows[place] for place in range(len(rows))])


def test_states_in_records_are_those_that_a_try_reads(cell, tracer):
    texts = [text for text, _ in labelled()]
    expected = read_states(tracer, texts, QUESTION, TEMPLATE, POOLINGS)
    np.testing.assert_allclose(states_of(cell, tracer), expected, atol=1e-5)


def test_without_states_the_files_are_as_they_were(tracer, tmp_path):
    ran(tracer, work_of(tmp_path, labelled(6)), tmp_path)
    (info,) = tmp_path.rglob("run.json")
    assert not [name for name in json.loads(info.read_text()) if "state" in name]
    for path in tmp_path.rglob("*.parquet"):
        assert "states" not in pq.read_schema(path).names


def test_shards_with_states_are_merged_whole(cell, tracer, tmp_path):
    job = runner.prepare(Decider(tracer), work_of(tmp_path, labelled(), states=True))
    tracer.batch_tokens, before = 200, tracer.batch_tokens
    try:
        for index in range(2):
            runner.execute(Decider(tracer), job, tmp_path, Shard(index, 2))
    finally:
        tracer.batch_tokens = before
    merge([tmp_path])
    (merged,) = read_cells(tmp_path)
    np.testing.assert_allclose(states_of(merged, tracer), states_of(cell, tracer), atol=1e-5)


def test_probes_and_words_find_what_words_tell_in_any_order_of_the_candidates(cell):
    own = probed(cell)
    right = {name: values.mean() for name, values in own.right.items()}
    assert right[WORDS] > 0.6 and right[PROBE] > 0.6
    np.testing.assert_array_equal(own.right[LAST], own.by_depth[:, -1])
    truths = cell.items["truthful"].iloc[own.places]
    rows = [own.scores[PROBE][place] for place in own.places.tolist()]
    for u, truth, hit in zip(rows, truths, own.right[PROBE], strict=True):
        assert np.exp(u).sum() == pytest.approx(1)
        assert bool(np.asarray(truth)[u.argmax()]) == hit


def test_copies_of_a_text_are_never_on_both_sides(tracer, tmp_path):
    rng = np.random.default_rng(1)
    once = [(text, str(rng.choice([*WORDS_OF]))) for text, _ in labelled(30)]
    own = probed(ran(tracer, work_of(tmp_path, once * 2, states=True), tmp_path))
    assert own.right[PROBE].mean() < 0.6  # with copies on the other side it would find all
    assert own.by_depth.mean(axis=0).max() < 0.6


def test_a_comparison_has_rows_of_probes_or_says_why_it_has_none(cell, tracer, tmp_path):
    own = probed(cell)
    folder = cell.source.parts[0].parent
    (compared,) = read_comparisons(folder, [cell])
    standings = {s.method: s for s in compared.standings}
    assert [*standings] == ["trace", "base-mean", PROBE, LAST]
    for name in (PROBE, LAST):
        assert standings[name].mc1 == pytest.approx(own.right[name].mean())
        assert standings[name].items == len(own.places)
    judged, *_ = comparison_tables([compared])
    shares = {row[2]: row[4] for row in judged.rows}
    assert shares[WORDS] == pytest.approx(100 * own.right[WORDS].mean())
    methods = resolve(["base-mean"], tracer.facts)
    bare = ran(tracer, work_of(tmp_path, labelled(6), methods=methods), tmp_path)
    (compared,) = read_comparisons(tmp_path, [bare])
    assert [s.method for s in compared.standings] == ["base-mean"]
    judged, *_ = comparison_tables([compared])
    assert any(compared.unprobed in note for note in judged.notes)


def test_what_no_probe_can_answer(cell, tracer, tmp_path):
    assert "differ" in obstacle([("a", "b"), ("a", "c")], [(True, False)] * 2)
    assert "one right" in obstacle([("a", "b")] * 2, [(True, False), (True, True)])
    assert "one right" in obstacle([("a", "b")], [None])
    assert obstacle([("a", "b"), ("b", "a")], [(True, False)] * 2) == ""
    with pytest.raises(RecordError, match="groups"):
        probed(ran(tracer, work_of(tmp_path, labelled(4), states=True), tmp_path))
    talk = work_of(tmp_path, labelled(2), states=True)
    messages = (Message("user", "hello"),)
    examples = tuple(replace(e, messages=messages) for e in talk.dataset.examples)
    with pytest.raises(InputError, match="conversations"):
        replace(talk.dataset, examples=examples).inputs()


def test_what_each_depth_knows_is_shown(cell, tracer):
    found = depths(cell)
    assert isinstance(found, Depths)
    assert len(found.head) == len(found.probe) == tracer.profile.depth + 1
    assert found.head[-1] == pytest.approx(found.references["the model"])
    assert found.interval.low <= found.chosen - found.probe[-1] <= found.interval.high
    figure, table = depths_figure([found]), depths_table([found, "another is left out: why"])
    assert figure is not None and len(figure.panels) == 1
    assert len(table.rows) == 1 and "why" in table.notes[-1]
