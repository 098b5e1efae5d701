"""Policy: which of TRACE's overrides are allowed; the family is fixed before a label is seen.

An override is a corrected answer that is not the model's own. A policy lets it stand or gives the
model's answer; it never invents one, and an answer that nothing overrides is left as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lastword.errors import InputError

ScalarOperator = Literal["mix", "early"]
Promise = Literal["gain", "breaks"]

OVERRIDING = ("decisive", "mix", "early")

TRACE, GATED, BATCH = "trace", "trace-gated", "batch-calibrated"
# What a certificate may choose among (method, section 17), as far as records hold what each reads.
CERTIFIABLE = (*(TRACE, GATED, "pmi@0.25", "pmi@0.5", "pmi@1"), *("contextual", BATCH))

# How delta is divided, fixed by other jobs than the user's (dev/LOG.md, *What delta is spent on*):
# what gained on none of them has less, and what is not named has 1.
_SHARES = {TRACE: 0.25, GATED: 0.25, "pmi@0.25": 0.5}
FITTED_SHARE = 2 / 3  # of delta, where something fitted is tried beside corrections


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
        operators = OVERRIDING if self.method in (TRACE, GATED) else (self.method,)
        unknown = [name for name in self.operators if name not in operators]
        if unknown:
            raise InputError(f"a policy allows {', '.join(operators)}, not {unknown[0]}")
        if not 0 <= self.margin < math.inf:
            raise InputError(f"a policy's margin is a number of nats from 0, not {self.margin}")

    def withholds(self, operator: str, margin: float) -> str | None:
        """Return the rule that an override fails, in words; None if it stands."""
        if operator not in self.operators:
            names = " and ".join(self.operators)
            return f"only {names} may override" if names else "nothing may override"
        return None if margin >= self.margin else f"a margin of at least {self.margin:g} nats"


OFF = Policy((), 0.0)


def scalar_operator(invariant: float, tau_I: float) -> ScalarOperator:
    """Return the one operator of the scalar regime that a model can use."""
    return "mix" if invariant > tau_I else "early"


def is_probe(method: str) -> bool:
    """Return True for a probe, which is fitted to labels: its name begins with `probe`."""
    return method.startswith("probe")


def margins(method: str, promise: Promise) -> tuple[float, ...]:
    """Return the margins at which a method is tested, on the scale of its scores.

    A margin helps to break little. It costs labels where only a gain is promised, and what is
    fitted is one policy in any case.
    """
    if promise == "gain" or is_probe(method):
        return (0.0,)
    if method in (TRACE, GATED):
        return (3.0, 2.0, 1.0, 0.25)
    return (0.1, 0.05, 0.0) if method.startswith(BATCH) else (0.5, 0.25, 0.0)


def family(
    scalar: ScalarOperator, methods: Sequence[str] = (TRACE,), promise: Promise = "breaks"
) -> dict[Policy, float]:
    """Return every policy that is tested, with its share of delta; the shares add up to 1.

    Nothing but its arguments decides it, so that it is fixed before a label is seen. TRACE's
    operators are one policy at each margin: which of them acts is decided by the number of options,
    and where they come together they were as good together (dev/LOG.md).
    """
    fitted = [method for method in methods if is_probe(method)]
    others = [method for method in methods if not is_probe(method)]
    parts = [(fitted, FITTED_SHARE if others else 1.0), (others, 1 - FITTED_SHARE if fitted else 1)]
    policies: dict[Policy, float] = {}
    for names, part in parts:
        whole = sum(_SHARES.get(name, 1.0) for name in names)
        for name in names:
            operators = ("decisive", scalar) if name in (TRACE, GATED) else (name,)
            at = margins(name, promise)
            share = part * _SHARES.get(name, 1.0) / whole / len(at)
            policies |= {Policy(operators, margin, name): share for margin in at}
    return policies
