"""Monitor: does a service still break no more than it may? A test that may be looked at always.

A gambler bets on every labelled answer against `a share of at most alpha is broken`. If that holds
the wealth grows on average at no step, so it ever reaches 1/delta with probability at most delta
(Ville), however often and for however long one looks.

Wealth that a good start has lost has to be won back before the alarm. So a second test asks whether
the rate went up at any label since (Shiryaev-Roberts: the wealth of one gambler who starts at each
label). What it promises is another thing: the mean number of labels until a false warning.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError

# lambda alpha, the share of the wealth at stake while nothing breaks: small ones win at rates that
# are little above alpha, where large ones lose on average.
BETS = 0.9 * 0.5 ** np.arange(10)
PATIENCE = 20_000  # A: labels until a false warning of slipping, on average at least


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
    whole = np.asarray(labelled)[..., None] - lost
    stakes = BETS / alpha  # lambda
    each = lost * np.log1p(stakes * (1 - alpha)) + whole * np.log1p(-BETS)
    most = each.max(axis=-1)
    wealth: np.ndarray = most + np.log(np.exp(each - most[..., None]).mean(axis=-1))
    return np.asarray(wealth)


def log_slip(
    before: Float[np.ndarray, "*streams bets"], broken: np.ndarray | bool, alpha: float
) -> Float[np.ndarray, "*streams bets"]:
    """log R_t = log((1 + R_(t-1)) (1 + lambda (X_t - alpha))) for each lambda; R_0 = 0.

    Args:
        before: log R_(t-1).
        broken: X_t, whether correction made the answer wrong.
        alpha: The share that may be broken.
    """
    stakes = BETS / alpha
    won = np.where(broken, np.log1p(stakes * (1 - alpha)), np.log1p(-BETS))
    after: np.ndarray = np.logaddexp(0.0, before) + won
    return after


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
        slip: log R_t by stake, once there is a label.

    Raises:
        InputError: A share that is none, or counts that are none.
    """

    alpha: float
    delta: float
    labelled: int = 0
    broken: int = 0
    alarm: bool = False
    slip: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no service has counted."""
        if not (0 < self.alpha < 1 and 0 < self.delta < 1):
            raise InputError("a monitor's alpha and delta are shares between 0 and 1")
        if self.slip and len(self.slip) != len(BETS):
            raise InputError(f"a monitor bets {len(BETS)} stakes, not {len(self.slip)}")
        if not 0 <= self.broken <= self.labelled:
            raise InputError(f"{self.broken} of {self.labelled} answers cannot be broken")

    @property
    def log_wealth(self) -> float:
        """log E_t, in nats; the alarm goes off at log(1/delta)."""
        return float(log_wealth(self.broken, self.labelled, self.alpha))

    @property
    def log_slip(self) -> float:
        """log R_t, in nats, mean over stakes; `slipping` from log A on."""
        if not self.slip:
            return -math.inf
        return float(np.logaddexp.reduce(self.slip) - math.log(len(BETS)))

    @property
    def slipping(self) -> bool:
        """Whether the labels of late say that more is broken than may be; it passes again."""
        return self.log_slip >= math.log(PATIENCE)

    def seen(self, broken: bool) -> "Monitor":
        """The monitor after one more labelled answer."""
        before = np.array(self.slip) if self.slip else np.full(len(BETS), -np.inf)
        after = replace(
            self,
            labelled=self.labelled + 1,
            broken=self.broken + broken,
            slip=tuple(log_slip(before, broken, self.alpha).tolist()),
        )
        return replace(after, alarm=self.alarm or after.log_wealth >= -math.log(self.delta))
