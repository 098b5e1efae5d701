"""Terms: the promise of a certificate, and the methods that it may choose."""

import math
from dataclasses import dataclass

from lastword.errors import InputError
from lastword.trust.groups import FRACTION
from lastword.trust.policy import TRACE, Promise, family, is_probe

BREAK_EVEN = 0.5  # share of broken answers, among fixed and broken ones, at which nothing is gained


@dataclass(frozen=True)
class Terms:
    """The promise of a certificate, and the methods that it may choose.

    Attributes:
        alpha: Maximum share of all answers that may be broken, for the promise `breaks`.
        delta: Maximum probability that the guarantee does not hold.
        error: Maximum share of wrong answers after others are deferred; None to defer none.
        promise: `gain`: higher accuracy than the model's. `breaks`: also alpha.

    Raises:
        InputError: A share is outside (0, 1), or a method is missing or named twice.
    """

    alpha: float = 0.02
    delta: float = 0.05
    error: float | None = None
    methods: tuple[str, ...] = (TRACE,)
    promise: Promise = "breaks"

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name in ("alpha", "delta", "error"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is a share between 0 and 1, not {value}")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"methods are one or more, each once, not {', '.join(self.methods)}")

    @property
    def policies(self) -> int:
        """The number of policies that are tested."""
        return len(family("mix", self.methods, self.promise))

    @property
    def watched(self) -> float:
        """The share of broken answers, of all or for `gain` of changed ones, that is monitored."""
        return self.alpha if self.promise == "breaks" else BREAK_EVEN

    @property
    def least(self) -> int:
        """The minimum number of groups with which any policy can pass if it breaks none."""
        tested = []
        for policy, share in family("mix", self.methods, self.promise).items():
            least = math.ceil(math.log(self.delta * share) / math.log1p(-self.watched))
            part = 1 - FRACTION if is_probe(policy.method) else 1.0
            tested.append(math.ceil(least / part))
        return min(tested)
