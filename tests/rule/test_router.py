"""The staged loop: it reads what is asked for, once for all who ask, and nothing more."""

import numpy as np
from tracer_double import _scores

from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Step
from lastword.rule.router import Ruling, next_step, settle
from lastword.rule.theta import Theta

DEPTH, THETA = 8, Theta()


def test_staged_reading_decides_as_reading_everything_does_and_reads_nothing_twice():
    # Items of one to five candidates, under both kinds of I(M): every operator's road is taken.
    full = [np.array([_scores(f"q{i}", f"{i}-{j}") for j in range(1 + i % 5)]) for i in range(40)]
    operators = set()
    for invariant in (0.1, 9.0):
        seen = [np.full((len(f), DEPTH + 1), np.nan) for f in full]
        t: list[np.ndarray | None] = [None] * len(full)
        reads: list[Step] = []

        def ask(item: int, invariant=invariant, seen=seen, t=t) -> Step | Ruling:
            return next_step(Trajectory(seen[item], t[item]), invariant, THETA)

        def read(items, step: Step, seen=seen, t=t, reads=reads) -> None:
            reads.append(step)
            for i in items:
                depths = sorted(step.depths)
                assert step.t or np.isnan(seen[i][:, depths]).all(), "read twice"
                seen[i][:, depths] = full[i][:, depths]
                t[i] = full[i][:, -1] if step.t else t[i]

        verdicts = settle(len(full), ask, read)
        assert any(np.isnan(s).any() for s in seen), "something was left unread"
        assert len(reads) < len(full), "items that need the same are read together"
        for i, verdict in enumerate(verdicts):
            whole = next_step(Trajectory(full[i][:, :-1], full[i][:, -1]), invariant, THETA)
            assert isinstance(whole, Ruling) and verdict.regime == whole.regime
            assert verdict.correction.operator == whole.correction.operator
            assert np.array_equal(verdict.correction.scores, whole.correction.scores)
            operators.add(verdict.correction.operator)
    assert operators == {"base", "decisive", "mix", "early"}
