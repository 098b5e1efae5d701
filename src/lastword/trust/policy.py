"""Policy: the overrides of a method that are allowed; the family is fixed before labels are seen.

An override is a corrected answer that differs from the model's. A policy lets it stand, or restores
the model's answer. It never changes another answer.
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
PREDICTION = "prediction"  # of any system, in a table
# Methods that a certificate may choose (docs/statistics.md) if the records have their input.
CERTIFIABLE = (*(TRACE, GATED, "pmi@0.25", "pmi@0.5", "pmi@1"), *("contextual", BATCH))

# Relative shares of delta, by default 1. They were fixed on other data (dev/LOG.md, *What delta is
# spent on*): methods that gained nowhere there have less.
_SHARES = {TRACE: 0.25, GATED: 0.25, "pmi@0.25": 0.5}
FITTED_SHARE = 2 / 3  # share of delta for probes if corrections are tested too


@dataclass(frozen=True)
class Policy:
    """An override stands if its operator is listed and its margin is large enough.

    The margin is the distance of the two best scores, in nats. No operator switches correction
    off; a method with one only has its name as operator.

    Raises:
        InputError: An operator is unknown, or the margin is negative or infinite.
    """

    operators: tuple[str, ...]
    margin: float
    method: str = TRACE

    def __post_init__(self) -> None:
        """Refuse unknown operators and invalid margins."""
        operators = OVERRIDING if self.method in (TRACE, GATED) else (self.method,)
        unknown = [name for name in self.operators if name not in operators]
        if unknown:
            raise InputError(f"a policy allows {', '.join(operators)}, not {unknown[0]}")
        if not 0 <= self.margin < math.inf:
            raise InputError(f"a policy's margin is a number of nats from 0, not {self.margin}")

    def withholds(self, operator: str, margin: float) -> str | None:
        """Return the rule that forbids an override, in words; None if it stands."""
        if operator not in self.operators:
            names = " and ".join(self.operators)
            return f"only {names} may override" if names else "nothing may override"
        return None if margin >= self.margin else f"a margin of at least {self.margin:g} nats"


OFF = Policy((), 0.0)


def scalar_operator(invariant: float, tau_I: float) -> ScalarOperator:
    """Return the operator that a model uses in the scalar regime."""
    return "mix" if invariant > tau_I else "early"


def is_probe(method: str) -> bool:
    """Return True for a probe, which is fitted to labels: its name begins with `probe`."""
    return method.startswith("probe")


def margins(method: str, promise: Promise) -> tuple[float, ...]:
    """Return the margins at which a method is tested, on the scale of its scores.

    Margins help to break few answers. For a promise of a gain they would only divide delta, and a
    probe has its threshold already.
    """
    if promise == "gain" or is_probe(method):
        return (0.0,)
    if method in (TRACE, GATED):
        return (3.0, 2.0, 1.0, 0.25)
    return (0.1, 0.05, 0.0) if method.startswith(BATCH) else (0.5, 0.25, 0.0)


def family(
    scalar: ScalarOperator, methods: Sequence[str] = (TRACE,), promise: Promise = "breaks"
) -> dict[Policy, float]:
    """Return each policy that is tested, with its share of delta; the shares add up to 1.

    The family depends on nothing but the arguments, so it is fixed before a label is seen. TRACE's
    operators share one policy per margin: the number of options decides which of them acts.
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
