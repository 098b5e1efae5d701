"""Algorithm 1: geometry and I(M) choose the operator, and say why.

The router reads nothing itself. Asked with a trajectory that is only partly read it answers with
the step that is still needed; asked again with that it decides. Reading everything first gives the
same decision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lastword.rule.answer import Form, Gate, Regime
from lastword.rule.geometry import Trajectory, effective_dimension, tied_first
from lastword.rule.operators import OPERATORS, OperatorScores, Step
from lastword.rule.operators.correction import unread
from lastword.rule.theta import Theta

T = TypeVar("T")


@dataclass(frozen=True)
class Ruling:
    """The decision of Algorithm 1 for one trajectory.

    Attributes:
        regime: By d_eff against tau_dim.
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
        """Return the answer among these candidates, with everything that it was made of."""
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
    """Return the operator whose gates decide: by the item's d_eff, then by the model's I(M)."""
    if d_eff > theta.tau_dim:
        return "decisive"
    return "mix" if invariant > theta.tau_I else "early"


def next_step(trajectory: Trajectory, invariant: float, theta: Theta) -> Step | Ruling:
    """Return the next reading that is needed, or the verdict."""
    # Each stage needs more read than the one before, and returns the step if that is not there yet:
    # 1. one candidate: depth L, and there is nothing to correct;
    # 2. the geometry of the window, d_eff; of two candidates it is 1 whatever they score, so that
    #    nothing has to be read for it;
    # 3. the operator that d_eff and I(M) choose, which reads depths and T for its gates, perhaps
    #    in several steps, and answers with the base's scores where one of them fails.
    candidates, depth = len(trajectory.scores), trajectory.depth
    if candidates == 1:  # one candidate is answered as itself
        return OPERATORS["base"].needs(trajectory, theta) or Ruling(
            "scalar", 1.0, OPERATORS["base"].correct(trajectory, theta)
        )
    window = theta.window(depth)
    if candidates > 2 and (step := unread(trajectory, [*window, depth])):
        return step
    d_eff = effective_dimension(trajectory.scores[:, window])  # 1 for two candidates, unread or not
    name = choose(d_eff, invariant, theta)
    if step := OPERATORS[name].needs(trajectory, theta):
        return step
    correction = OPERATORS[name].correct(trajectory, theta)
    if name == "decisive":
        return Ruling("candidate-space", d_eff, correction)
    gate = {"invariant": Gate(invariant, theta.tau_I, invariant > theta.tau_I)}
    return Ruling("scalar", d_eff, replace(correction, gates=gate | correction.gates))


def settle(
    count: int,
    ask: Callable[[int], Step | T],
    read: Callable[[Sequence[int], Step], None],
) -> list[T]:
    """Read for all items, step by step, until each has a verdict; return the verdicts.

    Args:
        count: Number of items.
        ask: Function that returns an item's next step (`next_step`), its verdict or an error.
        read: Function that reads a step for some items, before `ask` is called for them again.
    """
    verdicts: dict[int, T] = {}
    pending = list(range(count))
    while pending:
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
