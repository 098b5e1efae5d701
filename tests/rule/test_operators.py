"""Operators without a model: gates, scores and needed depths, against the slow reference."""

from dataclasses import replace

import numpy as np
import pytest
import reference

from lastword.records.decision import Decision
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import OPERATORS, Gate, Ruling, Step
from lastword.rule.router import next_step
from lastword.rule.theta import Theta

DEPTH, FROZEN = 8, Theta()
THETAS = [FROZEN, replace(FROZEN, eta=0.5), replace(FROZEN, eta=0.0), replace(FROZEN, tau_dim=9.0)]


@pytest.mark.parametrize("theta", THETAS, ids=["frozen", "half", "none", "scalar"])
@pytest.mark.parametrize("invariant", [1.0, 1.1])
def test_rulings_agree_with_the_reference(theta, invariant):
    outcomes = set()
    for seed in range(120):
        draw = np.random.default_rng(seed)
        n = 1 + seed % 5
        S = -2 * draw.random((n, DEPTH + 1)) * draw.choice([0.1, 1, 5], DEPTH + 1)
        t = S[:, DEPTH] + draw.normal(size=n)
        if seed % 3 == 0:  # rounded to halves: gates meet their thresholds
            S, t = np.round(2 * S) / 2, np.round(2 * t) / 2
        expected = reference.decide(S, t, theta, invariant)
        trajectory = Trajectory(S, t)
        ruling = next_step(trajectory, invariant, theta)
        assert isinstance(ruling, Ruling) and ruling.regime == expected.regime
        assert (ruling.operator, ruling.mixing) == (expected.operator, expected.mixing)
        np.testing.assert_allclose(ruling.scores, expected.scores, atol=1e-12)
        answer = Decision.of(
            ruling, trajectory, tuple("abcde"[:n]), invariant=invariant, truncated=3
        )
        assert (answer.index, answer.base_index) == (expected.index, expected.base_index)
        assert (answer.tied, answer.mixing, answer.truncated) == (expected.tied, expected.mixing, 3)
        assert (answer.decisive_layer, answer.invariant) == (ruling.decisive_layer, invariant)
        assert answer.d_eff == pytest.approx(expected.d_eff)
        tops = (S[:, DEPTH] == S[:, DEPTH].max()).sum()
        assert answer.as_base().tied == (tops > 1)
        gates = dict(ruling.gates)
        if n > 1 and ruling.regime == "scalar":
            assert gates.pop("invariant") == Gate(invariant, 1.0, invariant > 1)
        assert list(gates) == list(expected.gates)
        if any(gate.value is None for gate in gates.values()):
            continue  # a failed gate leaves depths unread
        assert ruling.decisive_layer == expected.decisive_layer
        for name, gate in gates.items():
            value, holds = expected.gates[name]
            assert gate.value == pytest.approx(value, abs=1e-9) and gate.holds is bool(holds)
            outcomes.add((name, holds))
    scalar = {"sharper", "shift"} if invariant > 1 else {"confidence"}
    both = scalar | ({"changes", "entropy"} if theta.tau_dim < 9 else set())
    assert outcomes >= {(name, holds) for name in both for holds in (True, False)}


@pytest.mark.parametrize(
    ("t", "eta", "mixing", "scores"),
    [
        ((-0.5, -2.0), 1.0, 1.0, (-0.5, -2.0)),  # sharper, and supports the base's choice
        ((-0.5, -2.0), 0.5, 0.5, (-0.75, -1.75)),
        ((-3.0, -1.0), 0.5, -0.5, (0.0, -1.75)),  # sharper, and opposes it
        ((-1.0, -3.0), 1.0, -1.0, (-1.0, 0.0)),  # a shift of 0 does not support it
        ((-1.0, -1.25), 1.0, 0.0, None),  # not sharper
        ((-2.0, -2.5), 1.0, 0.0, None),  # equally sharp
        ((-0.5, -2.0), 0.0, 0.0, None),
    ],
)
def test_mixing_by_hand(t, eta, mixing, scores):
    S = np.full((2, DEPTH + 1), np.nan)
    S[:, DEPTH] = base = np.array([-1.0, -1.5])
    correction = OPERATORS["mix"](Trajectory(S, np.array(t)), replace(FROZEN, eta=eta))
    assert isinstance(correction, Ruling)
    assert (correction.operator, correction.mixing) == ("base" if scores is None else "mix", mixing)
    np.testing.assert_allclose(correction.scores, base if scores is None else scores)
    sharper, shift = abs(t[0] - t[1]) - 0.5, t[0] + 1.0
    gates = {"sharper": Gate(sharper, 0.0, sharper > 0), "shift": Gate(shift, 0.0, shift > 0)}
    assert correction.gates == gates


def unread(*depths: int) -> Trajectory:
    """Return a trajectory of three candidates with an unsure base, without these depths."""
    S = np.tile([[-2.0], [-2.1], [-2.2]], DEPTH + 1)
    S[1, 1:DEPTH] = -1.0
    S[:, list(depths)] = np.nan
    return Trajectory(S)


@pytest.mark.parametrize(
    ("name", "missing", "theta", "depths"),
    [
        ("base", (DEPTH,), FROZEN, {DEPTH}),
        ("base", (0, 3), FROZEN, None),
        ("early", (DEPTH,), FROZEN, {DEPTH}),
        ("early", (3,), FROZEN, None),
        ("early", (0,), FROZEN, {0}),
        ("early", (0,), replace(FROZEN, gamma=-2.0), None),  # max b is not below gamma
        ("mix", (), FROZEN, {*FROZEN.scorer_depths(DEPTH)}),
        ("decisive", (4, DEPTH), FROZEN, {4, DEPTH}),
        ("decisive", (0, 1, DEPTH - 1), FROZEN, {1, DEPTH - 1}),
        ("decisive", (0, 1, DEPTH - 1), replace(FROZEN, tau_logr=99.0), None),  # a gate fails
    ],
)
def test_operators_read_exactly_the_missing_depths(name, missing, theta, depths):
    answer = OPERATORS[name](unread(*missing), theta)
    if depths is None:
        assert isinstance(answer, Ruling)
    else:
        assert answer == Step(frozenset(depths), t=name == "mix")
    if theta.tau_logr == 99.0:
        gates = answer.gates
        assert gates["changes"].to_dict() == {"value": None, "threshold": True, "holds": None}
        assert gates["log_margin_ratio"].threshold == 99.0 and not gates["log_margin_ratio"].holds
        assert gates["entropy"].threshold == theta.tau_H and gates["entropy"].holds
