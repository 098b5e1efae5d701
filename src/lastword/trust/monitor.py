"""Monitor: a test if a service still breaks at most its share of answers, valid at any time.

A gambler bets on each labelled answer against the hypothesis that at most a share alpha is broken.
Under this hypothesis no bet has a positive expectation. So the wealth, which starts at 1, ever
reaches 1/delta with probability at most delta, however often one looks (Ville's inequality).

A good start would lose money, which later breaks would have to win back before an alarm. So the
gambler bets half of the money from the first label on, and saves the rest: at each later label, a
part of the savings starts to bet (a mixture over change times). Ville's inequality holds for the
sum.

A second test asks if the rate has risen since any label (Shiryaev-Roberts). It adds up gamblers who
each start with 1 at another label. Its guarantee is different: the mean number of labels until a
false warning.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

# lambda alpha: the share of the wealth that is lost if the answer is not broken. Small bets win at
# rates slightly above alpha, where large ones lose on average. At alpha = 0.05 the largest, 0.9,
# leaves a tenth of the wealth after an answer that is not broken, and multiplies it by 18.1 after
# one that is; the smallest leaves 99.8%, and gains 3%. The wealth is the mean over all bets, so it
# grows if one of them grows.
BETS = 0.9 * 0.5 ** np.arange(10)
PATIENCE = 20_000  # A: minimum mean number of labels until a false warning of slipping


def log_savings(labelled: int) -> float:
    """Return the log of the savings: the share of the money that has not been bet yet.

    The savings are 1 at first, then 1 / (2 (1 + log t)). They fall so slowly that a change after t
    labels meets about 1 / (2 t log(t)^2) of the money at each further label.
    """
    return -math.log(2 * (1 + math.log(labelled))) if labelled else 0.0


def log_restarted(
    before: Float[np.ndarray, "*streams bets"],
    labelled: int,
    broken: np.ndarray | bool,
    alpha: float,
) -> Float[np.ndarray, "*streams bets"]:
    """Return log A_t = log((A_(t-1) + w_t) (1 + lambda (X_t - alpha))) for each lambda; A_0 = 0.

    `before` is log A_(t-1), `labelled` is t - 1, and `broken` is X_t.
    """
    start = math.log(math.exp(log_savings(labelled)) - math.exp(log_savings(labelled + 1)))  # w_t
    return np.asarray(np.logaddexp(before, start) + _won(broken, alpha))


def _won(broken: np.ndarray | bool, alpha: float) -> np.ndarray:
    return np.asarray(np.where(broken, np.log1p(BETS / alpha * (1 - alpha)), np.log1p(-BETS)))


def log_slip(
    before: Float[np.ndarray, "*streams bets"], broken: np.ndarray | bool, alpha: float
) -> Float[np.ndarray, "*streams bets"]:
    """Return log R_t = log((1 + R_(t-1)) (1 + lambda (X_t - alpha))) for each lambda; R_0 = 0."""
    return np.asarray(np.logaddexp(0.0, before) + _won(broken, alpha))


@dataclass(frozen=True)
class Monitor:
    """State of the two tests after some labelled answers; immutable.

    The choice of the answers that get a label must not depend on whether they were right.

    Alpha is the maximum share of broken answers, delta the maximum probability of a false alarm;
    `slip` has log R_t by bet, and `wealth` log A_t; they are empty before the first label.
    """

    alpha: float
    delta: float
    labelled: int = 0
    broken: int = 0
    alarm: bool = False
    slip: tuple[float, ...] = ()
    wealth: tuple[float, ...] = ()

    @property
    def log_wealth(self) -> float:
        """The log of the whole money in nats; the alarm goes off at log(1/delta)."""
        # The money is the mean over bets plus the savings. Neither grows on average while the
        # guarantee holds, which is all that Ville's inequality needs.
        staked = np.logaddexp.reduce(self.wealth) - math.log(len(BETS)) if self.wealth else -np.inf
        return float(np.logaddexp(staked, log_savings(self.labelled)))

    @property
    def log_slip(self) -> float:
        """log R_t in nats, the mean over bets; `slipping` from log A on."""
        if not self.slip:
            return -math.inf
        return float(np.logaddexp.reduce(self.slip) - math.log(len(BETS)))

    @property
    def slipping(self) -> bool:
        """True if recent labels suggest a rate above alpha; it can become False again."""
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
