"""A finding told to people: five lines, the same in the terminal and on the page."""

from collections.abc import Sequence

from lastword.trust.certify import Finding, Trial
from lastword.trust.deferral import Deferral
from lastword.trust.policy import MARGINS, Policy

ASSUMPTION = (
    "items that come are independent draws of what the labelled items were drawn from; of other "
    "items nothing is said"
)


def summary(finding: Finding, model: str, benchmarks: Sequence[str], failed: int) -> list[str]:
    """What was tried, what is let through, what is promised, under what, and what it costs.

    Args:
        finding: What the labelled items certify.
        model: The model's name.
        benchmarks: Where the items are from.
        failed: Items that were not answered and count nowhere.
    """
    chosen = finding.chosen
    return [
        f"tried: {_tried(finding)}, on {_many(finding.items, 'labelled item')} of "
        f"{' and '.join(benchmarks)} by {model}" + (f" ({failed} failed)" if failed else ""),
        f"let through: {_let_through(finding)}",
        f"promised: {_promised(finding)}" if chosen else f"why: {_why_not(finding)}",
        f"provided that {ASSUMPTION}",
        f"cost: {_cost(finding)}",
    ]


def in_words(policy: Policy) -> str:
    """`overrides by decisive and early with a margin of at least 0.5 nats`."""
    if not policy.operators:
        return "no override"
    names = " and ".join(policy.operators)
    margin = f" with a margin of at least {policy.margin:g} nats" if policy.margin else ""
    return f"overrides by {names}{margin}"


def _tried(finding: Finding) -> str:
    names = dict.fromkeys(n for trial in finding.trials for n in trial.policy.operators)
    return (
        f"{len(finding.trials)} policies, {' or '.join(names)} or both at margins from "
        f"{min(MARGINS):g} to {max(MARGINS):g} nats"
    )


def _let_through(finding: Finding) -> str:
    if finding.chosen is None:
        return "nothing: keep correction off"
    every = max(trial.overrides for trial in finding.trials)
    return f"{in_words(finding.policy)}, {finding.chosen.overrides} of {every}"


def _promised(finding: Finding) -> str:
    assert finding.chosen is not None
    terms = finding.terms
    gain = " and more fixed than broken" if terms.gain else ""
    return (
        f"at most {_percent(terms.alpha)} of all answers broken{gain}, with "
        f"{_percent(1 - terms.delta)} confidence (counted: {_counted(finding.chosen, finding)})"
        + _deferral(finding)
    )


def _why_not(finding: Finding) -> str:
    best = finding.best
    if best.gain <= 0:
        return f"no policy fixed more than it broke{_deferral(finding)}"
    most = f"cannot promise at most {_percent(finding.terms.alpha)} broken"
    if finding.terms.gain:
        most += " and a gain"
    return (
        f"{finding.items} items {most} of any policy that gains ({in_words(best.policy)}: "
        f"{_counted(best, finding)}); {_reach(finding)}{_deferral(finding)}"
    )


def _reach(finding: Finding) -> str:
    """Whether more items would help, if the rates stay."""
    if finding.needed is not None:
        more = finding.needed - finding.items
        return f"about {finding.needed} would do if the rates stay, {more} more than there are"
    if finding.best.broken > finding.terms.alpha * finding.items:
        return "no number of items would do if the rates stay"
    return (
        "no number of items would do if the rates stay, for --gain wants a gain at every smaller "
        "margin too"
    )


def _cost(finding: Finding) -> str:
    """What the promise leaves undone, beside letting everything through that gains most."""
    best, chosen = finding.best, finding.chosen
    if best.gain <= 0:
        return "nothing, there was no gain to lose"
    kept, broken = (0, 0) if chosen is None else (chosen.fixed, chosen.broken)
    if kept == best.fixed:
        return f"none of {_many(best.fixed, 'repair')} is given up"
    return (
        f"{best.fixed - kept} of {_many(best.fixed, 'repair')} given up, and "
        f"{best.broken - broken} of {_many(best.broken, 'break')} spared, of those that "
        f"{in_words(best.policy)} would make"
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


def _counted(trial: Trial, finding: Finding) -> str:
    return f"{trial.broken} of {finding.items} broken, {trial.fixed} fixed"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
