"""Labelled items from records: which ones count, their values, and records that are refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from synthetic import synthetic_cell, write_cells
from tiers import by_night

from lastword.errors import RecordError
from lastword.records.cells import load_records
from lastword.records.info import RUN_FILE
from lastword.rule.theta import Theta
from lastword.trust.certification import outcome, read_sample
from lastword.trust.drift import statistics
from lastword.trust.evidence import Evidence
from lastword.trust.terms import Terms


def write_benchmarks(folder, *benchmarks, items=120, **options):
    for benchmark in benchmarks:
        write_cells(synthetic_cell(benchmark=benchmark, items=items, **options), folder)
    return folder


def test_items_agree_with_the_records(tmp_path):
    records = synthetic_cell(items=80, failed=3)
    write_cells(records, tmp_path)
    items = read_sample(tmp_path).items
    valid = records[records["mc1_base"].notna()]
    assert items.failed == 3 and len(items) == len(valid) < len(records) - 3
    for place, (_, row) in enumerate(valid.iterrows()):
        scores, base = np.array(row["scores"]), np.array(row["base_scores"])
        expected = {
            "mc1": row["mc1"],
            "mc1_base": row["mc1_base"],
            "overrides": np.argmax(scores) != np.argmax(base),
            "operators": row["operator"],
            "margins": pytest.approx(np.subtract(*sorted(scores)[:-3:-1])),
            "confidence": pytest.approx(softmax(scores).max()),
            "base_confidence": pytest.approx(softmax(base).max()),
        }
        for name, value in expected.items():
            holder = items if "base" in name else items.methods["trace"]
            assert getattr(holder, name)[place] == value, name


def test_a_certificate_has_its_subject_and_the_drift_reference(tmp_path):
    write_benchmarks(tmp_path, "halueval-qa", items=400)
    certificate = outcome(read_sample(tmp_path), Terms(0.3, 0.1)).certificate
    assert certificate.subject.model == "org/model-a" and certificate.subject.theta == Theta()
    assert certificate.benchmarks == {"halueval-qa": "of halueval-qa"}
    assert certificate.templates == ("synthetic 1 (000000000000)",)
    assert certificate.counts.items == 400
    records = load_records(tmp_path)
    watched = set(statistics(records.iloc[0].to_dict()))
    assert set(certificate.reference) == watched - {"early"}  # I(M) = 2: mix is used
    assert {len(values) for values in certificate.reference.values()} == {400}
    confident = [softmax(b).max() for b in records["base_scores"]]
    assert certificate.reference["confidence"] == pytest.approx(confident, rel=1e-5)


def test_the_reference_of_a_large_sample_has_a_thousand_items(tmp_path):
    write_benchmarks(tmp_path, "halueval-qa", items=1100)
    assert {len(v) for v in read_sample(tmp_path).reference.values()} == {1000}


def test_records_of_one_model_and_benchmark_are_read(tmp_path):
    write_benchmarks(tmp_path, "halueval-qa", "halueval-sum")
    with pytest.raises(RecordError, match="halueval-qa, halueval-sum; name one of them"):
        read_sample(tmp_path)
    sample = read_sample(tmp_path, "halueval-sum")
    assert len(sample.items) == 120 and sample.cell.benchmark == "halueval-sum"
    with pytest.raises(RecordError, match="no records of demo; it has"):
        read_sample(tmp_path, "demo")
    write_benchmarks(tmp_path, "halueval-qa", model="org/other")
    with pytest.raises(RecordError, match="org/model-a and org/other"):
        read_sample(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"certificate": {"policy": "x"}}, "under a certificate"),
        ({"correction": "pmi@1"}, "was decided by pmi@1"),
        ({"invariant": 0.3}, r"I\(M\) is not the run's"),
        ({}, "is not finished: 8 of 120"),
    ],
)
def test_unfinished_and_certified_runs_are_refused(tmp_path, changes, message):
    write_benchmarks(tmp_path, "halueval-qa")
    (path,) = tmp_path.rglob(RUN_FILE)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if not changes:
        next(tmp_path.rglob("part-00000.parquet")).unlink()
    with pytest.raises(RecordError, match=message):
        read_sample(tmp_path)


def test_statistics_count_the_operator_before_withholding(tmp_path):
    record = synthetic_cell(items=20).iloc[5].to_dict()
    plain = statistics(record)
    assert plain["scalar"] == (record["regime"] == "scalar")
    assert plain[record["operator"]] == 1 if record["operator"] != "base" else True
    withheld = record | {"operator": "base", "withheld": {"operator": "decisive"}}
    assert statistics(withheld)["decisive"] == 1
    assert {"gate_changes", "gate_invariant"} & set(plain) == set()


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("trajectory", lambda S: np.where(S == S[0, 2], np.nan, S), "is not 13 finite depths"),
        ("trajectory", lambda S: np.delete(S, 3, axis=1), "is not 13 finite depths"),
        ("trajectory", lambda S: S[:, ::-1], "not the last depth|not the trajectory's"),
        ("blind_scores", lambda q: q + 0.5, "blind scores are not the last blind depth"),
        ("index", lambda index: 1 - index, "the answer is not the rule's"),
        ("d_eff", lambda d_eff: d_eff + 0.1, "d_eff is not the trajectory's"),
        ("mc1", lambda mc1: 1.0 - mc1, "mc1 is another"),
    ],
)
def test_an_edited_record_is_refused_and_its_item_named(tmp_path, name, edit, message):
    records = synthetic_cell(benchmark="halueval-qa", items=60, blind="all")
    records.at[17, name] = edit(records.at[17, name])
    write_cells(records, tmp_path)
    with pytest.raises(RecordError, match=message) as caught:
        read_sample(tmp_path)
    assert f"item {records['id'][17]}:" in str(caught.value)


@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 2]])
def test_a_failed_item_is_a_group_that_is_broken(groups):
    base, shown = np.array([1, 0, 1, 0, 1, 1]) > 0, np.array([1, 1, 0, 0, 1, 1]) > 0
    failing = Evidence.of(base, shown, np.array(groups), failed=3)
    more = np.append(base, [True] * 3), np.append(shown, [False] * 3)
    expected = Evidence.of(*more, np.append(groups, [6, 7, 8]))
    assert vars(failing) == pytest.approx(vars(expected))


def test_records_without_texts_are_copies_if_their_scores_are_equal(tmp_path):
    records = synthetic_cell(benchmark="halueval-qa", items=30)
    records = pd.concat([records, records.iloc[:5]], ignore_index=True)
    fields: dict = {"id": list(map(str, range(35))), "place": range(35), "prompt": ""}
    fields["candidates"] = [("x", "xx")] * 35
    write_cells(records.assign(**fields), tmp_path)
    assert read_sample(tmp_path).items.group_count == 30


COMMITTED = sorted(
    (Path(__file__).parents[2] / "experiments" / "results" / "evidence").glob("*/*/*/run.json")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    by_night(COMMITTED, COMMITTED[::6]) if COMMITTED else [],
    ids=lambda run: "/".join(run.parts[-4:-1]),
)
def test_committed_records_agree_with_their_trajectories(run):
    sample = read_sample(Path(str(run.parent)), methods=None)
    assert sample.items.group_count > 0.7 * len(sample.items) > 0


def test_items_of_one_group_or_pair_are_one_group(tmp_path):
    records = synthetic_cell(benchmark="halueval-qa", items=40)
    records["shared"] = [f"user {i // 4}" if i < 20 else None for i in range(40)]
    records["id"] = [f"pair/{i // 2}/{'ab'[i % 2]}" if i >= 30 else f"i{i}" for i in range(40)]
    records["prompt"] = [f"prompt {i}" for i in range(40)]
    write_cells(records, tmp_path)
    groups = read_sample(tmp_path).items.groups
    expected = [i // 4 if i < 20 else i - 15 if i < 30 else 15 + (i - 30) // 2 for i in range(40)]
    assert len(set(zip(groups.tolist(), expected, strict=True))) == len(set(expected)) == 20


def test_trace_is_certified_without_importing_other_methods(tmp_path, monkeypatch):
    write_cells(synthetic_cell(benchmark="halueval-qa", items=40), tmp_path)
    monkeypatch.setitem(sys.modules, "lastword.methods", None)  # it would import torch
    assert len(read_sample(tmp_path).items) == 40
