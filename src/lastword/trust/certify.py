"""Certify: the policy that labelled items allow, or how many more of them it would take.

Broken rate: H0 that a policy breaks more than alpha of all answers falls where
P(Bin(n, alpha) <= K) is small. Gain: of F fixed and K broken, P(Bin(F + K, 1/2) <= K). A policy's
p-value is the largest of what is promised of it (intersection-union). Every certified policy keeps
the promise at once, so the best of them may be chosen by the same labels.

With a gain the p-value falls and rises again along a chain: too much breaks at small margins,
nothing is fixed at large ones. The graphical procedure starts at four margins of each chain and
goes on to both sides (chosen among five by `experiments/procedures.py`); where other methods are
tried too it starts at all eight (`experiments/choice.py`). Without a gain p grows as
the margin falls: each chain is a fixed sequence and pays no price for its length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.errors import InputError
from lastword.trust.deferral import Deferral, defer
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled
from lastword.trust.policy import MARGINS, OFF, Policy, ScalarOperator, chains
from lastword.trust.terms import Terms
from lastword.trust.testing import fixed_sequence, graphical, lattice

Counts = Int[np.ndarray, "*samples chains margins"]  # margins from the largest to the smallest
Certified = Bool[np.ndarray, "*samples chains margins"]

# Sizes at which a policy that fails now is asked about again; beyond, it is called out of reach.
_LARGEST = 10_000_000
_SIZES = 600

LUCK = 0.05  # share of draws from which on random flips are said to do as much


@dataclass(frozen=True)
class Trial:
    """One policy on the labelled items.

    Attributes:
        policy: What it lets through.
        evidence: What the items say of it.
        certified: Whether it keeps what was asked.
        costs: Of a break, in repairs.
    """

    policy: Policy
    evidence: Evidence
    certified: bool
    costs: float = 1.0

    @property
    def overrides(self) -> int:
        """How many overrides it lets stand."""
        return int(self.evidence.overrides)

    @property
    def fixed(self) -> int:
        """Wrong answers of the model that it makes right."""
        return int(self.evidence.fixed)

    @property
    def broken(self) -> int:
        """Right answers of the model that it makes wrong."""
        return int(self.evidence.broken)

    @property
    def gain(self) -> float:
        """What it is worth, in repairs: F - c K."""
        return self.fixed - self.costs * self.broken


@dataclass(frozen=True, eq=False)
class Finding:
    """What labelled items certify.

    Attributes:
        terms: What was asked.
        items: How many labelled items there were.
        groups: How many groups they make.
        base_right: How many of them the model answers right by itself.
        trials: Every policy, chain by chain, margins falling.
        chosen: The policy that is let through; None to keep correction off.
        needed: With about how many items one would pass if the rates stay; None where one does, or
            where no number would do.
        deferral: Which answers are given, where an error was asked for.
    """

    terms: Terms
    items: int
    groups: int
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
    def worth(self) -> dict[str, float]:
        """What the chosen policy is worth, with bounds that hold for every policy at once."""
        if self.chosen is None:
            return {}
        evidence, terms = self.chosen.evidence, self.terms
        level = terms.level / len(self.trials)
        return {
            "net": evidence.net(terms.break_costs),
            "net_at_least": evidence.net_bound(terms.break_costs, level),
            "right_broken_at_most": evidence.right_bound(level),
        }

    @property
    def best(self) -> Trial:
        """The policy with the largest gain, certified or not: what keeping the promise costs."""
        return max(self.trials, key=lambda trial: (trial.gain, -trial.broken))


@dataclass(frozen=True)
class Beside:
    """What never reads the question, in the same test (method, section 15).

    Attributes:
        worth: F - c K of what is certified of each control, by name; 0 where nothing is.
        flips: Share of draws of as many random overrides that are worth at least as much as what
            is certified; nan where nothing is.
    """

    worth: Mapping[str, float]
    flips: float

    def rivals(self, gain: float) -> list[str]:
        """Who would certify at least as much as a gain, in words."""
        equal = [name for name, worth in self.worth.items() if worth >= gain]
        often = self.flips > LUCK
        return [*equal, *([f"random flips in {self.flips:.0%} of draws"] if often else [])]


def certify(items: Labelled, scalar: ScalarOperator, terms: Terms) -> Finding:
    """Test the whole family, and choose.

    Args:
        items: Labelled items, of one model, as every method answers them.
        scalar: The model's operator in the scalar regime.
        terms: What is to be promised.

    Raises:
        InputError: Fewer groups than any policy could pass with.
    """
    _require_enough(items, terms)
    family = chains(scalar, terms.methods)
    evidence = Evidence.of(items, family, terms.break_costs)
    holds = certified(evidence, terms)
    place = int(choose(holds, evidence.fixed, evidence.broken, terms.break_costs))
    trials = tuple(_trials(family, evidence, holds, terms.break_costs))
    best = None if place < 0 else trials[place]
    policy = OFF if best is None else best.policy
    return Finding(
        terms=terms,
        items=len(items),
        groups=items.group_count,
        base_right=evidence.base_right,
        trials=trials,
        chosen=best,
        needed=needed(evidence, terms) if best is None else None,
        deferral=None
        if terms.error is None
        else defer(items, policy, terms.error, terms.level, terms.policies),
    )


def p_values(evidence: Evidence, terms: Terms) -> Float[np.ndarray, "..."]:
    """The largest p-value of what is promised of each policy."""
    p = evidence.breaks(terms.alpha)
    if terms.gain:
        p = np.maximum(p, evidence.gains(terms.break_costs))
    if terms.right is not None:
        p = np.maximum(p, evidence.breaks_of_right(terms.right))
    return np.asarray(p)


def certified(evidence: Evidence, terms: Terms) -> Certified:
    """Which policies keep the promise, all at once with probability at least 1 - delta.

    Args:
        evidence: Of every policy, margins falling along the last axis.
        terms: What is promised.
    """
    p = p_values(evidence, terms)
    if not terms.gain:
        return fixed_sequence(p, terms.level / terms.chains)
    starts = [list(reversed(MARGINS)).index(margin) for margin in terms.starts]
    weights, edges = lattice(starts, terms.chains, len(MARGINS))
    flat = p.reshape(*p.shape[:-2], -1)
    return graphical(flat, weights, edges, terms.level).reshape(p.shape)


def choose(
    holds: Certified, fixed: Counts, broken: Counts, costs: float = 1.0
) -> Int[np.ndarray, "*samples"]:
    """Place of the chosen policy among the flattened chains; -1 to keep correction off.

    The largest F - c K above 0, then the smaller K, then the larger margin, then fewer operators.
    """
    gain = fixed - costs * broken
    worth = np.where(holds & (gain > 0), gain * (broken.max(initial=0) + 1) - broken, -1)
    by_margin = worth.swapaxes(-1, -2)  # the first of equals has the larger margin
    count_chains, count_margins = worth.shape[-2:]
    flat = by_margin.reshape(*worth.shape[:-2], -1)
    margin, chain = np.divmod(flat.argmax(axis=-1), count_chains)
    places: np.ndarray = np.where(flat.max(axis=-1) < 0, -1, chain * count_margins + margin)
    return places


def needed(evidence: Evidence, terms: Terms) -> int | None:
    """About how many items it would take if the rates stay; None where no number would do.

    Args:
        evidence: Of every policy [chains, margins].
        terms: What is to be promised.
    """
    sizes = np.unique(np.geomspace(evidence.items, _LARGEST, _SIZES).astype(int))[1:, None, None]
    more = evidence.grown(sizes / evidence.items)
    holds = certified(more, terms)
    enough = choose(holds, more.fixed, more.broken, terms.break_costs) >= 0
    return int(sizes[enough.argmax(), 0, 0]) if enough.any() else None


def _trials(
    family: Sequence[Sequence[Policy]], evidence: Evidence, holds: Certified, costs: float
) -> Iterator[Trial]:
    for place in np.ndindex(holds.shape):
        policy = family[place[0]][place[1]]
        yield Trial(policy, evidence.at(place), bool(holds[place]), costs)


def _require_enough(items: Labelled, terms: Terms) -> None:
    if items.group_count < terms.least:
        alone = items.group_count == len(items)
        many = f"{len(items)} labelled items" + ("" if alone else f" in {items.group_count} groups")
        raise InputError(
            f"{many} cannot certify a broken rate of {terms.alpha:g} at "
            f"{1 - terms.level:g}: at least {terms.least} are needed, without a single break; "
            "label more, or ask for a larger alpha"
        )
