"""Algorithm 1: geometry and I(M) choose the operator that corrects an item.

The router does not run the model. Given a trajectory that is only partly read, it returns the
next step to read; called again with that step read, it decides. Reading everything first gives
the same decision.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from lastword.rule.geometry import Trajectory, effective_dimension
from lastword.rule.operators import OPERATORS, Gate, Ruling, Step, unread
from lastword.rule.theta import Theta

T = TypeVar("T")


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
        ruling = OPERATORS["base"](trajectory, theta)
        return ruling if isinstance(ruling, Step) else replace(ruling, d_eff=1.0)
    window = theta.window(depth)
    if candidates > 2 and (step := unread(trajectory, [*window, depth])):
        return step
    # It is 1 for two candidates, even unread.
    d_eff = float(effective_dimension(trajectory.scores[:, window]))
    name = choose(d_eff, invariant, theta)
    ruling = OPERATORS[name](trajectory, theta)
    if isinstance(ruling, Step):
        return ruling
    if name == "decisive":
        return replace(ruling, regime="candidate-space", d_eff=d_eff)
    gate = {"invariant": Gate(invariant, theta.tau_I, invariant > theta.tau_I)}
    return replace(ruling, d_eff=d_eff, gates=gate | ruling.gates)


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
