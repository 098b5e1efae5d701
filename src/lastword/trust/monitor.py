"""Monitor: does a service still break no more than it may? A test that may be looked at always.

A gambler bets on every labelled answer against `a share of at most alpha is broken`. If that holds
the wealth grows on average at no step, so it ever reaches 1/delta with probability at most delta
(Ville), however often and for however long one looks.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError

BETS = np.arange(1, 10) / 10  # lambda alpha: the share of the wealth at stake while nothing breaks


def log_wealth(
    broken: np.ndarray | int, labelled: np.ndarray | int, alpha: float
) -> Float[np.ndarray, "*steps"]:
    """log E_t = log mean over lambda of prod over answers of (1 + lambda (X - alpha)).

    The product depends on how many answers were broken, not on which.

    Args:
        broken: Answers that correction made wrong.
        labelled: Answers whose truth is known.
        alpha: The share that may be broken.
    """
    lost = np.asarray(broken)[..., None]
    kept = np.asarray(labelled)[..., None] - lost
    stakes = BETS / alpha  # lambda
    each = lost * np.log1p(stakes * (1 - alpha)) + kept * np.log1p(-stakes * alpha)
    most = each.max(axis=-1)
    wealth: np.ndarray = most + np.log(np.exp(each - most[..., None]).mean(axis=-1))
    return np.asarray(wealth)


@dataclass(frozen=True)
class Monitor:
    """The labelled answers of a service so far; a value, not a process.

    Which answers get a label must not depend on whether they were right.

    Attributes:
        alpha: The share that may be broken.
        delta: Largest chance of a false alarm, ever.
        labelled: Answers whose truth is known.
        broken: Answers that correction made wrong.
        alarm: Whether the alarm has gone off; it stays.

    Raises:
        InputError: A share that is none, or counts that are none.
    """

    alpha: float
    delta: float
    labelled: int = 0
    broken: int = 0
    alarm: bool = False

    def __post_init__(self) -> None:
        """Refuse what no service has counted."""
        if not (0 < self.alpha < 1 and 0 < self.delta < 1):
            raise InputError("a monitor's alpha and delta are shares between 0 and 1")
        if not 0 <= self.broken <= self.labelled:
            raise InputError(f"{self.broken} of {self.labelled} answers cannot be broken")

    @property
    def log_wealth(self) -> float:
        """log E_t, in nats; the alarm goes off at log(1/delta)."""
        return float(log_wealth(self.broken, self.labelled, self.alpha))

    def seen(self, broken: bool) -> "Monitor":
        """The monitor after one more labelled answer."""
        after = replace(self, labelled=self.labelled + 1, broken=self.broken + broken)
        return replace(after, alarm=self.alarm or after.log_wealth >= -math.log(self.delta))
