"""A finding told to people: a few lines, the same in the terminal and on the page."""

import math
from collections.abc import Sequence

from lastword.trust.certify import Beside, Finding, PolicyTrial
from lastword.trust.deferral import Deferral
from lastword.trust.policy import GATED, TRACE, Policy
from lastword.trust.slices import Slice
from lastword.trust.terms import Terms

ASSUMPTION = (
    "new items are drawn independently, group by group, from the same source as the labelled "
    "ones; it says nothing about other items"
)


def summary(
    finding: Finding,
    model: str,
    benchmarks: Sequence[str],
    failed: int,
    controls: Beside | None = None,
) -> list[str]:
    """Say what was tried, what is allowed, what is promised, under what, and what it costs."""
    trial = finding.chosen
    rivals = controls.rivals(trial.gain) if trial and controls else []
    groups = "" if finding.groups == finding.items else f" in {finding.groups} groups"
    alike = f"{' and '.join(rivals)} would certify as much without reading the question"
    return [
        *([f"warning: {alike}"] if rivals else []),
        f"tried: {_tried(finding)}, on {_many(finding.items, 'labelled item')}{groups} "
        f"of {' and '.join(benchmarks)} by {model}" + (f" ({failed} failed)" if failed else ""),
        f"allowed: {_let_through(finding)}",
        f"promised: {_promised(finding)}" if trial else f"why: {_why_not(finding)}",
        f"provided that {ASSUMPTION}",
        *([f"worth: {_worth(finding)}"] if trial else []),
        f"cost: {_cost(finding)}",
        *([f"controls: {_beside(controls)}"] if controls else []),
    ]


def sliced(parts: Sequence[Slice], by: str, terms: Terms) -> str:
    """Say which slices keep the promise by themselves, and which break too much."""
    if not parts:
        return f"by {by}: nothing is allowed anywhere"
    breaks = terms.promise == "breaks"
    at_most = f"at most {_percent(terms.alpha)} broken" if breaks else "a gain"
    holds = [part.name for part in parts if part.holds]
    exceeds = [f"{p.name} ({p.broken} of {p.items})" for p in parts if p.exceeds]
    alone = f"{at_most} is shown of {', '.join(holds) or 'none'} alone"
    worse = "more than that" if breaks else "more broken than fixed"
    warning = f"; warning: {worse} in {', '.join(exceeds)}" if exceeds else ""
    return f"by {by}, {_many(len(parts), 'slice')}: {alone}{warning}"


def _beside(controls: Beside) -> str:
    sentences = [
        f"{name} {f'{worth:+g} answers' if worth else 'nothing'}"
        for name, worth in controls.worth.items()
    ]
    flips = controls.flips
    if not math.isnan(flips):
        sentences.append(f"random flips are worth as much in {_percent(flips)} of draws")
    return f"answers that do not read the question would certify: {', '.join(sentences)}"


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
        return "nothing: keep correction off"
    method = finding.policy.method
    every = max(t.evidence.overrides for t in finding.trials if t.policy.method == method)
    return f"{in_words(finding.policy)}, {finding.chosen.evidence.overrides} of {every}"


def _promised(finding: Finding) -> str:
    assert finding.chosen is not None
    terms = finding.terms
    parts = [_gain(terms)] if terms.gain else []
    if terms.promise == "breaks":
        parts.insert(0, f"at most {_percent(terms.alpha)} of all answers broken")
    if terms.right is not None:
        parts.insert(-1, f"at most {_percent(terms.right)} of the right ones broken")
    return (
        f"{' and '.join(parts)}, with {_percent(1 - terms.delta)} confidence "
        f"(counted: {_counted(finding.chosen)}){_deferral(finding)}"
    )


def _gain(terms: Terms) -> str:
    if terms.break_costs == 1:
        return "more fixed than broken"
    return f"more fixed than {terms.break_costs:g} times what is broken"


def _worth(finding: Finding) -> str:
    assert finding.chosen is not None
    worth, evidence = finding.worth, finding.chosen.evidence
    repair = (
        f"of {_many(evidence.overrides, 'override')} {evidence.fixed} make a wrong answer right"
    )
    wrong = f"{evidence.sideways} another wrong one"
    at_least = worth["net_at_least"]
    least = f"{_points(at_least)} at least" if at_least else "more than none at least"
    return (
        f"{_points(worth['net'])} repairs in 100 answers where a break costs "
        f"{finding.terms.break_costs:g}, {least}; "
        f"{evidence.broken} of {_many(finding.base_right, 'right answer')} broken, "
        f"{_percent(worth['right_broken_at_most'])} at most; {repair}, {wrong}"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.2g}"


def _why_not(finding: Finding) -> str:
    best = finding.best
    if best.gain <= 0:
        return f"no policy fixed more than it broke{_deferral(finding)}"
    terms = finding.terms
    parts = [f"at most {_percent(terms.alpha)} broken"] if terms.promise == "breaks" else []
    parts += [_gain(terms)] if terms.gain else []
    return (
        f"{finding.items} items cannot promise {' and '.join(parts)} of any policy that gains "
        f"({in_words(best.policy)}: {_counted(best)}); {_reach(finding)}{_deferral(finding)}"
    )


def _reach(finding: Finding) -> str:
    """Say whether more items would help, if the rates stay."""
    if finding.needed is None:
        return "no number of items would do if the rates stay"
    terms, more = finding.terms, finding.needed - finding.items
    looks = "no look is left: a new certificate takes other labels, or --looks from the first on"
    if rest := terms.looks - terms.look:
        looks = f"{_many(rest, 'look')} of {terms.looks} left"
    needed = f"about {finding.needed} would do if the rates stay, {more} more than there are"
    return f"{needed}; {looks}"


def _cost(finding: Finding) -> str:
    """Say what the promise leaves undone, beside letting everything through that gains most."""
    if finding.best.gain <= 0:
        return "nothing, there was no gain to lose"
    best, chosen = finding.best.evidence, finding.chosen and finding.chosen.evidence
    fixed, broken = (chosen.fixed, chosen.broken) if chosen else (0, 0)
    if fixed == best.fixed:
        return f"none of {_many(best.fixed, 'repair')} is given up"
    return (
        f"{best.fixed - fixed} of {_many(best.fixed, 'repair')} given up, and "
        f"{best.broken - broken} of {_many(best.broken, 'break')} spared, of those that "
        f"{in_words(finding.best.policy)} would make"
    )


def _deferral(finding: Finding) -> str:
    d: Deferral | None = finding.deferral
    if d is None:
        return ""
    if d.threshold is None:
        return f"; no threshold keeps the errors among answers given at {_percent(d.error)}"
    share = _percent(d.answered / finding.items)
    return (
        f"; answers at a probability from {d.threshold:g} on are wrong in at most "
        f"{_percent(d.error)}, with the same confidence by itself ({share} are answered)"
    )


def _counted(trial: PolicyTrial) -> str:
    evidence = trial.evidence
    return f"{evidence.broken} of {evidence.items} broken, {evidence.fixed} fixed"


def _many(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or f'{noun}s'}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
