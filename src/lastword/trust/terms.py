"""Terms: the promise of a certificate, and the methods that it may choose."""

import math
from dataclasses import dataclass, replace

from lastword.errors import InputError
from lastword.trust.groups import FRACTION
from lastword.trust.objective import Objective
from lastword.trust.policy import TRACE, Promise, family, is_probe


@dataclass(frozen=True)
class Terms:
    """The promise of a certificate, and the methods that it may choose.

    Attributes:
        alpha: Maximum share of all answers that may be broken.
        delta: Maximum probability that the guarantee does not hold.
        gain: Guarantee in addition that corrected answers outweigh broken ones.
        error: Maximum share of wrong answers after others are deferred; None to defer none.
        right: Maximum share of the model's right answers that may be broken, or None.
        break_costs: Cost of a broken answer, in corrected answers.
        looks: Maximum number of looks at the labels; they share delta equally.
        look: The number of this look, from 1.
        methods: The methods to choose from.
        promise: `gain`: accuracy is higher than the model's. `breaks`: in addition, at most alpha
            of all answers are broken.
        test: `unconditional` tests the gain of a probe by McNemar's unconditional test; None, as in
            earlier certificates, by the sign test.
        objective: The objective of the gain; None for accuracy.

    Raises:
        InputError: A share is outside (0, 1), costs or looks are invalid, or nothing is promised.
    """

    alpha: float = 0.02
    delta: float = 0.05
    gain: bool = True
    error: float | None = None
    right: float | None = None
    break_costs: float = 1.0
    looks: int = 1
    look: int = 1
    methods: tuple[str, ...] = (TRACE,)
    promise: Promise = "breaks"
    test: str | None = None
    objective: Objective | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name in ("alpha", "delta", "error", "right"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is a share between 0 and 1, not {value}")
        if not 0 < self.break_costs < math.inf:
            raise InputError(
                f"break_costs is a number of corrected answers, not {self.break_costs}"
            )
        if not 1 <= self.look <= self.looks:
            raise InputError(f"look is one of the looks, 1 to {self.looks}, not {self.look}")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"methods are one or more, each once, not {', '.join(self.methods)}")
        if self.promise not in ("gain", "breaks"):
            raise InputError(f"a promise is gain or breaks, not {self.promise}")
        if self.test not in (None, "unconditional"):
            raise InputError(f"a test is unconditional or left out, not {self.test}")
        if self.promise == "gain" and not self.gain:
            raise InputError("nothing is promised: --no-gain goes with the promise of few breaks")

    def of(self, method: str) -> "Terms":
        """Return the terms of a method's test: corrections always have the sign test."""
        return self if is_probe(method) or self.test is None else replace(self, test=None)

    @property
    def level(self) -> float:
        """The part of delta of one look."""
        return self.delta / self.looks

    @property
    def policies(self) -> int:
        """The number of policies that are tested."""
        return len(family("mix", self.methods, self.promise))

    @property
    def break_even(self) -> float:
        """The share of broken answers, among the fixed and broken, at which nothing is gained."""
        if self.objective is not None:
            return self.objective.break_even
        return 1 / (1 + self.break_costs)

    @property
    def watched(self) -> float:
        """The share of broken answers that the monitor tests against.

        For `breaks` it is the share of all answers; for `gain`, of the fixed and broken ones.
        """
        return self.alpha if self.promise == "breaks" else self.break_even

    @property
    def least(self) -> int:
        """The minimum number of groups with which any policy can pass if it breaks none.

        A probe needs more, because it is tested only on the groups that it was not fitted to.
        """
        tested = [
            (self.least_of(share), 1 - FRACTION if is_probe(policy.method) else 1.0)
            for policy, share in family("mix", self.methods, self.promise).items()
        ]
        return min(math.ceil(least / part) for least, part in tested)

    def least_of(self, share: float) -> int:
        """Return the minimum number of groups for a policy with a share of delta."""
        if self.objective is not None and self.promise == "gain":
            return self.objective.least(self.level * share)
        rate = self.break_even if self.promise == "gain" else self.alpha
        return math.ceil(math.log(self.level * share) / math.log1p(-rate))
