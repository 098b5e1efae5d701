"""A finding in words, for the terminal and the page of the demo."""

import math
from collections.abc import Sequence

from lastword.trust.claims import ControlResults, Finding, Trial
from lastword.trust.policy import GATED, TRACE, Policy
from lastword.trust.slices import Slice
from lastword.trust.terms import Terms

ALLOWED = "Allowed: "
_GAIN = "more are corrected than broken"
ASSUMPTION = (
    "new items are drawn independently, group by group, from the same source as the labelled "
    "ones. Nothing follows for other items"
)


def summary(
    finding: Finding,
    model: str,
    benchmarks: Sequence[str],
    failed: int,
    controls: ControlResults | None = None,
) -> list[str]:
    """Return lines about the tests, the policy, the guarantee, its condition, gain and cost."""
    trial = finding.chosen
    rivals = controls.rivals(trial.gain) if trial and controls else []
    groups = "" if finding.groups == finding.items else f" in {finding.groups} groups"
    alike = f"{' and '.join(rivals)} would be certified for as much without reading the question"
    return [
        *([f"Warning: {alike}."] if rivals else []),
        f"Tested: {_tried(finding)} on {_many(finding.items, 'labelled item')}{groups} of "
        f"{' and '.join(benchmarks)}, answered by {model}"
        + (f" ({failed} failed)." if failed else "."),
        f"{ALLOWED}{_let_through(finding)}.",
        f"Guaranteed {_promised(finding)}" if trial else f"Why: {_why_not(finding)}",
        f"Condition: {ASSUMPTION}.",
        *([f"Gain: {_worth(finding)}."] if trial else []),
        f"Given up: {_cost(finding)}.",
        *([f"Baselines: {_controls(controls)}."] if controls else []),
    ]


def sliced(parts: Sequence[Slice], by: str, terms: Terms) -> str:
    """Return a sentence about the slices that keep the promise alone, or break too much."""
    if not parts:
        return f"By {by}: no override is allowed in any slice."
    breaks = terms.promise == "breaks"
    at_most = f"at most {_percent(terms.alpha)} broken" if breaks else "a gain"
    holds = [part.name for part in parts if part.holds]
    exceeds = [f"{p.name} ({p.broken} of {p.items})" for p in parts if p.exceeds]
    alone = f"{at_most} is shown for {', '.join(holds) or 'no slice'} alone"
    worse = "more than that" if breaks else "more broken than corrected"
    warning = f" Warning: {worse} in {', '.join(exceeds)}." if exceeds else ""
    return f"By {by} ({_many(len(parts), 'slice')}): {alone}.{warning}"


def _controls(controls: ControlResults) -> str:
    sentences = [
        f"{name} for {f'{worth:+g} answers' if worth else 'nothing'}"
        for name, worth in controls.worth.items()
    ]
    flips = controls.flips
    if not math.isnan(flips):
        sentences.append(f"random flips for as much in {_percent(flips)} of draws")
    return f"without reading the question would be certified: {', '.join(sentences)}"


def in_words(policy: Policy) -> str:
    """Return `overrides by decisive and early with a margin of at least 0.5 nats`."""
    if not policy.operators:
        return "no override"
    names = " and ".join(policy.operators)
    if policy.method == GATED:
        names += f" of {GATED}"
    margin = f" with a margin of at least {policy.margin:g} nats" if policy.margin else ""
    return f"overrides by {names}{margin}"


def _tried(finding: Finding) -> str:
    methods, policies = finding.terms.methods, [t.policy for t in finding.trials]
    names = dict.fromkeys(n for p in policies if p.method == TRACE for n in p.operators)
    listed = (f"trace ({' and '.join(names)})" if m == TRACE else m for m in methods)
    return f"{_many(len(policies), 'policy', 'policies')} of {', '.join(listed)}"


def _let_through(finding: Finding) -> str:
    if finding.chosen is None:
        return "nothing. Keep correction off"
    method = finding.policy.method
    every = max(t.evidence.overrides for t in finding.trials if t.policy.method == method)
    return (
        f"{in_words(finding.policy)}: {finding.chosen.evidence.overrides} of the {every} proposed"
    )


def _promised(finding: Finding) -> str:
    assert finding.chosen is not None
    terms = finding.terms
    parts = [_GAIN]
    if terms.promise == "breaks":
        parts.insert(0, f"at most {_percent(terms.alpha)} of all answers are broken")
    return (
        f"with {_percent(1 - terms.delta)} confidence: {' and '.join(parts)} "
        f"(counted: {_counted(finding.chosen)}).{_deferral(finding)}"
    )


def _worth(finding: Finding) -> str:
    assert finding.chosen is not None
    worth, evidence = finding.worth, finding.chosen.evidence
    at_least = worth["net_at_least"]
    least = f"at least {_points(at_least)}" if at_least else "more than 0"
    return (
        f"{_points(worth['net'])} corrected in 100 answers ({least}). Of "
        f"{_many(finding.base_right, 'right answer')} {evidence.broken} are broken, and of "
        f"{_many(evidence.overrides, 'override')} {evidence.fixed} correct a wrong answer"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.2g}"


def _why_not(finding: Finding) -> str:
    best = finding.best
    if best.gain <= 0:
        return f"no policy corrected more than it broke.{_deferral(finding)}"
    terms = finding.terms
    parts = [f"at most {_percent(terms.alpha)} are broken"] if terms.promise == "breaks" else []
    parts.append(_GAIN)
    return (
        f"{finding.items} items do not prove for any policy that {' and '.join(parts)} (the best, "
        f"{in_words(best.policy)}: {_counted(best)}). {_reach(finding)}.{_deferral(finding)}"
    )


def _reach(finding: Finding) -> str:
    """Return a sentence about the items that would be enough if the rates stay the same."""
    if finding.needed is None:
        return "No number of items would be enough if the rates stay the same"
    return (
        f"About {finding.needed} would be enough if the rates stay the same, "
        f"{finding.needed - finding.items} more than there are. Certify with new labels"
    )


def _cost(finding: Finding) -> str:
    """Return the corrections of the best policy that the certificate does not allow."""
    if finding.best.gain <= 0:
        return "nothing, because no policy gains"
    best, chosen = finding.best.evidence, finding.chosen and finding.chosen.evidence
    fixed, broken = (chosen.fixed, chosen.broken) if chosen else (0, 0)
    if fixed == best.fixed:
        return f"none of {_many(best.fixed, 'correction')}"
    return (
        f"{best.fixed - fixed} of {_many(best.fixed, 'correction')}, and "
        f"{best.broken - broken} of {_many(best.broken, 'break')} avoided, compared with "
        f"{in_words(finding.best.policy)}"
    )


def _deferral(finding: Finding) -> str:
    if (automation := finding.automation) is None:
        return ""
    error = _percent(automation.error)
    if (rung := automation.rung(finding.terms.delta)) is None:
        return f" No threshold keeps the errors among the given answers to {error}."
    return (
        f" Answers with a probability of at least {rung.threshold:.3g} are wrong in at most "
        f"{error}, each with that confidence ({_percent(rung.share)} are answered)."
    )


def _counted(trial: Trial) -> str:
    evidence = trial.evidence
    return f"{evidence.broken} of {evidence.items} broken, {evidence.fixed} corrected"


def _many(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or f'{noun}s'}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
