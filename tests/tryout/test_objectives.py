"""Trials by mean recall, on the organism and a table with a rare class."""

import json
from pathlib import Path

import numpy as np
import pytest
from topics import run_try, write_csv

from lastword import Tracer
from lastword.errors import InputError
from lastword.trust.certificate import Certificate
from lastword.tryout.material import class_weights
from lastword.tryout.run import try_labels

pytestmark = pytest.mark.usefixtures("few_strengths")

ANIMALS, MONEY = "fox cat dog bird horse".split(), "bill bank cost price debt".split()


def table(path: Path, count: int, informative: float) -> Path:
    """Write texts, 15% about animals and the rest about money; some words are misleading."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        rare = rng.random() < 0.15
        words = ANIMALS if rare == (rng.random() < informative) else MONEY
        text = ["the", rng.choice(words), *rng.choice(["a", "now", "is"], 3), str(i)]
        rows.append({"text": " ".join(text), "label": "animal" if rare else "money"})
    return write_csv(path, rows)


def test_probes_are_ranked_by_mean_recall(tmp_path: Path) -> None:
    path, out = table(tmp_path / "rare.csv", 120, 0.82), tmp_path / "out"
    recalls = {}
    for objective in ("accuracy", "balanced"):
        done = run_try(path, "--budget", "0", "--out", out, "--objective", objective)
        figures = json.loads((out / "verdict.json").read_text())
        contest = figures["contest"]
        assert contest["objective"] == objective
        recalls[objective] = {one["label"]: one["corrected"] for one in contest["classes"]}
    assert recalls["balanced"]["animal"] > recalls["accuracy"]["animal"]
    lines = {line["name"]: line for line in contest["lines"]}
    # Contestants are ranked by the mean of the recalls.
    best = lines[contest["best"]]
    assert best["worth"] == pytest.approx(np.mean([*recalls["balanced"].values()]))
    assert lines["largest class"]["worth"] == pytest.approx(0.5)
    assert "mean recall" in done.stdout.splitlines()[0]


def test_a_certificate_beside_mean_recall_is_about_accuracy(tmp_path: Path) -> None:
    path, out = table(tmp_path / "rare.csv", 160, 0.98), tmp_path / "out"
    run_try(path, "--budget", "0", "--out", out, "--objective", "balanced")
    figures = json.loads((out / "verdict.json").read_text())
    certificate, promised = Certificate.read(out / "certificate.toml"), figures["certificate"]
    assert certificate.policy.method == figures["contest"]["probe"]
    assert not (out / "labels.csv").exists()
    assert promised["net_at_least"] == certificate.worth["net_at_least"] > 0
    assert promised["line"]["worth"] > 0.5
    assert any("points of accuracy" in one for one in figures["advice"]["guarantee"])


def test_an_unknown_objective_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "rare.csv", 40, 0.9)
    with pytest.raises(InputError, match="--objective is accuracy or balanced, not 'cost=c'"):
        try_labels(path, Tracer.demo(), objective="cost=c")


def test_the_weights_of_classes_make_the_mean_recall() -> None:
    labels, right = np.array([*"aaab"]), np.array([1, 1, 0, 1])
    weights = class_weights(labels.tolist(), "abc")
    mean = float(np.mean([weights[label] * one for label, one in zip(labels, right, strict=True)]))
    assert mean == pytest.approx((2 / 3 + 1) / 2) and weights["c"] == weights["b"]
