"""Objectives: the worth of answers, and the betting test on the gains of rows."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from populations import counted
from scipy.stats import binom

from lastword.errors import CertificateError, InputError
from lastword.trust.certificate import Baseline, Certificate, CertifiedProbe, Counts, Subject, Tried
from lastword.trust.claims import Claim, PolicyTrial, needed
from lastword.trust.evidence import GroupEvidence
from lastword.trust.objective import Gains, Objective, objective_from
from lastword.trust.policy import family
from lastword.trust.terms import Terms
from lastword.trust.testing import BETS, betting_bound, betting_p

OPTIONS = ("bad", "good")
SHARES, DELTA = (0.15, 0.85), 0.1


def draw_truths(rng: np.random.Generator, rows: int) -> list[str]:
    return rng.choice(OPTIONS, rows, p=SHARES).tolist()


def answers_with_recall(
    rng: np.random.Generator, truths: list[str], recall: tuple[float, float]
) -> list[str]:
    """Return answers that are right with this probability in each class."""
    right = rng.random(len(truths)) < np.array(recall)[[OPTIONS.index(t) for t in truths]]
    other = {"bad": "good", "good": "bad"}
    return [t if r else other[t] for t, r in zip(truths, right, strict=True)]


def test_the_p_value_agrees_with_its_definition():
    values, counts, least, mean = [-2.0, 0.0, 0.5, 3.0], [1, 4, 2, 3], -2.5, 0.1
    wealth = 0.0
    for bet in BETS:
        money = 1.0
        for value, count in zip(values, counts, strict=True):
            for _ in range(count):
                money *= 1 - bet + bet * (value - least) / (mean - least)
        wealth += money / len(BETS)
    assert betting_p(values, counts, least, mean) == pytest.approx(min(1.0, 1 / wealth))
    several = betting_p(values, np.multiply.outer([1, 2], counts), least, mean)
    assert several[0] == pytest.approx(1 / wealth) and several[1] < several[0]
    bound = betting_bound(values, counts, least, 0.2)
    assert betting_p(values, counts, least, bound - 1e-3) < 0.2
    assert betting_p(values, counts, least, bound + 1e-3) > 0.2


COSTS = Objective.of_costs(OPTIONS, {"bad": {"good": 10}, "good": {"bad": 1}})


@pytest.mark.parametrize("fixed", [COSTS, None], ids=["cost", "balanced"])
@pytest.mark.parametrize(
    ("model", "policy"),
    [((0.3, 0.8), (0.3, 0.8)), ((0.2, 0.95), (0.7, 0.85)), ((0.9, 0.2), (0.6, 0.9))],
)
def test_the_gain_is_below_its_bound_at_most_as_often_as_delta(fixed, model, policy):
    """In each draw a fitting half sets the weights; the true gain uses these weights."""
    rng, draws, wrong, positive = np.random.default_rng(7), 500, 0, 0
    for _ in range(draws):
        objective = fixed or Objective.balanced(OPTIONS, draw_truths(rng, 60))
        truths = draw_truths(rng, 150)
        base, shown = (answers_with_recall(rng, truths, recall) for recall in (model, policy))
        gains = objective.values(truths, shown) - objective.values(truths, base)
        bound = objective.bound(Gains.of(gains), DELTA)
        won = np.array(policy) - np.array(model)
        true = (np.array(SHARES) * won * [objective.weights[o] for o in OPTIONS]).sum()
        wrong += bound > true
        positive += bound > 0
    assert binom.cdf(wrong - 1, draws, DELTA) < 0.999, wrong
    # The bound has power: the second case gains much on the rare class.
    if policy == (0.7, 0.85):
        assert positive / draws > 0.4


def test_balanced_is_mean_recall_and_the_largest_class_has_no_advantage():
    rng = np.random.default_rng(0)
    truths = draw_truths(rng, 200)
    answers = answers_with_recall(rng, truths, (0.4, 0.9))
    objective = Objective.balanced(OPTIONS, truths)
    recalls = [
        np.mean([a == t for a, t in zip(answers, truths, strict=True) if t == option])
        for option in OPTIONS
    ]
    assert objective.values(truths, answers).mean() == pytest.approx(np.mean(recalls))
    assert objective.constant(truths) == "good"
    assert objective.values(truths, ["good"] * 200).mean() == pytest.approx(0.5)
    assert objective.loss == pytest.approx(max(objective.weights.values()))
    assert COSTS.constant(["bad"] + ["good"] * 11) == "good"
    assert COSTS.constant(["bad"] + ["good"] * 10) == "good"  # the most frequent of equal ones
    assert COSTS.constant(["bad"] * 2 + ["good"] * 10) == "bad"
    assert COSTS.break_even == 10 / 11
    three = Objective.balanced(("a", "b", "c"), ["a", "b", "b", "c"])
    assert three.weights == pytest.approx({"a": 4 / 3, "b": 2 / 3, "c": 4 / 3})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("costs.csv", "truth,bad,good\nbad,,10\ngood,1,0\n"),
        ("costs.toml", "[bad]\ngood = 10\n[good]\nbad = 1.0\n"),
        ("costs.jsonl", '{"truth": "bad", "good": 10}\n{"truth": "good", "bad": 1}\n'),
    ],
)
def test_costs_are_read_from_tables_and_toml(tmp_path: Path, name: str, text: str):
    (path := tmp_path / name).write_text(text)
    makes = objective_from(f"cost={path}", OPTIONS)
    assert makes is not None and makes([]) == COSTS


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[bad]\ngood = 10\n", "no cost of the answer 'bad' to 'good'"),
        ("[bad]\ngood = 10\n[fine]\nbad = 1\n", "'fine' is none of bad, good"),
        ("[bad]\ngood = 'much'\n[good]\nbad = 1\n", "a number per answer"),
        ("[bad]\ngood = -1\n[good]\nbad = 1\n", "'bad': a wrong answer has to cost more"),
        ("bad", "cannot read the costs"),
    ],
)
def test_invalid_costs_and_objectives_are_refused(tmp_path: Path, text: str, fault: str):
    (path := tmp_path / "costs.toml").write_text(text)
    with pytest.raises(InputError, match=fault):
        objective_from(f"cost={path}", OPTIONS)
    for name, rows, why in (
        ("a.csv", "truth,bad,good\nbad,0,10\nbad,0,1\n", "row 2: 'bad' has a row already"),
        ("a.jsonl", '{"truth": "bad", "good": 10}\n{}\n', "row 2 is empty"),
    ):
        (path := tmp_path / name).write_text(rows)
        with pytest.raises(InputError, match=why):
            objective_from(f"cost={path}", OPTIONS)
    with pytest.raises(InputError, match="at least 2 options, not 1"):
        Objective.balanced(["bad"], ["bad"])
    with pytest.raises(InputError, match="accuracy, balanced or cost=FILE"):
        objective_from("recall", OPTIONS)
    with pytest.raises(InputError, match="same options for every row"):
        objective_from("balanced", None)
    assert objective_from("accuracy", None) is None


def certificate_with(gains: Gains | None) -> Certificate:
    """Return a certificate for costs: 20 answers fixed and 5 broken of 60."""
    counts = replace(counted(20, 5, 60), objective_gains=gains)
    terms = Terms(promise="gain", methods=("probe@3",), test="unconditional", objective=COSTS)
    ((policy, share),) = family("mix", terms.methods, terms.promise).items()
    return Certificate(
        Subject("org/model"),
        terms,
        policy,
        (Tried(policy, share, counts),),
        probe=CertifiedProbe("d", "q", 0, 0.5, 3, "mean"),
        baselines=(Baseline("bag of words", replace(counts, objective_gains=gains)),),
    )


def test_a_certificate_contains_its_objective_and_tests_the_gains_again():
    gains = Gains((-1.0, 0.0, 1.0, 10.0), (5, 35, 10, 10))
    written = certificate_with(gains)
    again = Certificate.from_dict(tomllib.loads(written.to_toml()))
    assert again == written and again.terms.objective == COSTS
    worth = written.worth
    assert worth["net"] == pytest.approx((10 * 10 + 10 - 5) / 60)
    assert worth["net_at_least"] == COSTS.bound(gains, 0.05) > 0
    assert worth["over_baselines_at_least"] == worth["net_at_least"]
    assert written.terms.watched == 10 / 11  # the rate of breaks that the monitor allows
    # With the same counts there is no gain if breaks cost more than fixes save.
    lossy = Gains((-10.0, 0.0, 1.0), (5, 35, 20))
    for gained in (None, lossy, Gains((-11.0, 1.0), (1, 59))):
        with pytest.raises(InputError, match="do not give its promise"):
            certificate_with(gained)
    with pytest.raises(InputError, match="do not fit together"):
        certificate_with(Gains((1.0,), (59,)))
    spoiled = json.loads(json.dumps(written.to_dict()))
    spoiled["tried"][0]["counts"]["objective_gains"]["values"][0] = -0.5
    with pytest.raises(CertificateError, match="edited by hand"):
        Certificate.from_dict(spoiled)


def test_the_needed_number_of_labels_passes():
    gains = Gains((-10.0, 0.0, 1.0, 10.0), (2, 30, 5, 3))
    evidence = GroupEvidence(**vars(replace(counted(8, 2, 40), objective_gains=gains)))
    terms = Terms(promise="gain", methods=("probe@3",), objective=COSTS)
    ((policy, share),) = family("mix", terms.methods, terms.promise).items()
    trial = PolicyTrial.of(policy, evidence, share, terms)
    assert not trial.certified and trial.gain == pytest.approx(15)
    enough = needed([trial], terms)
    assert enough is not None
    for items, passes in ((enough, True), (0.9 * enough, False)):
        assert (COSTS.p(gains, items / 40) <= terms.level * share) == passes
    assert isinstance(Counts(**vars(trial.evidence)), Counts)
    assert COSTS.least(0.05) == 7
    right = np.array([True, False])
    claim = Claim(policy, share, ~right, right, np.arange(2), gains=np.array([1.0, -1.0]))
    failed = claim.with_failed(2, terms).gains
    assert failed is not None and failed.tolist() == [1, -1, -10, -10]
