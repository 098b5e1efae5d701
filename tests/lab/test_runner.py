"""The runner: content of records, failed items, and metrics that need no model to check."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tracer_double import TracerDouble, dataset

import lastword
from lastword.errors import RecordError
from lastword.lab.benchmarks import Template
from lastword.lab.benchmarks.benchmark import Dataset
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.work import Work
from lastword.model.weights.identity import folder_digests
from lastword.rule.geometry import effective_dimension
from lastword.rule.theta import Theta
from lastword.text.prompt_template import Blind


def records(
    folder: Path,
    data: Dataset,
    template: Template | None = None,
    blind: Blind = "base",
    **options: Any,
) -> pd.DataFrame:
    double: Any = TracerDouble(**options)
    work = Work(data, template or data.benchmark.template(), blind)
    return lastword.load_records(runner.evaluate(double, work, folder).cell)


@pytest.mark.parametrize("invariant", [0.5, 2.0])
def test_metrics_equal_an_independent_computation(tmp_path, invariant):
    table = records(tmp_path, dataset(tmp_path, 100), invariant=invariant)
    fired = {"decisive", "base", "mix" if invariant > 1 else "early"}
    assert set(table["operator"]) == fired
    for _, row in table.iterrows():
        truth = np.flatnonzero(row["truthful"])
        base = row["trajectory"][:, 8]
        if row["operator"] == "decisive":
            at = row["trajectory"][:, int(row["decisive_layer"])]
        elif row["operator"] == "early":
            at = row["trajectory"][:, 0]
        else:
            mixing = 0.0 if np.isnan(row["lambda"]) else row["lambda"]
            at = base + mixing * (row["t_scores"] - base)
        for scores, suffix in ((base, "_base"), (at, "")):
            mass = np.exp(scores) / np.exp(scores).sum()
            assert row[f"mc1{suffix}"] == float(scores.argmax() in truth)
            assert row[f"mc2{suffix}"] == pytest.approx(mass[truth].sum(), abs=1e-12)
        np.testing.assert_allclose(row["probabilities"], np.exp(at) / np.exp(at).sum(), atol=1e-12)
        window = row["trajectory"][:, Theta().window(8)]
        assert row["d_eff"] == pytest.approx(effective_dimension(window))


def test_failed_items_are_recorded_and_do_not_affect_others(tmp_path):
    refused, poisoned = ["q3", "q9"], ["q5"]
    table = records(tmp_path, dataset(tmp_path, 20), refuse=refused, poison=poisoned)
    table = table.set_index("id")
    failed = table[table["error"].notna()]
    assert sorted(failed.index) == ["q3", "q5", "q9"]
    assert "the context is 512" in str(failed.loc["q3", "error"])
    assert "depth 3 are not finite" in str(failed.loc["q5", "error"])
    assert failed[["mc1_base", "mc1", "mc2_base", "mc2", "operator", "d_eff"]].isna().all(axis=None)
    assert failed["trajectory"].isna().all() and failed["gates"].isna().all()
    assert failed.loc["q3", "prompt"] == "Question 3?\nAnswer:"
    assert failed["candidates"]["q3"][0] == "answer 3 0"
    clean = records(tmp_path / "clean", dataset(tmp_path, 20)).set_index("id")
    for name in table.index.difference(failed.index):
        np.testing.assert_array_equal(table.loc[name, "trajectory"], clean.loc[name, "trajectory"])


def test_the_blind_trajectory_is_recorded_on_request(tmp_path):
    data = dataset(tmp_path, 6)
    bare = replace(data.examples[0], id="bare", blind_fields=None)
    data = replace(data, examples=(*data.examples, bare))
    usual = records(tmp_path / "base", data)
    assert usual[["blind_trajectory", "blind_t_scores"]].isna().all(axis=None)
    *whole, unread = records(tmp_path / "all", data, blind="all").to_dict("records")
    assert unread["trajectory"] is not None
    assert unread["blind_scores"] is unread["blind_trajectory"] is unread["blind_t_scores"] is None
    for place, row in enumerate(whole):
        assert row["blind_trajectory"].shape == row["trajectory"].shape
        assert row["blind_t_scores"].shape == row["t_scores"].shape
        np.testing.assert_array_equal(row["blind_trajectory"][:, 8], row["blind_scores"])
        np.testing.assert_array_equal(row["blind_scores"], usual["blind_scores"].iloc[place])
        assert not np.array_equal(row["blind_trajectory"], row["trajectory"])
    with pytest.raises(RecordError, match='blind was "base" and is "all"'):
        records(tmp_path / "base", data, blind="all")
    assert records(tmp_path / "none", data, blind="none")["blind_scores"].isna().all()


def test_a_local_model_with_other_weights_is_another_run(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    weights = bytearray(np.random.default_rng(0).bytes(1_000_000))
    (folder / "model.safetensors").write_bytes(weights)
    data = dataset(tmp_path, 4)
    records(tmp_path / "runs", data, model=str(folder))
    (folder / "trainer_state.json").write_text("{}")
    records(tmp_path / "runs", data, model=str(folder))
    (folder / "model.safetensors").write_bytes(bytes(b ^ 1 for b in weights))
    with pytest.raises(RecordError, match='has another run: weights.weights was "'):
        records(tmp_path / "runs", data, model=str(folder))
    assert folder_digests(tmp_path / "none") == {}
