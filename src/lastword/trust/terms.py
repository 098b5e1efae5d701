"""Terms: what a certificate has to promise, and what it may choose among."""

import math
from dataclasses import dataclass
from typing import Annotated

from lastword.errors import InputError
from lastword.trust.policy import TRACE, Promise, family, is_fitted


@dataclass(frozen=True)
class Terms:
    """Terms of what a certificate has to promise.

    Raises:
        InputError: A share that is none, costs or looks that are none, or a promise of nothing.
    """

    alpha: Annotated[float, "Largest share of all items whose right answer may be broken."] = 0.02
    delta: Annotated[float, "Largest chance that the labelled items mislead."] = 0.05
    gain: Annotated[bool, "Promise too that what is fixed is worth more than what is broken."] = (
        True
    )
    error: Annotated[
        float | None,
        "Defer so that at most this share of the answers given is wrong; None defers none.",
    ] = None
    right: Annotated[
        float | None,
        "Largest share of the model's right answers that may be broken; None promises none.",
    ] = None
    break_costs: Annotated[float, "What a break costs, in repairs."] = 1.0
    looks: Annotated[
        int, "How often labels are looked at, at most: each look has its part of delta."
    ] = 1
    look: Annotated[int, "Which of these looks this is, from 1 on."] = 1
    methods: Annotated[tuple[str, ...], "What is chosen among."] = (TRACE,)
    promise: Annotated[
        Promise,
        "gain: more right answers than the model's own; breaks: that, and at most alpha of all "
        "answers broken.",
    ] = "breaks"

    def __post_init__(self) -> None:
        """Refuse what cannot be promised."""
        for name in ("alpha", "delta", "error", "right"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is a share between 0 and 1, not {value}")
        if not 0 < self.break_costs < math.inf:
            raise InputError(f"break_costs is a number of repairs, not {self.break_costs}")
        if not 1 <= self.look <= self.looks:
            raise InputError(f"look is one of the looks, 1 to {self.looks}, not {self.look}")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"methods are one or more, each once, not {', '.join(self.methods)}")
        if self.promise not in ("gain", "breaks"):
            raise InputError(f"a promise is gain or breaks, not {self.promise}")
        if self.promise == "gain" and not self.gain:
            raise InputError("nothing is promised: --no-gain goes with the promise of few breaks")

    @property
    def level(self) -> float:
        """The part of delta that one look has."""
        return self.delta / self.looks

    @property
    def policies(self) -> int:
        """Count the policies that are tested."""
        return len(family("mix", self.methods, self.promise))

    @property
    def break_even(self) -> float:
        """The share of breaks among what is fixed or broken at which nothing is won."""
        return 1 / (1 + self.break_costs)

    @property
    def watched(self) -> float:
        """The largest share of watched answers that may be broken.

        A promise of few breaks watches all; one of a gain those that are fixed or broken.
        """
        return self.alpha if self.promise == "breaks" else self.break_even

    @property
    def least(self) -> int:
        """The fewest groups with which any policy can pass, breaking none.

        What is fitted is tested on those that did not make it.
        """
        from lastword.trust.groups import FRACTION  # with numpy and scipy

        tested = [
            (self.least_of(share), 1 - FRACTION if is_fitted(policy.method) else 1.0)
            for policy, share in family("mix", self.methods, self.promise).items()
        ]
        return min(math.ceil(least / part) for least, part in tested)

    def least_of(self, share: float) -> int:
        """Return the fewest groups with which a policy of this share of delta can pass."""
        rate = self.break_even if self.promise == "gain" else self.alpha
        return math.ceil(math.log(self.level * share) / math.log1p(-rate))
