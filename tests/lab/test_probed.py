"""Probes over records: states equal those of `try`, and no text is answered by a fit on it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lastword import Choice, Tracer
from lastword.decide.decider import Decider
from lastword.decide.item import item_of
from lastword.decide.states import read_states
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
    """Return labelled texts that contain a word of their class."""
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
        candidates = item.candidates[i % 3 :] + item.candidates[: i % 3]  # rotated
        content = {"prompt": item.prompt, "candidates": candidates, "id": str(i), "question": text}
        lines.append(json.dumps(content | {"truthful": candidates.index(label)}))
    path = folder / "items.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    data = jsonl(path).load()
    return Work(data, data.benchmark.template(), **options)


def run(tracer: Tracer, work: Work, folder: Path) -> Cell:
    (cell,) = read_cells(
        runner.execute(Decider(tracer), runner.prepare(Decider(tracer), work), folder).cell
    )
    return cell


@pytest.fixture(scope="module")
def cell(tracer: Tracer, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    folder = tmp_path_factory.mktemp("states")
    methods = resolve(["trace", "base-mean"], tracer.facts)
    return run(tracer, work_of(folder, labelled(), methods=methods, states=True), folder)


def states_of(cell: Cell, tracer: Tracer) -> np.ndarray:
    shape = (tracer.profile.depth + 1, len(POOLINGS), tracer.profile.width)
    rows = {
        place: np.frombuffer(raw, "<f4").reshape(shape)
        for places, frame in cell.slices("states")
        for place, raw in zip(places.tolist(), frame["states"], strict=True)
    }
    return np.stack([rows[place] for place in range(len(rows))])


def test_states_in_records_equal_those_of_a_trial(cell, tracer):
    texts = [text for text, _ in labelled()]
    expected = read_states(tracer, texts, QUESTION, TEMPLATE, POOLINGS)
    np.testing.assert_allclose(states_of(cell, tracer), expected, atol=1e-5)


def test_without_states_the_files_do_not_mention_them(tracer, tmp_path):
    run(tracer, work_of(tmp_path, labelled(6)), tmp_path)
    (info,) = tmp_path.rglob("run.json")
    assert not [name for name in json.loads(info.read_text()) if "state" in name]
    for path in tmp_path.rglob("*.parquet"):
        assert "states" not in pq.read_schema(path).names


def test_shards_with_states_are_merged(cell, tracer, tmp_path):
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


def test_probe_and_words_recover_the_classes_in_any_order_of_candidates(cell):
    result = probed(cell)
    right = {name: values.mean() for name, values in result.right.items()}
    assert right[WORDS] > 0.6 and right[PROBE] > 0.6
    np.testing.assert_array_equal(result.right[LAST], result.by_depth[:, -1])
    truths = cell.items["truthful"].iloc[result.places]
    rows = [result.scores[PROBE][place] for place in result.places.tolist()]
    for u, truth, hit in zip(rows, truths, result.right[PROBE], strict=True):
        assert np.exp(u).sum() == pytest.approx(1)
        assert bool(np.asarray(truth)[u.argmax()]) == hit


def test_copies_of_a_text_are_never_on_both_sides(tracer, tmp_path):
    rng = np.random.default_rng(1)
    once = [(text, str(rng.choice([*WORDS_OF]))) for text, _ in labelled(30)]
    result = probed(run(tracer, work_of(tmp_path, once * 2, states=True), tmp_path))
    assert result.right[PROBE].mean() < 0.6  # it would be 1 if copies were on both sides
    assert result.by_depth.mean(axis=0).max() < 0.6


def test_a_comparison_has_rows_of_probes_or_the_reason_why_not(cell, tracer, tmp_path):
    result = probed(cell)
    folder = cell.source.parts[0].parent
    (compared,) = read_comparisons(folder, [cell])
    standings = {s.method: s for s in compared.standings}
    assert [*standings] == ["trace", "base-mean", PROBE, LAST]
    for name in (PROBE, LAST):
        assert standings[name].mc1 == pytest.approx(result.right[name].mean())
        assert standings[name].items == len(result.places)
    judged, *_ = comparison_tables([compared])
    shares = {row[2]: row[4] for row in judged.rows}
    assert shares[WORDS] == pytest.approx(100 * result.right[WORDS].mean())
    methods = resolve(["base-mean"], tracer.facts)
    bare = run(tracer, work_of(tmp_path, labelled(6), methods=methods), tmp_path)
    (compared,) = read_comparisons(tmp_path, [bare])
    assert [s.method for s in compared.standings] == ["base-mean"]
    judged, *_ = comparison_tables([compared])
    assert any(compared.unprobed in note for note in judged.notes)


def test_questions_without_a_probe_have_a_reason(cell, tracer, tmp_path):
    assert "differ" in obstacle([("a", "b"), ("a", "c")], [(True, False)] * 2)
    assert "one right" in obstacle([("a", "b")] * 2, [(True, False), (True, True)])
    assert "one right" in obstacle([("a", "b")], [None])
    assert obstacle([("a", "b"), ("b", "a")], [(True, False)] * 2) == ""
    with pytest.raises(RecordError, match="groups"):
        probed(run(tracer, work_of(tmp_path, labelled(4), states=True), tmp_path))
    talk = work_of(tmp_path, labelled(2), states=True)
    messages = (Message("user", "hello"),)
    examples = tuple(replace(e, messages=messages) for e in talk.dataset.examples)
    with pytest.raises(InputError, match="conversations"):
        replace(talk.dataset, examples=examples).inputs()


def test_accuracy_by_depth_has_a_figure_and_a_table(cell, tracer):
    result = depths(cell)
    assert isinstance(result, Depths)
    assert len(result.head) == len(result.probe) == tracer.profile.depth + 1
    assert result.head[-1] == pytest.approx(result.references["the model"])
    assert result.interval.low <= result.chosen - result.probe[-1] <= result.interval.high
    figure, table = depths_figure([result]), depths_table([result, "another is left out: why"])
    assert figure is not None and len(figure.panels) == 1
    assert len(table.rows) == 1 and "why" in table.notes[-1]
