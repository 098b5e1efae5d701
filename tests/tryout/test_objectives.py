"""Trials with other objectives than accuracy, on the organism and a table with a rare class."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from topics import run_try, write_csv
from typer.testing import CliRunner

from lastword import Tracer
from lastword.cli import app
from lastword.errors import InputError
from lastword.probes.state import StateFit, StateProbe, fit_state
from lastword.trust.certificate import Certificate
from lastword.trust.objective import Objective
from lastword.tryout.contest import _Labelled
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
        done = run_try(path, "--budget", "0s", "--out", out, "--objective", objective)
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


def test_a_certificate_for_mean_recall_records_its_objective_and_is_served(tmp_path: Path) -> None:
    path, out = table(tmp_path / "rare.csv", 160, 0.98), tmp_path / "out"
    options = ["--budget", "0s", "--out", out, "--objective", "balanced"]
    run_try(path, *options)
    figures = json.loads((out / "verdict.json").read_text())
    certificate = Certificate.read(out / "certificate.toml")
    certified = certificate.terms.objective
    assert certified is not None and certified.name == "balanced"
    assert certificate.policy.method == figures["contest"]["probe"]
    assert certificate.baselines is not None and not (out / "labels.csv").exists()
    promised = figures["certificate"]
    assert promised["net_at_least"] == certificate.worth["net_at_least"] > 0
    assert promised["over_baselines"] == certificate.over_baselines
    assert [line["name"] for line in promised["baselines"]] == [
        "the model",
        "largest class",
        "bag of words",
    ]
    command = [
        "decide",
        "--model",
        "lastword/demo-organism",
        "--text",
        "the dog a now is",
        "--json",
    ]
    command += ["--certificate", str(out / "certificate.toml")]
    answer = CliRunner().invoke(app, [*command, "--questions", str(out / "questions.yaml")])
    assert answer.exit_code == 0, answer.output


def test_a_cost_table_favours_the_cheaper_mistake(tmp_path: Path) -> None:
    path = table(tmp_path / "rare.csv", 100, 0.82)
    (costs := tmp_path / "costs.csv").write_text("truth,animal,money\nanimal,0,20\nmoney,1,0\n")
    verdict = try_labels(path, Tracer.demo(), objective=f"cost={costs}", budget=0.0)
    contest = verdict.contest
    assert contest.objective == "cost" and contest.constant == "animal"
    answers = contest.answers
    cost = sum(
        0 if row.shown == row.truth else 20 if row.truth == "animal" else 1 for row in answers
    )
    assert contest.line(contest.best).worth == pytest.approx(-cost / len(answers))
    animals = sum(row.truth == "animal" for row in answers)
    worth = contest.line("cheapest answer").worth
    assert worth == pytest.approx(-(len(answers) - animals) / len(answers))
    assert "mean cost" in verdict.advice.headline
    with pytest.raises(InputError, match="'wet' is none of animal, money"):
        costs.write_text("truth,wet,money\nanimal,0,20\n")
        try_labels(path, Tracer.demo(), objective=f"cost={costs}")


def test_the_best_source_of_states_is_that_of_the_lowest_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truths = np.repeat(["a", "b", "c"], 20)
    states = np.random.default_rng(0).normal(size=(60, 1, 1, 4))
    fit = fit_state(states, truths.tolist())

    def source(reader: str, mistakes: int, answer: str) -> StateFit:
        answers = np.where(np.arange(60) < mistakes, answer, truths)
        scores = (answers[:, None] == ["a", "b", "c"]).astype(float)
        right = np.array([[1 - mistakes / 60]])
        return StateFit(replace(fit.probe, reader=reader), scores, right)

    costs = {"a": {"b": 1, "c": 50}, "b": {"a": 1, "c": 1}, "c": {"a": 1, "b": 1}}
    objective = Objective.of_costs(["a", "b", "c"], costs)
    sources = {"cheap": source("cheap", 6, "c"), "dear": source("dear", 8, "b")}
    monkeypatch.setattr(_Labelled, "by_source", lambda *_: sources)
    material: Any = SimpleNamespace(objective=objective, groups=np.arange(60))
    rest: Any = (("a", "b", "c"), truths, states, {}, states[:, 0, 0, :3], states[:, 0, 0, 1:])
    tracer: Any = None
    chosen = _Labelled(tracer, material, *rest).fits(np.ones(60, dtype=bool)).single.fit
    assert isinstance(chosen, StateProbe) and chosen.reader == "dear"
