"""Claims: tests of ways to answer on labelled items, and the choice of the best that passes.

A claim is a way to answer other than the model's: a correction at a margin, or a fitted probe. Its
share of delta is fixed before a label is seen. The claim is certified if the p-value of its promise
is at most this share of delta. The shares add up to 1, so all certified claims hold together with
probability 1 - delta, however they depend on each other (Bonferroni). The same labels may therefore
choose the best claim. The printed bound belongs to the same test at the same level, so it is not
below 0 for a certified claim.

Labels that fitted something must not test it. So each claim has its items: a probe has the half of
the labels that it was not fitted to, and a correction, which is not fitted, has all of them.

Graphical procedures (Bretz 2009), Holm and chains certify no more often with so few policies
(`experiments/results/procedures.json`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lastword.errors import InputError
from lastword.trust.automation import Automation, Rung, climb, quantiles, rungs
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled
from lastword.trust.policy import OFF, PREDICTION, Policy, ScalarOperator, family, is_probe
from lastword.trust.terms import Terms


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
        return {"net": self.evidence.fixed_rate - self.evidence.rate, "net_at_least": bound}


@dataclass(frozen=True, eq=False)
class Finding:
    """Results of all tests on labelled items.

    Attributes:
        chosen: The allowed policy; None to keep correction off.
        automation: The test of the errors among given answers, if the terms have an error.
        curve: The errors of the answers at or above each confidence, the highest first.
        controls: F - K of the certified policy of each control (docs/statistics.md), or 0.
    """

    terms: Terms
    trials: tuple[Trial, ...]
    chosen: Trial | None
    automation: Automation | None = None
    curve: tuple[Rung, ...] = ()
    controls: Mapping[str, float] = field(default_factory=dict)

    @property
    def most(self) -> Evidence:
        """The evidence of the trial with most items."""
        return max((trial.evidence for trial in self.trials), key=lambda one: one.items)

    @property
    def rivals(self) -> tuple[str, ...]:
        """The controls that would be certified for as much; none without a policy."""
        least = math.inf if self.chosen is None else self.chosen.gain
        return tuple(name for name, gain in self.controls.items() if gain >= least)

    @property
    def policy(self) -> Policy:
        """The allowed policy; it allows nothing if nothing is certified."""
        return OFF if self.chosen is None else self.chosen.policy

    @property
    def worth(self) -> dict[str, float]:
        """The chosen policy's gain per answer, with bounds that hold for all policies at once."""
        return {} if self.chosen is None else self.chosen.worth(self.terms)


def certify(items: Labelled, scalar: ScalarOperator, terms: Terms) -> Finding:
    """Test all corrections on labelled items of one model, and choose one.

    Raises:
        InputError: There are fewer groups than any policy needs.
    """
    if items.group_count < terms.least:
        raise InputError(
            f"{len(items)} labelled items in {items.group_count} groups cannot certify the promise "
            f"of {terms.promise}: at least {terms.least} groups are needed, without a single "
            "break; label more, or promise less"
        )
    finding = judge(trials(items, scalar, terms), terms)
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
    items: Labelled, scalar: ScalarOperator, terms: Terms, probe: Evidence | None = None
) -> list[Trial]:
    """Return the trials of all methods of the terms; `probe` is the evidence on a fitted probe."""
    return [
        Trial(p, share, probe if probe and is_probe(p.method) else items.evidence(p))
        for p, share in family(scalar, terms.methods, terms.promise).items()
    ]


def judge(trials: Sequence[Trial], terms: Terms) -> Finding:
    """Test each policy at its share of delta, and choose the best one that passes.

    The best has the largest net gain per item above 0, then the fewest breaks, then the larger
    margin.
    """
    assert sum(trial.share for trial in trials) < 1 + 1e-9
    return Finding(terms, tuple(trials), best_of(trials, terms))


def best_of(trials: Sequence[Trial], terms: Terms) -> Trial | None:
    """Return the certified trial that gains most; None if no trial with a gain is certified."""
    passing = [trial for trial in trials if trial.gain > 0 and trial.passes(terms)]
    return max(passing, key=lambda trial: trial.order, default=None)
