"""Drift: a test without labels if new items still look like the labelled ones.

Each statistic of a decision has a conformal test martingale. If new items are exchangeable with
those of the certificate, the rank of the newest among all is uniform, and no bet on ranks makes
money on average. So the wealth in any of k statistics ever reaches k/delta with probability at most
delta.
"""

import random
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.trust.policy import OVERRIDING

BETS = np.array([-1.5, -1.0, -0.5, 0.5, 1.0, 1.5])  # e: on large ranks, and on small ones
WINDOW = 100_000  # number of values after which a test starts again
LIKENESS = "likeness"  # statistic of probes: the p-value that a text is like the labelled ones
REFERENCE = 1000  # maximum number of values per statistic in a certificate; drawn at random
DIGITS = 6  # significant digits, of values in a certificate and of live ones
_UNWATCHED = ("invariant", "changes")


class Martingale:
    """The test of one statistic; `wealth` is the log wealth of each bet, in nats [bets].

    A value's rank is that among the reference, all values since the start, and itself. The seed
    is that of the draws that break ties.
    """

    wealth: Float[np.ndarray, " bets"]

    def __init__(self, reference: Iterable[float], seed: int = 0) -> None:
        self._reference, self._seed = sorted(map(rounded, reference)), seed
        self.follow((), (0.0,) * len(BETS), anew=True)

    def follow(
        self, values: Iterable[float], wealth: Sequence[float], *, anew: bool = False
    ) -> None:
        """Add values that were tested elsewhere, or start anew with them, and take the wealth."""
        if anew:
            self._values = array("d", sorted([*self._reference, *map(rounded, values)]))
            values = ()
        for value in values:
            insort(self._values, rounded(value))
        self.wealth = np.array(wealth, dtype=float)

    @property
    def seen(self) -> int:
        """The number of values since the last start."""
        return len(self._values) - len(self._reference)

    @property
    def log_wealth(self) -> float:
        """log M_t, the mean over bets, in nats; 0 at the start."""
        return float(np.logaddexp.reduce(self.wealth) - np.log(len(BETS)))

    def see(self, value: float) -> float:
        """Bet on the rank of one more value, and return its p-value: uniform without drift."""
        if self.seen >= WINDOW:
            self.follow((), (0.0,) * len(BETS), anew=True)
        # U_t depends only on the seed and t, so that a restarted service draws the same numbers.
        tie = random.Random(f"{self._seed} {self.seen}").random()
        value = rounded(value)
        first, last = bisect_left(self._values, value), bisect_right(self._values, value)
        greater, equal = len(self._values) - last, last - first + 1  # its equals include itself
        self._values.insert(last, value)
        p = (greater + tie * equal) / len(self._values)
        self.wealth = self.wealth + np.log1p(BETS * (p - 0.5))
        return p


class Drift:
    """The tests of all statistics of a decision; `warned` has those that have warned.

    A test ignores decisions that lack its statistic, such as a gate of the other regime. `delta` is
    the maximum probability of a false warning until the tests start again.
    """

    def __init__(self, reference: Mapping[str, Iterable[float]], delta: float) -> None:
        pairs = enumerate(sorted(reference.items()))
        self.tests = {name: Martingale(values, seed) for seed, (name, values) in pairs}
        self.warned: set[str] = set()
        self._bound = np.log(max(len(self.tests), 1) / delta)

    def see(self, statistics: Mapping[str, float]) -> list[str]:
        """Test one more decision, and return the statistics that warn for the first time."""
        new = []
        for name in self.tests.keys() & statistics.keys():
            self.tests[name].see(statistics[name])
            if self.tests[name].log_wealth >= self._bound and name not in self.warned:
                new.append(name)
        self.warned.update(new)
        return sorted(new)

    def state(self) -> dict[str, Any]:
        """Return the state without the values, as plain JSON."""
        return {
            "wealth": {name: test.wealth.tolist() for name, test in self.tests.items()},
            "seen": {name: test.seen for name, test in self.tests.items()},
            "warned": sorted(self.warned),
        }

    def follow(
        self,
        values: Mapping[str, Iterable[float]],
        state: Mapping[str, Any],
        *,
        anew: bool = False,
    ) -> bool:
        """Continue from another process's state; False if its counts show that values are missing.

        `values` are those that these tests lack; with `anew`, all of them.
        """
        for name, test in self.tests.items():
            test.follow(values.get(name, ()), state["wealth"][name], anew=anew)
        self.warned = set(state["warned"])
        return bool(self.state()["seen"] == state["seen"])


def statistics(decision: Mapping[str, Any]) -> dict[str, float]:
    """Return the statistics of a decision or record: confidence, d_eff, regime, operator, gates.

    The gate of the model is left out, and `changes`, which is not always computed. A withheld
    override counts as if it stood.
    """
    withheld = decision.get("withheld") or {}
    operator = withheld.get("operator", decision["operator"])
    gates = {name: gate["value"] for name, gate in decision["gates"].items()}
    watched = {
        "confidence": float(softmax(np.asarray(decision["base_scores"], dtype=float)).max()),
        "d_eff": decision["d_eff"],
        "scalar": float(decision["regime"] == "scalar"),
        **{name: float(operator == name) for name in OVERRIDING},
        **{f"gate_{name}": v for name, v in gates.items() if name not in _UNWATCHED},
    }
    return {name: float(value) for name, value in watched.items() if value is not None}


def sampled(
    values: Sequence[float] | np.ndarray, name: str = LIKENESS
) -> dict[str, tuple[float, ...]]:
    """Return the reference of one statistic, such as a probe's likeness of labelled texts."""
    some = np.random.default_rng(0).permutation(values)[:REFERENCE].tolist()
    return {name: tuple(map(rounded, some))} if some else {}


def rounded(value: float) -> float:
    """Return a value rounded as in a certificate."""
    return float(f"{value:.{DIGITS}g}")
