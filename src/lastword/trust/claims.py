"""Certify: which ways to answer keep a promise on the labels that judge them, and which is best.

A *claim* is one way to answer beside the model's own: a correction at a margin, a fitted probe. It
has a share of delta that was fixed before a label was seen, and is certified where the p-value of
what is promised of it is at most its share of delta. The shares add up to 1, so that all that is
certified holds at once with probability 1 - delta (Bonferroni), whatever the claims have in
common, and the best of it may be chosen by the same labels. The bound that is printed is that of
the same test at the same share: where something is certified it is not below 0.

What was fitted on a label must not be judged by it. So a claim brings its own items: a probe the
half of the labels that it did not see, a correction, which learns nothing, all of them.

    terms = Terms(promise="gain", methods=("pmi@1", "batch-calibrated", "probe@19"))
    shares = family(scalar, terms.methods, terms.promise)  # the probe has 2/3
    claims = [
        Claim(policy, share, base[test], probe[test], groups[test])  # the half that tests
        if is_probe(policy.method)
        else Claim(policy, share, base, right[policy.method], groups)
        for policy, share in shares.items()
    ]
    finding = judge(claims, terms)
    finding.policy, finding.worth["net_at_least"]

The procedure was chosen among graphs (Bretz 2009), Holm, chains and this one
(`experiments/results/procedures.json`): none is on more often with these few policies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from lastword.errors import InputError
from lastword.trust.deferral import Deferral, defer
from lastword.trust.evidence import GroupEvidence, Groups, Which
from lastword.trust.labelled import Labelled
from lastword.trust.policy import OFF, Policy, ScalarOperator, family
from lastword.trust.terms import Terms

# Sizes at which a policy that fails now is asked about again; beyond, it is called out of reach.
_LARGEST = 10_000_000
_SIZES = 600

LUCK = 0.05  # share of draws from which on random flips are said to do as much


@dataclass(frozen=True, eq=False)
class Claim:
    """One way to answer, on the labels that judge it.

    Attributes:
        policy: What it allows, of which method.
        share: Of delta, fixed before a label was seen; those of all claims add up to at most 1.
        base: Where the model's answer is right [items].
        shown: Where the answer that would be shown is right [items].
        groups: Number of each item's group [items].
        changed: Where the two answers differ; where one of them alone is right if left out.
        gains: On another objective than accuracy [items].
    """

    policy: Policy
    share: float
    base: Which
    shown: Which
    groups: Groups
    changed: Which | None = None
    gains: np.ndarray | None = None


@dataclass(frozen=True)
class PolicyTrial:
    """One policy on the labelled items that judge it.

    Attributes:
        share: Of delta.
        costs: Of a break, in repairs.
    """

    policy: Policy
    evidence: GroupEvidence
    certified: bool
    share: float
    costs: float = 1.0

    @classmethod
    def of(
        cls, policy: Policy, evidence: GroupEvidence, share: float, terms: Terms
    ) -> "PolicyTrial":
        """Return the trial of a policy under some terms."""
        certified = bool(evidence.p(terms.of(policy.method)) <= terms.level * share)
        return cls(policy, evidence, certified, share, terms.break_costs)

    @property
    def gain(self) -> float:
        """Return what it is worth: F - c K in repairs, or the gains on the objective."""
        if (gains := self.evidence.objective_gains) is not None:
            return gains.mean * float(self.evidence.items)
        return float(self.evidence.fixed - self.costs * self.evidence.broken)

    @property
    def order(self) -> tuple[float, float, float]:
        """Order it by net gain an item, then few breaks, then a large margin."""
        items = self.evidence.items
        return self.gain / items, -self.evidence.broken / items, self.policy.margin

    def worth(self, terms: Terms) -> dict[str, float]:
        """Return what it is worth an answer, with bounds at its share of delta."""
        level = terms.level * self.share
        return {
            "net": self.gain / self.evidence.items
            if terms.objective is not None
            else self.evidence.net(terms.break_costs),
            "net_at_least": self.evidence.gain_bound(terms.of(self.policy.method), level),
            "right_broken_at_most": self.evidence.right_bound(level),
        }


@dataclass(frozen=True, eq=False)
class Finding:
    """Outcome of every test on labelled items.

    Attributes:
        base_right: How many items the model answers right by itself.
        chosen: The policy that is allowed; None to keep correction off.
        needed: With about how many items one would pass if the rates stay; None where one does, or
            where no number would do.
        deferral: Which answers are given, where an error was asked for.
    """

    terms: Terms
    items: int
    groups: int
    base_right: int
    trials: tuple[PolicyTrial, ...]
    chosen: PolicyTrial | None
    needed: int | None
    deferral: Deferral | None = None

    @property
    def policy(self) -> Policy:
        """Return what is allowed: nothing, where nothing is certified."""
        return OFF if self.chosen is None else self.chosen.policy

    @property
    def worth(self) -> dict[str, float]:
        """Return the chosen policy's worth, with bounds that hold for every policy at once."""
        return {} if self.chosen is None else self.chosen.worth(self.terms)

    @property
    def best(self) -> PolicyTrial:
        """The policy with the largest gain, certified or not: what keeping the promise costs."""
        return max(self.trials, key=lambda trial: trial.order)


@dataclass(frozen=True)
class Beside:
    """Controls that never read the question, in the same test (method, section 15).

    Attributes:
        worth: F - c K of what is certified of each control, by name; 0 where nothing is.
        flips: Share of draws of as many random overrides that are worth at least as much as what
            is certified; nan where nothing is.
    """

    worth: Mapping[str, float]
    flips: float

    def rivals(self, gain: float) -> list[str]:
        """Return who would certify at least as much as a gain, in words."""
        equal = [name for name, worth in self.worth.items() if worth >= gain]
        often = self.flips > LUCK
        return [*equal, *([f"random flips in {self.flips:.0%} of draws"] if often else [])]


def certify(items: Labelled, scalar: ScalarOperator, terms: Terms, failed: int = 0) -> Finding:
    """Test the family of corrections on labelled items, and choose.

    Args:
        items: Labelled items, of one model, as every method answers them.
        scalar: The model's operator in the scalar regime.
        terms: What is to be promised.
        failed: Items beside them that were not answered: each counts as broken.

    Raises:
        InputError: Fewer groups than any policy could pass with.
    """
    if items.group_count < terms.least:
        alone = items.group_count == len(items)
        many = f"{len(items)} labelled items" + ("" if alone else f" in {items.group_count} groups")
        what, more = "a gain", ""
        if terms.promise == "breaks":
            what, more = f"a broken rate of {terms.alpha:g}", ", or ask for a larger alpha"
        raise InputError(
            f"{many} cannot certify {what} at {1 - terms.level:g}: at least {terms.least} are "
            f"needed, without a single break; label more{more}"
        )
    finding = judge(claims(items, scalar, terms, failed), terms)
    if terms.error is None:
        return finding
    deferral = defer(items, finding.policy, terms.error, terms.level, terms.policies)
    return Finding(**vars(finding) | {"deferral": deferral})


def claims(
    items: Labelled,
    scalar: ScalarOperator,
    terms: Terms,
    failed: int = 0,
    probes: Mapping[str, tuple[Which, Which, Groups]] = MappingProxyType({}),
    gains: Mapping[str, np.ndarray | None] = MappingProxyType({}),
) -> list[Claim]:
    """Return the claims of the family of ways to answer on labelled items.

    The first four are those of `certify`; `probes` has of each probe, on the items that it was not
    made of, where the model's answer is right, where its own is, and the items' groups. `gains`
    has what each gains on these items on the objective of the terms.
    """
    lost = np.ones(failed, dtype=bool)

    def with_lost(gained: np.ndarray | None) -> np.ndarray | None:
        if gained is None or terms.objective is None:
            return None
        return np.concatenate([gained, np.full(failed, -terms.objective.loss)])

    def claim(policy: Policy, share: float) -> Claim:
        if policy.method in probes:
            base, shown, groups = probes[policy.method]
            stands = base != shown
        else:
            base, shown, groups = items.mc1_base > 0, items.right(policy), items.groups
            stands = items.stands(policy)
        alone = items.groups.max(initial=-1) + 1 + np.arange(failed)
        return Claim(
            policy,
            share,
            np.concatenate([base, lost]),
            np.concatenate([shown, ~lost]),
            np.concatenate([groups, alone]),
            np.concatenate([stands, lost]),
            with_lost(gains.get(policy.method)),
        )

    return [claim(*policy) for policy in family(scalar, terms.methods, terms.promise).items()]


def judge(claims: Sequence[Claim], terms: Terms) -> Finding:
    """Test every claim at its share of delta, and choose the best of what passes.

    Chosen is the largest net gain an item above 0, then the fewest breaks, then the larger margin.
    """
    assert sum(claim.share for claim in claims) < 1 + 1e-9
    trials = tuple(_tried(claim, terms) for claim in claims)
    best = best_of(trials)
    most = max(trials, key=lambda trial: trial.evidence.items).evidence
    return Finding(
        terms=terms,
        items=most.items,
        groups=most.groups,
        base_right=most.base_right,
        trials=trials,
        chosen=best,
        needed=None if best else needed(trials, terms),
    )


def best_of(trials: Sequence[PolicyTrial]) -> PolicyTrial | None:
    """Return the certified trial that gains most; None where nothing that gains is certified."""
    passing = [trial for trial in trials if trial.certified and trial.gain > 0]
    return max(passing, key=lambda trial: trial.order, default=None)


def gain_over(trial: PolicyTrial, baselines: Sequence[GroupEvidence], terms: Terms) -> float | None:
    """Return the lower bound of a certified policy's gain over the best of some baselines.

    The policy is tested against the model first. Only if that succeeds, it is tested against the
    baselines, at the same level. So the probability that any gain is claimed and is none stays at
    most delta (fixed-sequence testing). It has to beat every baseline (intersection-union), so that
    the smallest bound holds for the best of them, which nobody has to name beforehand. The bound
    over the model and this one each hold with that probability by themselves.

    Args:
        trial: The certified policy.
        baselines: The evidence of the policy against each, on labels that made neither of them.
        terms: The promise; that of few breaks is about the model's answers alone.

    Returns:
        None if there are no baselines, or the gain over one of them is not proven.
    """
    if not baselines:
        return None
    terms = replace(terms, promise="gain", gain=True, right=None)
    trials = [PolicyTrial.of(trial.policy, one, trial.share, terms) for one in baselines]
    if not all(one.certified and one.gain > 0 for one in trials):
        return None
    return min(one.worth(terms)["net_at_least"] for one in trials)


def _tried(claim: Claim, terms: Terms) -> PolicyTrial:
    rows = claim.base, claim.shown, claim.groups
    evidence = GroupEvidence.of(*rows, terms.break_costs, claim.changed, claim.gains)
    return PolicyTrial.of(claim.policy, evidence, claim.share, terms)


def needed(trials: Sequence[PolicyTrial], terms: Terms, items: int | None = None) -> int | None:
    """Return about how many items it takes if the rates stay; None where no number would do.

    By the sign test, which takes somewhat more than the unconditional one.

    Args:
        trials: The policies, of which one has to pass.
        terms: The promise.
        items: The number of items now; by default those of the trial that has most.
    """
    terms = replace(terms, test=None)
    items = items or max(trial.evidence.items for trial in trials)
    sizes = np.unique(np.geomspace(items, _LARGEST, _SIZES).astype(int))[1:]
    enough = np.zeros(len(sizes), dtype=bool)
    for trial in trials:
        level = terms.level * trial.share
        if terms.objective is not None:
            gains = trial.evidence.objective_gains
            assert gains is not None
            enough |= (trial.gain > 0) & (terms.objective.p(gains, sizes / items) <= level)
            continue
        more = trial.evidence.grown(sizes / items)
        rises = more.fixed > terms.break_costs * more.broken
        enough |= rises & (more.p(terms) <= level)
    return int(sizes[enough.argmax()]) if enough.any() else None
