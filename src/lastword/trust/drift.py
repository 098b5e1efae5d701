"""Drift: do the items that come still look like the labelled ones? A test without labels.

A conformal test martingale for each statistic of a decision. While items are exchangeable with the
certificate's own, the rank of the newest among all is uniform, and no betting on ranks makes money:
the wealth ever reaches k/delta in any of k statistics with probability at most delta.
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
WINDOW = 100_000  # values after which a test starts again
LIKENESS = "likeness"  # of a probe's answer: the p-value of: the text is like the labelled ones
DIGITS = 6  # significant ones: a reference on paper and a live value are rounded alike


_UNWATCHED = ("invariant", "changes")


class Martingale:
    """One statistic's test. Ranks are among the reference, all values since the start, and itself.

    Args:
        reference: Values of the certificate's items.
        seed: Of the draws that break ties; the same values give the same wealth.
    """

    def __init__(self, reference: Iterable[float], seed: int = 0) -> None:
        """Nothing has been bet."""
        self._reference = sorted(map(rounded, reference))
        self._seed = seed
        self.resume((), np.zeros(len(BETS)))

    def resume(self, values: Iterable[float], wealth: Sequence[float] | np.ndarray) -> None:
        """Go on where a test stood."""
        self._values = array("d", sorted([*self._reference, *map(rounded, values)]))
        self._wealth = np.array(wealth, dtype=float)

    def follow(self, values: Iterable[float], wealth: Sequence[float]) -> None:
        """Go on where another process stands that has seen a few values more."""
        for value in values:
            insort(self._values, rounded(value))
        self._wealth = np.array(wealth, dtype=float)

    @property
    def seen(self) -> int:
        """Values since the last start."""
        return len(self._values) - len(self._reference)

    @property
    def wealth(self) -> Float[np.ndarray, " bets"]:
        """Log wealth of each bet, in nats."""
        return self._wealth

    @property
    def log_wealth(self) -> float:
        """log M_t of the mean over bets, in nats: 0 at the start."""
        return float(np.logaddexp.reduce(self._wealth) - np.log(len(BETS)))

    def see(self, value: float) -> float:
        """Bet on the rank of one more value; its p-value, uniform without drift."""
        if self.seen >= WINDOW:
            self.resume((), np.zeros(len(BETS)))
        tie = random.Random(f"{self._seed} {self.seen}").random()  # U_t
        value = rounded(value)
        first, last = bisect_left(self._values, value), bisect_right(self._values, value)
        greater, equal = len(self._values) - last, last - first + 1  # itself among its equals
        self._values.insert(last, value)
        p = (greater + tie * equal) / len(self._values)
        self._wealth = self._wealth + np.log1p(BETS * (p - 0.5))
        return p


class Drift:
    """The tests of all statistics of a decision, and which of them have warned.

    A statistic that a decision does not have (a gate of the other regime) waits for one that has.

    Args:
        reference: Values of the certificate's items by statistic.
        delta: Largest chance of a false warning until the tests start again.

    Attributes:
        tests: By statistic.
        warned: The statistics whose distribution was seen to move; they stay.
    """

    def __init__(self, reference: Mapping[str, Iterable[float]], delta: float) -> None:
        """Nothing has been seen."""
        named = enumerate(sorted(reference.items()))
        self.tests = {name: Martingale(values, seed) for seed, (name, values) in named}
        self.warned: set[str] = set()
        self._bound = np.log(max(len(self.tests), 1) / delta)

    def see(self, statistics: Mapping[str, float]) -> list[str]:
        """One more decision; the statistics that warn for the first time."""
        known = [name for name in self.tests if name in statistics]
        for name in known:
            self.tests[name].see(statistics[name])
        moved = [name for name in known if self.tests[name].log_wealth >= self._bound]
        new = [name for name in moved if name not in self.warned]
        self.warned.update(new)
        return new

    def state(self) -> dict[str, Any]:
        """All but the values, as plain JSON."""
        return {
            "wealth": {name: test.wealth.tolist() for name, test in self.tests.items()},
            "seen": {name: test.seen for name, test in self.tests.items()},
            "warned": sorted(self.warned),
        }

    def resume(self, values: Mapping[str, Iterable[float]], state: Mapping[str, Any]) -> None:
        """Go on where the tests stood."""
        for name, test in self.tests.items():
            test.resume(values.get(name, ()), state["wealth"][name])
        self.warned = set(state["warned"])

    def follow(self, values: Mapping[str, Iterable[float]], state: Mapping[str, Any]) -> bool:
        """Go on where another process stands; False if its counts say that it has seen others.

        Args:
            values: Values of each statistic that these tests have not seen yet.
            state: As `state` gave it there.
        """
        for name, test in self.tests.items():
            test.follow(values.get(name, ()), state["wealth"][name])
        self.warned = set(state["warned"])
        return bool(self.state()["seen"] == state["seen"])


def statistics(decision: Mapping[str, Any]) -> dict[str, float]:
    """Return what is watched of a decision: confidence, d_eff, regime, operator, gates.

    Gates are watched by their values; `invariant` belongs to the model, and `changes` is read or
    not by choice.

    Args:
        decision: `Decision.to_dict()` or a record; of a withheld override, what TRACE wanted.
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


def rounded(value: float) -> float:
    """Return a value as a certificate holds it."""
    return float(f"{value:.{DIGITS}g}")
