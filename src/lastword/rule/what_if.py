"""What if: what the rule would do with an answered item were a threshold another one.

Theta is frozen, and nothing here moves it: this asks Algorithm 1 again, on the trajectory that was
read, with constants that someone wonders about. Thresholds change which operator is chosen and
whether it may override; they change nothing of what is read, so that the model is not asked again.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lastword.errors import InputError
from lastword.rule.decision import Decision
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


def moved(theta: Theta, thresholds: Mapping[str, float]) -> Theta:
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


def what_if(record: Mapping[str, Any], theta: Theta) -> Decision:
    """The decision of an item that was read whole, by the rule under another Theta.

    Args:
        record: `Decision.to_record` or a record of `lastword eval`, with trajectory and t.
        theta: Constants and switches; windows and anchors as they were.

    Raises:
        InputError: The record lacks a depth or T.
    """
    trajectory = trajectory_of(record)
    verdict = next_step(trajectory, float(record["invariant"]), theta)
    if isinstance(verdict, Step):
        raise InputError("this item was not read whole: the rule needs more of its trajectory")
    decision = verdict.decision(record["candidates"], trajectory, float(record["invariant"]))
    return replace(decision, base_index=int(record["base_index"]))


def measured(record: Mapping[str, Any], theta: Theta) -> dict[str, float]:
    """What each threshold is held against, by its name; of at least two candidates.

    Args:
        record: As in `what_if`.
        theta: Constants and switches.
    """
    trajectory = trajectory_of(record)
    window = trajectory.scores[:, theta.window(trajectory.depth)]
    return {
        "tau_dim": effective_dimension(window),
        "tau_logr": log_margin_ratio(window, trajectory.base, theta.delta_r),
        "tau_H": normalised_entropy(trajectory.base),
        "tau_I": float(record["invariant"]),
        "gamma": float(trajectory.base.max()),
    }


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """S and t of a record, as far as they were read."""
    t = record.get("t_scores")
    read = t is not None and not isinstance(t, float)  # the nan that a data frame has for nothing
    S = np.stack([np.asarray(row, dtype=float) for row in record["trajectory"]])
    return Trajectory(S, np.asarray(t, dtype=float) if read else None)
