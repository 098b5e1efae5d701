"""Algorithm 1: geometry and I(M) choose the operator that corrects an item.

The router does not run the model. Given a trajectory that is only partly read, it returns the
next step to read; called again with that step read, it decides. Reading everything first gives
the same decision.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lastword.rule.answer import Form, Gate, Regime
from lastword.rule.geometry import Columns, Scores, Trajectory, effective_dimension, tied_first
from lastword.rule.operators import OPERATORS, OperatorScores, Step
from lastword.rule.operators.step import unread
from lastword.rule.theta import Theta

T = TypeVar("T")


@dataclass(frozen=True)
class Ruling:
    """The decision of Algorithm 1 for one trajectory.

    Attributes:
        regime: `candidate-space` if d_eff > tau_dim, else `scalar`.
        d_eff: Effective trajectory dimension, Eq. 5.
        correction: The operator's scores and gates.
    """

    regime: Regime
    d_eff: float
    correction: OperatorScores

    def answer(
        self,
        form: type[Form],
        candidates: Sequence[str],
        trajectory: Trajectory,
        invariant: float,
        **others: Any,
    ) -> Form:
        """Return the answer among these candidates, with its scores, gates and trajectory."""
        correction, tied = self.correction, tied_first(self.correction.scores)
        return form(
            candidates=tuple(candidates),
            index=int(tied[0]),
            base_index=int(trajectory.base.argmax()),
            regime=self.regime,
            operator=correction.operator,
            scores=correction.scores,
            base_scores=trajectory.base,
            d_eff=self.d_eff,
            invariant=invariant,
            gates=correction.gates,
            decisive_layer=correction.decisive_layer,
            mixing=correction.mixing,
            trajectory=trajectory.scores,
            t_scores=trajectory.t,
            tied=len(tied) > 1,
            **others,
        )


def choose(d_eff: float, invariant: float, theta: Theta) -> str:
    """Return the name of the operator, chosen by the item's d_eff and then the model's I(M)."""
    if d_eff > theta.tau_dim:
        return "decisive"
    return "mix" if invariant > theta.tau_I else "early"


def next_step(trajectory: Trajectory, invariant: float, theta: Theta) -> Step | Ruling:
    """Return the next step to read, or the ruling."""
    # Each stage needs more readings than the one before, and returns a step if they are missing:
    # 1. One candidate: depth L. There is nothing to correct.
    # 2. The geometry of the window, d_eff. With two candidates it is always 1, so nothing is read.
    # 3. The operator that d_eff and I(M) choose. It reads depths and T for its gates, perhaps in
    #    several steps, and returns the base's scores if a gate fails.
    candidates, depth = len(trajectory.scores), trajectory.depth
    if candidates == 1:
        return OPERATORS["base"].needs(trajectory, theta) or Ruling(
            "scalar", 1.0, OPERATORS["base"].correct(trajectory, theta)
        )
    window = theta.window(depth)
    if candidates > 2 and (step := unread(trajectory, [*window, depth])):
        return step
    d_eff = effective_dimension(trajectory.scores[:, window])  # 1 for two candidates, even unread
    name = choose(d_eff, invariant, theta)
    if step := OPERATORS[name].needs(trajectory, theta):
        return step
    correction = OPERATORS[name].correct(trajectory, theta)
    if name == "decisive":
        return Ruling("candidate-space", d_eff, correction)
    gate = {"invariant": Gate(invariant, theta.tau_I, invariant > theta.tau_I)}
    return Ruling("scalar", d_eff, replace(correction, gates=gate | correction.gates))


def answers_by_reading(
    S: Columns, readings: Mapping[str, Scores], invariants: Iterable[float], theta: Theta
) -> dict[str, int]:
    """Return the candidate that each reading of the paper chooses, as an index.

    The paper leaves details of T and of I(M) open; a reading settles them one way.

    Args:
        S: The whole trajectory.
        readings: t by reading of the scorer.
        invariants: I(M) of the run, and by its other readings; nan is ignored.
        theta: Constants of the rule; its switches of the readings are ignored.

    Returns:
        Index by name: `floor-anchor` and so on if a value of I(M) chooses `mix`, and `early` if
        one chooses that. All are equal for an item in the candidate-space regime.
    """
    # Only the side of tau_I matters to the rule, so one value of I(M) stands for each side.
    values = [value for value in invariants if not math.isnan(value)]
    mixing = next((value for value in values if value > theta.tau_I), None)
    falling = next((value for value in values if value <= theta.tau_I), None)
    settings: dict[str, tuple[float, Scores | None]] = {}
    if mixing is not None:
        settings |= {name: (mixing, t) for name, t in readings.items()}
    if falling is not None:
        settings["early"] = falling, None
    places = {}
    for name, (value, t) in settings.items():
        ruling = next_step(Trajectory(S, t), value, theta)
        assert isinstance(ruling, Ruling), "everything has been read"
        places[name] = int(ruling.correction.scores.argmax())
    return places


def settle(
    count: int,
    ask: Callable[[int], Step | T],
    read: Callable[[Sequence[int], Step], None],
) -> list[T]:
    """Read all items step by step until each has a result, and return the results in order.

    Args:
        count: Number of items.
        ask: Function that returns an item's next step (see `next_step`) or its result.
        read: Function that reads a step for some items, before `ask` is called for them again.
    """
    verdicts: dict[int, T] = {}
    pending = list(range(count))
    while pending:
        # Items that need the same step are read together, in one pass of the head.
        steps: dict[Step, list[int]] = {}
        for item in pending:
            answer = ask(item)
            if isinstance(answer, Step):
                steps.setdefault(answer, []).append(item)
            else:
                verdicts[item] = answer
        for step, items in steps.items():
            read(items, step)
        pending = [item for item in pending if item not in verdicts]
    return [verdicts[item] for item in range(count)]
