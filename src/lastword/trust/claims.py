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
    trials = [
        Trial(policy, share, Evidence.of(base[test], probe[test], groups[test]))
        if is_probe(policy.method)  # the half that tests
        else Trial(policy, share, Evidence.of(base, right[policy.method], groups))
        for policy, share in shares.items()
    ]
    finding = judge(trials, terms)
    finding.policy, finding.worth["net_at_least"]

Graphical procedures (Bretz 2009), Holm and chains certify no more often with so few policies
(`experiments/results/procedures.json`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lastword.errors import InputError
from lastword.trust.automation import Automation, Rung, climb, quantiles, rungs
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled
from lastword.trust.policy import OFF, PREDICTION, Policy, ScalarOperator, family, is_probe
from lastword.trust.terms import Terms

# Sizes at which `needed` tests a policy again; it is out of reach if it fails at all of them.
_LARGEST = 10_000_000
_SIZES = 600

LUCK = 0.05  # share of draws above which random flips count as a rival


@dataclass(frozen=True)
class Trial:
    """The test of one policy at its share of delta."""

    policy: Policy
    share: float
    evidence: Evidence

    @property
    def _unconditional(self) -> bool:
        # Corrections have the sign test.
        return is_probe(self.policy.method) or self.policy.method == PREDICTION

    def p(self, terms: Terms) -> float:
        """Return the largest p-value of all parts of the promise (intersection-union)."""
        p = self.evidence.gains(unconditional=self._unconditional)
        return max(p, self.evidence.breaks(terms.alpha)) if terms.promise == "breaks" else p

    def passes(self, terms: Terms) -> bool:
        """Return True if the promise is proven for the policy."""
        return self.p(terms) <= terms.delta * self.share

    @property
    def gain(self) -> int:
        """The number of answers fixed minus those broken."""
        return self.evidence.fixed - self.evidence.broken

    @property
    def order(self) -> tuple[float, float, float]:
        """The sort key: net gain per item, then few broken answers, then a large margin."""
        items = self.evidence.items
        return self.gain / items, -self.evidence.broken / items, self.policy.margin

    def worth(self, terms: Terms) -> dict[str, float]:
        """Return the net gain per answer, with its bound at the policy's share of delta."""
        level = terms.delta * self.share
        bound = self.evidence.gain_bound(level, unconditional=self._unconditional)
        return {"net": self.evidence.net, "net_at_least": bound}


@dataclass(frozen=True, eq=False)
class Finding:
    """Results of all tests on labelled items.

    Attributes:
        chosen: The allowed policy; None to keep correction off.
        needed: Number of items with which a policy would pass if the rates stay the same; None if
            one passes, or if no number would be enough.
        automation: The test of the errors among given answers; None unless the terms have an
            error.
        curve: The errors of the answers at or above each confidence, the highest first.
    """

    terms: Terms
    items: int
    groups: int
    base_right: int
    trials: tuple[Trial, ...]
    chosen: Trial | None
    needed: int | None
    automation: Automation | None = None
    curve: tuple[Rung, ...] = ()

    @property
    def policy(self) -> Policy:
        """The allowed policy; it allows nothing if nothing is certified."""
        return OFF if self.chosen is None else self.chosen.policy

    @property
    def worth(self) -> dict[str, float]:
        """The chosen policy's gain per answer, with bounds that hold for all policies at once."""
        return {} if self.chosen is None else self.chosen.worth(self.terms)

    @property
    def best(self) -> Trial:
        """The policy with the largest gain, certified or not."""
        return max(self.trials, key=lambda trial: trial.order)


@dataclass(frozen=True)
class ControlResults:
    """Results of controls that never read the question, in the same test (method, section 15).

    Attributes:
        worth: F - K of the certified policy of each control, by name; 0 if none is certified.
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
        failed: Number of further items without an answer, which count as broken.

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
            f"{many} cannot certify {what} at {1 - terms.delta:g}: at least {terms.least} are "
            f"needed, without a single break; label more{more}"
        )
    finding = judge(trials(items, scalar, terms, failed), terms)
    confidence, right = items.shown(finding.policy)
    curve = rungs(confidence, ~right, items.groups, quantiles(confidence))
    finding = replace(finding, curve=tuple(curve))
    if terms.error is None:
        return finding
    # The same labels chose the policy, so its errors on them are too low by chance. So each policy
    # that could have been chosen has its share of delta, and so has the choice of none.
    untested = Automation(terms.error, (), terms.policies + 1)
    tested = climb(curve, terms.error, untested.level(terms.delta))
    return replace(finding, automation=replace(untested, rungs=tested))


def trials(
    items: Labelled,
    scalar: ScalarOperator,
    terms: Terms,
    failed: int = 0,
    probe: Trial | None = None,
) -> list[Trial]:
    """Return the trials of all methods of the terms; `probe` is that of a fitted probe."""
    made = []
    for policy, share in family(scalar, terms.methods, terms.promise).items():
        fitted = probe is not None and policy == probe.policy
        evidence = probe.evidence if probe is not None and fitted else items.evidence(policy)
        made.append(Trial(policy, share, evidence.with_failed(failed)))
    return made


def judge(trials: Sequence[Trial], terms: Terms) -> Finding:
    """Test each policy at its share of delta, and choose the best one that passes.

    The best has the largest net gain per item above 0, then the fewest breaks, then the larger
    margin.
    """
    assert sum(trial.share for trial in trials) < 1 + 1e-9
    best = best_of(trials, terms)
    most = max(trials, key=lambda trial: trial.evidence.items).evidence
    return Finding(
        terms=terms,
        items=most.items,
        groups=most.groups,
        base_right=most.base_right,
        trials=tuple(trials),
        chosen=best,
        needed=None if best else needed(trials, terms),
    )


def best_of(trials: Sequence[Trial], terms: Terms) -> Trial | None:
    """Return the certified trial that gains most; None if no trial with a gain is certified."""
    passing = [trial for trial in trials if trial.gain > 0 and trial.passes(terms)]
    return max(passing, key=lambda trial: trial.order, default=None)


def gain_over(trial: Trial, baselines: Sequence[Evidence], terms: Terms) -> float | None:
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
    terms = replace(terms, promise="gain")
    trials = [replace(trial, evidence=evidence) for evidence in baselines]
    if not trials or not all(one.gain > 0 and one.passes(terms) for one in trials):
        return None
    return min(one.worth(terms)["net_at_least"] for one in trials)


def needed(trials: Sequence[Trial], terms: Terms, items: int | None = None) -> int | None:
    """Estimate the number of items with which one policy passes if the rates stay the same.

    The estimate uses the sign test, which needs slightly more items than the unconditional one.

    `items` is their present number, by default that of the trial with most. None: no number would
    be enough.
    """
    items = items or max(trial.evidence.items for trial in trials)
    # Each size is about 1 to 2% above the one before.
    sizes = np.unique(np.geomspace(items, _LARGEST, _SIZES).astype(int))[1:]
    alpha = terms.alpha if terms.promise == "breaks" else None
    enough = np.zeros(len(sizes), dtype=bool)
    for trial in trials:
        if trial.gain > 0:
            enough |= trial.evidence.p_grown(sizes / items, alpha) <= terms.delta * trial.share
    return int(sizes[enough.argmax()]) if enough.any() else None
