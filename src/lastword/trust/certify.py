"""Certify: the policy that labelled items allow, or how many more of them it would take.

Broken rate: H0 that a policy breaks more than alpha of the model's right answers' items falls where
P(Bin(n, alpha) <= K) is small. Along a chain the margin falls and K grows, so the chain is a fixed
sequence and pays no price for its length; three chains share the level. Gain: of F fixed and K
broken, P(Bin(F + K, 1/2) >= F), along the chain the other way. Both hold for every certified policy
at once, so the best of them may be chosen by the same labels.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lastword.errors import InputError
from lastword.trust.deferral import Deferral, defer
from lastword.trust.labelled import Labelled
from lastword.trust.policy import CHAINS, OFF, Policy, ScalarOperator, chains
from lastword.trust.testing import fixed_sequence

Counts = Int[np.ndarray, "*samples chains margins"]  # margins from the largest to the smallest
Certified = Bool[np.ndarray, "*samples chains margins"]

# Sizes at which a policy that fails now is asked about again; beyond, it is called out of reach.
_LARGEST = 10_000_000
_SIZES = 600


@dataclass(frozen=True)
class Terms:
    """What a certificate has to promise.

    Attributes:
        alpha: Largest share of all items whose right answer may be broken.
        delta: Largest chance that the labelled items mislead.
        gain: Whether more must be fixed than broken, too.
        error: Largest share of wrong answers among those given; None to defer none.

    Raises:
        InputError: A share that is none.
    """

    alpha: float = 0.02
    delta: float = 0.05
    gain: bool = False
    error: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be promised."""
        for name in ("alpha", "delta", "error"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is a share between 0 and 1, not {value}")

    @property
    def level(self) -> float:
        """Of one chain and one of the promises."""
        return self.delta / (2 if self.gain else 1) / CHAINS

    @property
    def least(self) -> int:
        """Fewest items with which a policy can pass, breaking none."""
        return math.ceil(math.log(self.level) / math.log1p(-self.alpha))


@dataclass(frozen=True)
class Trial:
    """One policy on the labelled items.

    Attributes:
        policy: What it lets through.
        overrides: How many overrides it lets stand.
        fixed: Wrong answers of the model that it makes right.
        broken: Right answers of the model that it makes wrong.
        certified: Whether it keeps what was asked.
    """

    policy: Policy
    overrides: int
    fixed: int
    broken: int
    certified: bool

    @property
    def gain(self) -> int:
        """Answers more that are right."""
        return self.fixed - self.broken


@dataclass(frozen=True, eq=False)
class Finding:
    """What labelled items certify.

    Attributes:
        terms: What was asked.
        items: How many labelled items there were.
        base_right: How many of them the model answers right by itself.
        trials: Every policy, chain by chain, margins falling.
        chosen: The policy that is let through; None to keep correction off.
        needed: With about how many items one would pass if the rates stay; None where one does, or
            where no number would do.
        deferral: Which answers are given, where an error was asked for.
    """

    terms: Terms
    items: int
    base_right: int
    trials: tuple[Trial, ...]
    chosen: Trial | None
    needed: int | None
    deferral: Deferral | None

    @property
    def policy(self) -> Policy:
        """What is let through: nothing, where nothing is certified."""
        return OFF if self.chosen is None else self.chosen.policy

    @property
    def best(self) -> Trial:
        """The policy with the largest gain, certified or not: what keeping the promise costs."""
        return max(self.trials, key=lambda trial: (trial.gain, -trial.broken))


def certify(items: Labelled, scalar: ScalarOperator, terms: Terms) -> Finding:
    """Test the whole family, and choose.

    Args:
        items: Labelled items, of one model.
        scalar: The model's operator in the scalar regime.
        terms: What is to be promised.

    Raises:
        InputError: Fewer items than any policy could pass with.
    """
    _require_enough(len(items), terms)
    family = chains(scalar)
    fixed, broken = count(items, family)
    passed = certified(fixed, broken, len(items), terms)
    place = int(choose(passed, fixed, broken))
    trials = tuple(_trials(items, family, fixed, broken, passed))
    chosen = None if place < 0 else trials[place]
    policy = OFF if chosen is None else chosen.policy
    return Finding(
        terms=terms,
        items=len(items),
        base_right=int((items.mc1_base > 0).sum()),
        trials=trials,
        chosen=chosen,
        needed=needed(fixed, broken, len(items), terms) if chosen is None else None,
        deferral=None if terms.error is None else defer(items, policy, terms.error, terms.delta),
    )


def count(items: Labelled, family: Sequence[Sequence[Policy]]) -> tuple[Counts, Counts]:
    """F and K of every policy [chains, margins]."""
    fixed = np.array([[items.fixed(p).sum() for p in chain] for chain in family])
    broken = np.array([[items.broken(p).sum() for p in chain] for chain in family])
    return fixed, broken


def certified(fixed: Counts, broken: Counts, items: Any, terms: Terms) -> Certified:
    """Which policies keep the promise, all at once with probability at least 1 - delta.

    Args:
        fixed: F of every policy, margins falling along the last axis.
        broken: K of every policy, likewise.
        items: n, a number or an array that goes with the counts.
        terms: What is promised.
    """
    from scipy.stats import binom

    kept = fixed_sequence(binom.cdf(broken, items, terms.alpha), terms.level)
    if terms.gain:
        p = binom.sf(fixed - 1, fixed + broken, 0.5)
        kept &= fixed_sequence(p[..., ::-1], terms.level)[..., ::-1]
    return kept


def choose(passed: Certified, fixed: Counts, broken: Counts) -> Int[np.ndarray, "*samples"]:
    """Place of the chosen policy among the flattened chains; -1 to keep correction off.

    The largest F - K above 0, then the smaller K, then the larger margin, then fewer operators.
    """
    gain = fixed - broken
    worth = np.where(passed & (gain > 0), gain * (broken.max(initial=0) + 1) - broken, -1)
    by_margin = worth.swapaxes(-1, -2)  # the first of equals has the larger margin
    count_chains, count_margins = worth.shape[-2:]
    flat = by_margin.reshape(*worth.shape[:-2], -1)
    margin, chain = np.divmod(flat.argmax(axis=-1), count_chains)
    chosen: np.ndarray = np.where(flat.max(axis=-1) < 0, -1, chain * count_margins + margin)
    return chosen


def needed(fixed: Counts, broken: Counts, items: int, terms: Terms) -> int | None:
    """About how many items it would take if the rates stay; None where no number would do.

    K is rounded up and F down at every size: one policy must pass, with all before it in its chain.

    Args:
        fixed: F of every policy [chains, margins].
        broken: K of every policy [chains, margins].
        items: n.
        terms: What is to be promised.
    """
    sizes = np.unique(np.geomspace(items, _LARGEST, _SIZES).astype(int))[1:, None, None]
    more_fixed = np.floor(fixed * (sizes / items)).astype(int)
    more_broken = np.ceil(broken * (sizes / items)).astype(int)
    passed = certified(more_fixed, more_broken, sizes, terms)
    enough = choose(passed, more_fixed, more_broken) >= 0
    return int(sizes[enough.argmax(), 0, 0]) if enough.any() else None


def _trials(
    items: Labelled,
    family: Sequence[Sequence[Policy]],
    fixed: Counts,
    broken: Counts,
    passed: Certified,
) -> Iterator[Trial]:
    policies = [policy for chain in family for policy in chain]
    for policy, f, k, kept in zip(policies, fixed.flat, broken.flat, passed.flat, strict=True):
        yield Trial(policy, int(items.stands(policy).sum()), int(f), int(k), bool(kept))


def _require_enough(items: int, terms: Terms) -> None:
    if items < terms.least:
        raise InputError(
            f"{items} labelled items cannot certify a broken rate of {terms.alpha:g} at "
            f"{1 - terms.delta:g}: at least {terms.least} are needed, without a single break; "
            "label more, or ask for a larger alpha"
        )
