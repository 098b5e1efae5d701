"""Claims: tests of ways to answer on labelled items, and the choice of the best that passes.

A claim is a way to answer other than the model's: a correction at a margin, or a fitted probe. Its
share of delta is fixed before a label is seen. The claim is certified if the p-value of its promise
is at most this share of delta. The shares add up to 1, so all certified claims hold together with
probability 1 - delta, however they depend on each other (Bonferroni). The same labels may therefore
choose the best claim. The printed bound belongs to the same test at the same level, so it is not
below 0 for a certified claim.

Labels that fitted something must not test it. So each claim has its items: a probe has the half of
the labels that it was not fitted to, and a correction, which is not fitted, has all of them.

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

Graphical procedures (Bretz 2009), Holm and chains certify no more often with so few policies
(`experiments/results/procedures.json`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lastword.errors import InputError
from lastword.trust.deferral import Deferral, defer
from lastword.trust.evidence import GroupEvidence, Groups, Which
from lastword.trust.labelled import Labelled
from lastword.trust.policy import OFF, Policy, ScalarOperator, family
from lastword.trust.terms import Terms

# Sizes at which `needed` tests a policy again; it is out of reach if it fails at all of them.
_LARGEST = 10_000_000
_SIZES = 600

LUCK = 0.05  # share of draws above which random flips count as a rival


@dataclass(frozen=True, eq=False)
class Claim:
    """A way to answer, on the labels that test it.

    Attributes:
        policy: The overrides that it allows.
        share: Share of delta; those of all claims add up to at most 1.
        base: True where the model's answer is right [items].
        shown: True where the answer under the policy is right [items].
        groups: Number of each item's group [items].
        changed: True where the two answers differ; by default, where one of them alone is right.
        gains: Gains on an objective other than accuracy [items].
    """

    policy: Policy
    share: float
    base: Which
    shown: Which
    groups: Groups
    changed: Which | None = None
    gains: np.ndarray | None = None

    def with_failed(self, failed: int, terms: Terms) -> "Claim":
        """Return the claim with `failed` more items, each a group that it breaks."""
        lost = np.ones(failed, dtype=bool)
        changed, gains = self.changed, self.gains
        if gains is not None and terms.objective is not None:
            gains = np.concatenate([gains, np.full(failed, -terms.objective.loss)])
        return replace(
            self,
            base=np.concatenate([self.base, lost]),
            shown=np.concatenate([self.shown, ~lost]),
            groups=np.concatenate(
                [self.groups, self.groups.max(initial=-1) + 1 + np.arange(failed)]
            ),
            changed=None if changed is None else np.concatenate([changed, lost]),
            gains=gains,
        )

    def evidence(self, terms: Terms) -> GroupEvidence:
        """Return the counts that the tests need."""
        rows = self.base, self.shown, self.groups
        return GroupEvidence.of(*rows, terms.break_costs, self.changed, self.gains)


@dataclass(frozen=True)
class PolicyTrial:
    """The test of one policy.

    Attributes:
        share: Share of delta.
        costs: Cost of a broken answer, in corrected answers.
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
        """The net gain: F - c K in corrected answers, or the sum of gains on the objective."""
        if (gains := self.evidence.objective_gains) is not None:
            return gains.mean * float(self.evidence.items)
        return float(self.evidence.fixed - self.costs * self.evidence.broken)

    @property
    def order(self) -> tuple[float, float, float]:
        """The sort key: net gain per item, then few broken answers, then a large margin."""
        items = self.evidence.items
        return self.gain / items, -self.evidence.broken / items, self.policy.margin

    def worth(self, terms: Terms) -> dict[str, float]:
        """Return the net gain per answer, with bounds at its share of delta."""
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
    """Results of all tests on labelled items.

    Attributes:
        base_right: Number of items that the model answers right.
        chosen: The allowed policy; None to keep correction off.
        needed: Number of items with which a policy would pass if the rates stay the same; None if
            one passes, or if no number would be enough.
        deferral: The answers that are given; None unless the terms have an error.
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
        """The allowed policy; it allows nothing if nothing is certified."""
        return OFF if self.chosen is None else self.chosen.policy

    @property
    def worth(self) -> dict[str, float]:
        """The chosen policy's gain per answer, with bounds that hold for all policies at once."""
        return {} if self.chosen is None else self.chosen.worth(self.terms)

    @property
    def best(self) -> PolicyTrial:
        """The policy with the largest gain, certified or not."""
        return max(self.trials, key=lambda trial: trial.order)


@dataclass(frozen=True)
class ControlResults:
    """Results of controls that never read the question, in the same test (method, section 15).

    Attributes:
        worth: F - c K of the certified policy of each control, by name; 0 if none is certified.
        flips: Share of draws in which as many random overrides gain at least as much as the
            certified policy; nan if none is certified.
    """

    worth: Mapping[str, float]
    flips: float

    def rivals(self, gain: float) -> list[str]:
        """Return the controls that would be certified for at least a gain, in words."""
        equal = [name for name, worth in self.worth.items() if worth >= gain]
        often = self.flips > LUCK
        return [*equal, *([f"random flips in {self.flips:.0%} of draws"] if often else [])]


def certify(items: Labelled, scalar: ScalarOperator, terms: Terms, failed: int = 0) -> Finding:
    """Test all corrections on labelled items, and choose one.

    Args:
        items: Labelled items of one model, as every method answers them.
        scalar: The model's operator in the scalar regime.
        terms: The promise.
        failed: Number of further items that were not answered; each counts as broken.

    Raises:
        InputError: There are fewer groups than any policy needs.
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
    probe: Claim | None = None,
) -> list[Claim]:
    """Return the claims of all methods of the terms, with their shares of delta.

    The first four arguments are those of `certify`. `probe` has the answers of a probe to the items
    that test it.
    """
    family_of_claims = []
    for policy, share in family(scalar, terms.methods, terms.promise).items():
        if probe is not None and policy == probe.policy:
            claim = replace(probe, share=share)
        else:
            rows = items.mc1_base > 0, items.right(policy), items.groups, items.stands(policy)
            claim = Claim(policy, share, *rows)
        family_of_claims.append(claim.with_failed(failed, terms))
    return family_of_claims


def judge(claims: Sequence[Claim], terms: Terms) -> Finding:
    """Test each claim at its share of delta, and choose the best one that passes.

    The best has the largest net gain per item above 0, then the fewest breaks, then the larger
    margin.
    """
    assert sum(claim.share for claim in claims) < 1 + 1e-9
    trials = tuple(
        PolicyTrial.of(claim.policy, claim.evidence(terms), claim.share, terms) for claim in claims
    )
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
    """Return the certified trial that gains most; None if no trial with a gain is certified."""
    passing = [trial for trial in trials if trial.certified and trial.gain > 0]
    return max(passing, key=lambda trial: trial.order, default=None)


def gain_over(trial: PolicyTrial, baselines: Sequence[GroupEvidence], terms: Terms) -> float | None:
    """Return the lower bound of a certified policy's gain over the best of some baselines.

    The policy is tested against the model first, and only if that succeeds against the baselines,
    at the same level. So the probability of a false claim of any gain is at most delta
    (fixed-sequence testing). The policy has to beat every baseline (intersection-union): then the
    smallest bound holds for the best baseline, which need not be named beforehand. This bound and
    the one over the model each hold with probability 1 - delta by themselves.

    Args:
        trial: The certified policy.
        baselines: The evidence of the policy against each, on labels that fitted neither of them.
        terms: The promise; a promise of few breaks applies only to the model's answers.

    Returns:
        The bound; None if there are no baselines, or the gain over one of them is not proven.
    """
    if not baselines:
        return None
    terms = replace(terms, promise="gain", gain=True, right=None)
    trials = [PolicyTrial.of(trial.policy, one, trial.share, terms) for one in baselines]
    if not all(one.certified and one.gain > 0 for one in trials):
        return None
    return min(one.worth(terms)["net_at_least"] for one in trials)


def needed(trials: Sequence[PolicyTrial], terms: Terms, items: int | None = None) -> int | None:
    """Estimate the number of items with which one policy passes if the rates stay the same.

    The estimate uses the sign test, which needs slightly more items than the unconditional one.

    Args:
        trials: The policies.
        terms: The promise.
        items: The present number of items; by default that of the trial with most.

    Returns:
        The number; None if no number would be enough.
    """
    terms = replace(terms, test=None)
    items = items or max(trial.evidence.items for trial in trials)
    # Each size is about 1 to 2% above the one before.
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
