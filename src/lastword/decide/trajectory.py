"""The rule on scores that are there already: a pure function, without a model."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError
from lastword.records.decision import Decision
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Step
from lastword.rule.router import next_step
from lastword.rule.theta import Theta


def decide_trajectory(
    S: Float[np.ndarray, "candidates layers"],
    t: Float[np.ndarray, " candidates"] | None,
    invariant: float,
    theta: Theta = Theta(),  # noqa: B008 - frozen
    candidates: Sequence[str] | None = None,
) -> Decision:
    """Return the decision of TRACE (Algorithm 1) on a trajectory.

    Args:
        S: Mean log-probability per token of each candidate at each layer, in nats; the last layer
            is the model's. Layers that the decision does not need may be nan.
        t: T, the scores of the scorer (Eqs. 10 to 13); None if `mix` cannot be chosen.
        invariant: I(M) (Eq. 16).
        theta: The constants.
        candidates: The candidates' texts; by default their numbers.

    Raises:
        InputError: Scores are missing that the decision needs.
    """
    names = candidates if candidates is not None else [*map(str, range(len(S)))]
    trajectory = Trajectory(np.asarray(S, float), None if t is None else np.asarray(t, float))
    ruling = next_step(trajectory, invariant, theta)
    if isinstance(ruling, Step):
        layers = ", ".join(map(str, sorted(ruling.depths)))
        raise InputError(f"the decision needs t, or the scores at the layers {layers}")
    return Decision.of(ruling, trajectory, names, invariant=invariant)
