"""Staged reading: each depth is read only if an item needs it, once, in common passes."""

import numpy as np
from tracer_double import _scores

from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Ruling, Step
from lastword.rule.router import choose, next_step, settle
from lastword.rule.theta import Theta

DEPTH, THETA = 8, Theta()


def test_an_invariant_at_its_threshold_chooses_early():
    above = np.nextafter(THETA.tau_I, 9)
    assert [choose(1.0, i, THETA) for i in (THETA.tau_I, above)] == ["early", "mix"]


def test_staged_reading_gives_the_same_rulings_and_reads_nothing_twice():
    # Items of one to five candidates and both kinds of I(M) reach every operator.
    full = [np.array([_scores(f"q{i}", f"{i}-{j}") for j in range(1 + i % 5)]) for i in range(40)]
    operators = set()
    for invariant in (0.1, 9.0):
        states = [np.full((len(f), DEPTH + 1), np.nan) for f in full]
        t: list[np.ndarray | None] = [None] * len(full)
        reads: list[Step] = []

        def ask(item: int, invariant=invariant, states=states, t=t) -> Step | Ruling:
            return next_step(Trajectory(states[item], t[item]), invariant, THETA)

        def read(items, step: Step, states=states, t=t, reads=reads) -> None:
            reads.append(step)
            for i in items:
                depths = sorted(step.depths)
                assert step.t or np.isnan(states[i][:, depths]).all(), "read twice"
                states[i][:, depths] = full[i][:, depths]
                t[i] = full[i][:, -1] if step.t else t[i]

        rulings = settle(len(full), ask, read)
        assert any(np.isnan(s).any() for s in states), "every depth was read"
        assert len(reads) < len(full), "items with the same needs were not read together"
        for i, ruling in enumerate(rulings):
            whole = next_step(Trajectory(full[i][:, :-1], full[i][:, -1]), invariant, THETA)
            assert isinstance(whole, Ruling) and ruling.regime == whole.regime
            assert ruling.operator == whole.operator
            assert np.array_equal(ruling.scores, whole.scores)
            operators.add(ruling.operator)
    assert operators == {"base", "decisive", "mix", "early"}
