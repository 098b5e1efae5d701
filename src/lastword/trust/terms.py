"""Terms: what a certificate has to promise, and what it may choose among."""

import math
from dataclasses import dataclass

from lastword.errors import InputError
from lastword.trust.policy import MARGINS, TRACE, chains

STARTS = (0.25, 1.0, 2.0, 3.0)  # margins of each chain that have a share of delta from the start


@dataclass(frozen=True)
class Terms:
    """What a certificate has to promise.

    Attributes:
        alpha: Largest share of all items whose right answer may be broken.
        delta: Largest chance that the labelled items mislead.
        gain: Promise too that what is fixed is worth more than what is broken.
        error: Defer so that at most this share of the answers given is wrong; None defers none.
        right: Largest share of the model's right answers that may be broken; None promises none.
        break_costs: What a break costs, in repairs.
        looks: How often labels are looked at, at most: each look has its part of delta.
        look: Which of these looks this is, from 1 on.
        methods: What is chosen among.

    Raises:
        InputError: A share that is none, or costs or looks that are none.
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

    @property
    def level(self) -> float:
        """Of one look."""
        return self.delta / self.looks

    @property
    def chains(self) -> int:
        """How many there are."""
        return len(chains("mix", self.methods))

    @property
    def policies(self) -> int:
        """How many are tried."""
        return self.chains * len(MARGINS)

    @property
    def starts(self) -> tuple[float, ...]:
        """Margins of each chain that have a share of delta from the start, with a gain."""
        return STARTS if self.methods == (TRACE,) else MARGINS

    @property
    def least(self) -> int:
        """Fewest groups with which a policy can pass, breaking none."""
        first = self.level / self.chains / (len(self.starts) if self.gain else 1)
        return math.ceil(math.log(first) / math.log1p(-self.alpha))
