"""Policy: which of TRACE's overrides are let through; the family is fixed before a label is seen.

An override is a corrected answer that is not the model's own. A policy lets it stand or gives the
model's own answer; it never invents one, and an answer that nothing overrides is left as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lastword.errors import InputError

ScalarOperator = Literal["mix", "early"]

OVERRIDING = ("decisive", "mix", "early")
MARGINS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # nats, or what a method's own scores are in

TRACE, GATED, BATCH = "trace", "trace-gated", "batch-calibrated"
# What a certificate may choose among (method, section 17), as far as records hold what each reads.
METHODS = (
    *(TRACE, GATED, "pmi@0.25", "pmi@0.5", "pmi@1"),
    *("contextual", BATCH),
)


@dataclass(frozen=True)
class Policy:
    """An override stands where its operator is listed and its margin is large enough.

    Attributes:
        operators: Whose overrides stand; none at all is correction switched off.
        margin: Least distance of the two best scores, in nats.
        method: Whose overrides they are; what only scores overrides by its own name.

    Raises:
        InputError: An unknown operator, or a margin that is no distance.
    """

    operators: tuple[str, ...]
    margin: float
    method: str = TRACE

    def __post_init__(self) -> None:
        """Refuse a policy that no override could be held to."""
        own = OVERRIDING if self.method in (TRACE, GATED) else (self.method,)
        unknown = [name for name in self.operators if name not in own]
        if unknown:
            raise InputError(f"a policy lets through {', '.join(own)}, not {unknown[0]}")
        if not 0 <= self.margin < math.inf:
            raise InputError(f"a policy's margin is a number of nats from 0, not {self.margin}")

    def withholds(self, operator: str, margin: float) -> str | None:
        """The rule that an override fails, in words; None where it stands.

        Args:
            operator: Whose scores decided.
            margin: Distance of its two best scores, in nats.
        """
        if operator not in self.operators:
            names = " and ".join(self.operators)
            return f"only {names} may override" if names else "nothing may override"
        return None if margin >= self.margin else f"a margin of at least {self.margin:g} nats"


OFF = Policy((), 0.0)


def scalar_operator(invariant: float, tau_I: float) -> ScalarOperator:
    """The one operator of the scalar regime that a model can use."""
    return "mix" if invariant > tau_I else "early"


def chains(
    scalar: ScalarOperator, methods: Sequence[str] = (TRACE,)
) -> tuple[tuple[Policy, ...], ...]:
    """The ordered family: chains, in each the margin from the largest to the smallest.

    TRACE has three: {decisive}, {X} and both, X the one scalar operator that a model has. Every
    other method has one.

    Args:
        scalar: The model's operator in the scalar regime.
        methods: What is chosen among.
    """
    sets = [(method, operators) for method in methods for operators in _sets(method, scalar)]
    return tuple(tuple(Policy(s, m, method) for m in reversed(MARGINS)) for method, s in sets)


def _sets(method: str, scalar: ScalarOperator) -> tuple[tuple[str, ...], ...]:
    both = ("decisive", scalar)
    if method == TRACE:
        return (("decisive",), (scalar,), both)
    return (both,) if method == GATED else ((method,),)
