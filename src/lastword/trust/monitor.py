"""Monitor: does a service still break no more than it may? A test that may be looked at always.

A gambler bets on every labelled answer against `a share of at most alpha is broken`. If that holds
the wealth grows on average at no step, so it ever reaches 1/delta with probability at most delta
(Ville), however often and for however long one looks.

Wealth that a good start has lost would have to be won back before an alarm. So the gambler keeps a
part of the money for later: half is at stake from the first label on, and a part of the rest begins
at each label since (a mixture over change times). It is one test still: the promise is the same.

A second test asks whether the rate went up at any label (Shiryaev-Roberts: the wealth of gamblers
who start at each label with one each). What it promises is another thing: the mean number of labels
until a false warning.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError

# lambda alpha, the share of the wealth at stake while nothing breaks: small ones win at rates that
# are little above alpha, where large ones lose on average. At alpha = 0.05 the boldest of the ten,
# 0.9, keeps a tenth of its wealth at a label that is not broken, and has 18.1 times as much after
# one that is; the most timid keeps 99.8% and gains 3%. Their mean is the wealth: where one of them
# grows, it grows.
BETS = 0.9 * 0.5 ** np.arange(10)
PATIENCE = 20_000  # A: labels until a false warning of slipping, on average at least


def log_kept(labelled: int) -> float:
    """Return the log of the share of the money that has not been at stake yet.

    1 at first, then 1 / (2 (1 + log t)): it falls so slowly that a change after t labels finds
    about 1 / (2 t log(t)^2) of the money at each.
    """
    return -math.log(2 * (1 + math.log(labelled))) if labelled else 0.0


def log_restarted(
    before: Float[np.ndarray, "*streams bets"],
    labelled: int,
    broken: np.ndarray | bool,
    alpha: float,
) -> Float[np.ndarray, "*streams bets"]:
    """Return log A_t = log((A_(t-1) + w_t) (1 + lambda (X_t - alpha))) for each lambda; A_0 = 0.

    Args:
        before: log A_(t-1).
        labelled: t - 1.
        broken: X_t, whether correction made the answer wrong.
        alpha: The share that may be broken.
    """
    start = math.log(math.exp(log_kept(labelled)) - math.exp(log_kept(labelled + 1)))  # w_t
    after: np.ndarray = np.logaddexp(before, start) + _won(broken, alpha)
    return after


def _won(broken: np.ndarray | bool, alpha: float) -> np.ndarray:
    """Return log(1 + lambda (X_t - alpha)) for each lambda."""
    won = np.where(broken, np.log1p(BETS / alpha * (1 - alpha)), np.log1p(-BETS))
    return np.asarray(won)


def log_slip(
    before: Float[np.ndarray, "*streams bets"], broken: np.ndarray | bool, alpha: float
) -> Float[np.ndarray, "*streams bets"]:
    """Return log R_t = log((1 + R_(t-1)) (1 + lambda (X_t - alpha))) for each lambda; R_0 = 0."""
    after: np.ndarray = np.logaddexp(0.0, before) + _won(broken, alpha)
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
        wealth: log A_t by stake, likewise.

    Raises:
        InputError: A share that is none, or counts that are none.
    """

    alpha: float
    delta: float
    labelled: int = 0
    broken: int = 0
    alarm: bool = False
    slip: tuple[float, ...] = ()
    wealth: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no service has counted."""
        if not (0 < self.alpha < 1 and 0 < self.delta < 1):
            raise InputError("a monitor's alpha and delta are shares between 0 and 1")
        for stakes in (self.slip, self.wealth):
            if len(stakes) != (len(BETS) if self.labelled else 0):
                raise InputError(f"a monitor bets {len(BETS)} stakes, not {len(stakes)}")
        if not 0 <= self.broken <= self.labelled:
            raise InputError(f"{self.broken} of {self.labelled} answers cannot be broken")

    @property
    def log_wealth(self) -> float:
        """Return log M_t, in nats, mean over stakes; the alarm goes off at log(1/delta)."""
        # All the money is what is at stake plus what has not been yet; neither step makes any on
        # average while the promise holds, which is all that Ville's bound asks for.
        staked = np.logaddexp.reduce(self.wealth) - math.log(len(BETS)) if self.wealth else -np.inf
        return float(np.logaddexp(staked, log_kept(self.labelled)))

    @property
    def log_slip(self) -> float:
        """log R_t, in nats, mean over stakes; `slipping` from log A on."""
        if not self.slip:
            return -math.inf
        return float(np.logaddexp.reduce(self.slip) - math.log(len(BETS)))

    @property
    def slipping(self) -> bool:
        """True if the labels of late say that more is broken than may be; it passes again."""
        return self.log_slip >= math.log(PATIENCE)

    def seen(self, broken: bool) -> "Monitor":
        """Return the monitor after one more labelled answer."""
        nothing = np.full(len(BETS), -np.inf)
        slip, wealth = (
            np.array(stakes) if stakes else nothing for stakes in (self.slip, self.wealth)
        )
        after = replace(
            self,
            labelled=self.labelled + 1,
            broken=self.broken + broken,
            slip=tuple(log_slip(slip, broken, self.alpha).tolist()),
            wealth=tuple(log_restarted(wealth, self.labelled, broken, self.alpha).tolist()),
        )
        return replace(after, alarm=self.alarm or after.log_wealth >= -math.log(self.delta))
