"""Scores that methods compute from records, against those computed while the model runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from lastword import Tracer
from lastword.decide.decider import Decider
from lastword.errors import RecordError
from lastword.lab.benchmarks import find
from lastword.lab.evaluation.runner import evaluate
from lastword.lab.evaluation.work import Work
from lastword.lab.report.comparison import read_comparisons
from lastword.methods import resolve
from lastword.records.cells import read_cells
from lastword.records.derived import derive, facts_of
from lastword.records.info import read_run

NAMES = ["pmi@0.5", "dcpmi", "contextual", "early-exit@0.5", "question-blind", "trace-gated"]
BATCH = ["batch-calibrated"]


def rows() -> Iterator[dict[str, Any]]:
    """Yield questions with one label set in changing order."""
    labels = ["grey wool boats", "green copper hats", "copper lamps"]
    questions = [e.fields["question"] for e in find("demo").load(limit=24).examples]
    for n, question in enumerate(questions):
        order = [labels[(n + k) % 3] for k in range(3)]
        prompt = f"Question: {question} Answer:"
        yield {"prompt": prompt, "question": question, "candidates": order, "truthful": [n % 2]}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tracer = Tracer.demo()
    path = tmp_path_factory.mktemp("items") / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    dataset = find(f"jsonl:{path}").load()
    work = Work(dataset, dataset.benchmark.template(), "all", resolve(NAMES + BATCH, tracer.facts))
    decider = Decider(tracer)
    out = Path(str(tmp_path_factory.mktemp("run")))
    return evaluate(decider, work, out).cell


def test_scores_from_records_equal_those_of_the_run(cell):
    run, (read,) = read_run(cell), read_cells(cell)
    derived = derive(read, resolve(NAMES + BATCH, facts_of(run)))
    stored = [dict(row) for row in read.whole(np.arange(len(read.records)))["methods"]]
    for name in NAMES:
        for ours, row in zip(derived[name], stored, strict=True):
            np.testing.assert_allclose(ours, row[name], rtol=1e-9, atol=1e-9)
    for name in BATCH:
        assert all(row[name] is None for row in stored)  # needs the mean over all items
    with pytest.raises(RecordError, match="no scores of dola"):
        derive(read, resolve(["dola"], facts_of(run)))


def test_a_comparison_calibrates_by_the_mean_over_the_cell(cell):
    (read,) = read_cells(cell)
    (compared,) = read_comparisons(cell, [read])
    (standing,) = (each for each in compared.standings if each.method == "batch-calibrated")
    frame = read.whole(np.arange(len(read.records)))
    by_label = [np.argsort(candidates) for candidates in frame["candidates"]]
    b, true = (
        np.stack([np.array(u)[order] for u, order in zip(frame[column], by_label, strict=True)])
        for column in ("base_scores", "truthful")
    )
    p = softmax(b, axis=1)
    right = true[np.arange(len(p)), (p - p.mean(axis=0)).argmax(axis=1)]
    assert standing.items == len(frame) and standing.mc1 == pytest.approx(right.mean())
