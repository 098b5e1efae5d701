"""What-if: the rule asked again of an answered item, under another threshold.

Theta is frozen, and nothing here moves it: this asks Algorithm 1 again, on the trajectory that was
read, with constants that someone wonders about. Thresholds change which operator is chosen and
whether it may override; they change nothing of what is read, so that the model is not asked again.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from lastword.errors import InputError
from lastword.rule.answer import Answer
from lastword.rule.geometry import (
    Trajectory,
    effective_dimension,
    log_margin_ratio,
    normalised_entropy,
)
from lastword.rule.operators import Step
from lastword.rule.router import next_step
from lastword.theta import Theta

# The constants that the rule holds something against, in the order in which it does.
THRESHOLDS = ("tau_dim", "tau_logr", "tau_H", "tau_I", "gamma")


def with_thresholds(theta: Theta, thresholds: Mapping[str, float]) -> Theta:
    """Theta with other thresholds.

    Raises:
        InputError: A name that is no threshold, or a value that is no number.
    """
    for name, value in thresholds.items():
        if name not in THRESHOLDS:
            raise InputError(f"{name} is no threshold; those are {', '.join(THRESHOLDS)}")
        if not math.isfinite(value):
            raise InputError(f"{name} is a finite number, not {value}")
    return Theta.from_dict(theta.to_dict() | dict(thresholds))


def what_if(answer: Answer, theta: Theta) -> Answer:
    """Return the answer to an item that was read whole, by the rule under another Theta.

    Args:
        answer: With its whole trajectory and t.
        theta: Constants and switches; windows and anchors as they were.

    Raises:
        InputError: The answer lacks a depth or T.
    """
    trajectory, invariant = trajectory_of(answer), _invariant(answer)
    verdict = next_step(trajectory, invariant, theta)
    if isinstance(verdict, Step):
        raise InputError("this item was not read whole: the rule needs more of its trajectory")
    other = verdict.answer(Answer, answer.candidates, trajectory, invariant)
    return replace(other, base_index=answer.base_index, truthful=answer.truthful)


def measures(answer: Answer, theta: Theta) -> dict[str, float]:
    """Return what each threshold is held against, by its name; of at least two candidates.

    Args:
        answer: As in `what_if`.
        theta: Constants and switches.
    """
    trajectory = trajectory_of(answer)
    window = trajectory.scores[:, theta.window(trajectory.depth)]
    return {
        "tau_dim": effective_dimension(window),
        "tau_logr": log_margin_ratio(window, trajectory.base, theta.delta_r),
        "tau_H": normalised_entropy(trajectory.base),
        "tau_I": _invariant(answer),
        "gamma": float(trajectory.base.max()),
    }


def trajectory_of(answer: Answer) -> Trajectory:
    """S and t of an answer, as far as they were read."""
    return Trajectory(answer.trajectory, answer.t_scores)


def _invariant(answer: Answer) -> float:
    if answer.invariant is None:
        raise InputError("this item has no I(M): the rule cannot be asked again")
    return answer.invariant
