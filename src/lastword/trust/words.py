"""Findings and certificates in words, for the terminal and for pages."""

from collections.abc import Iterator, Sequence

from lastword.files.wording import counted, percent, two_digits
from lastword.trust.automation import Automation, Rung, estimates, labels_to_prove
from lastword.trust.claims import Finding
from lastword.trust.policy import GATED, Policy
from lastword.trust.predictions import PlainFinding
from lastword.trust.terms import Terms

ALLOWED = "Allowed: "
_LIKELY = 0.1  # error at which a proof is forecast if none is asked for


def answered(automation: Automation, delta: float) -> str:
    """Return which share of texts is answered at which error, or that none is proven."""
    error, sure = _limit(automation.error), _confidence(delta)
    if (rung := automation.rung(delta)) is None:
        return (
            f"No threshold is proven to keep the errors among the given answers to {error}: label "
            "more, or allow more errors (--error)."
        )
    return (
        f"Answers {percent(rung.share)} of texts with at most {error} wrong ({sure}): those with a "
        f"confidence of at least {rung.threshold:.4g}. {percent(1 - rung.share)} go to a person."
    )


def _automated(curve: Sequence[Rung], automation: Automation | None, delta: float) -> Iterator[str]:
    if automation is not None:
        yield answered(automation, delta)
    shares = "; ".join(
        f"{percent(e.share)} ({percent(e.low)} to {percent(e.high)}) with {percent(e.error)}"
        for e in estimates(curve)
    )
    if not shares:
        return
    ask = "" if automation else " --error 0.1 asks for a guarantee."
    yield f"Estimated share of texts that can be answered, by errors among them: {shares}.{ask}"
    if automation is not None and automation.rung(delta) is not None:
        return
    error = _LIKELY if automation is None else automation.error
    level = delta if automation is None else automation.level(delta)
    if (labels := labels_to_prove(curve, error, level)) is not None:
        yield (
            f"About {labels} new labels, of answers that it would give, would probably prove half "
            f"of the estimate at {percent(error)}."
        )


def summary(finding: Finding, model: str, benchmark: str, failed: int = 0) -> list[str]:
    """Return lines about the tests, the policy, the guarantee, its condition and the gain."""
    trial, count, most = finding.chosen, len(finding.trials), finding.most
    rivals = finding.rivals
    alike = f"{' and '.join(rivals)} would be certified for as much without reading the question"
    groups = "" if most.exact else f" in {most.groups} groups"
    return [
        *([f"Warning: {alike}."] if rivals else []),
        f"Tested: {count} {'policy' if count == 1 else 'policies'} of "
        f"{', '.join(finding.terms.methods)} on {counted(most.items, 'labelled item')}{groups} "
        f"of {benchmark}, answered by {model}" + (f" ({failed} failed)." if failed else "."),
        f"{ALLOWED}{in_words(finding.policy) if trial else 'nothing. Keep correction off'}.",
        f"Guaranteed with {_confidence(finding.terms.delta)}: "
        f"{_promise(finding.terms, 'of all answers ')}."
        if trial
        else f"Why: {_not_yet(finding)}.",
        *_automated(finding.curve, finding.automation, finding.terms.delta),
        "Condition: new items are drawn independently, group by group, from the same source as the "
        "labelled ones. Nothing follows for other items.",
        *([f"Gain: {_worth(finding)}."] if trial else []),
        *([f"Baselines: {_controls(finding)}."] if finding.controls else []),
    ]


def _not_yet(finding: Finding) -> str:
    best = max(finding.trials, key=lambda trial: trial.order)
    counts = best.evidence
    if best.gain <= 0:
        return "no policy corrected more than it broke"
    return (
        f"{finding.most.items} items do not prove for any policy that {_promise(finding.terms)} "
        f"(the best, {in_words(best.policy)}: {counts.broken} of {counts.items} broken, "
        f"{counts.fixed} corrected)"
    )


def _promise(terms: Terms, of: str = "") -> str:
    gain = "more are corrected than broken"
    if terms.promise == "gain":
        return gain
    return f"at most {_limit(terms.alpha)} {of}are broken and {gain}"


def in_words(policy: Policy) -> str:
    """Return `overrides by decisive and early with a margin of at least 0.5 nats`."""
    if not policy.operators:
        return "no override"
    names = " and ".join(policy.operators)
    if policy.method == GATED:
        names += f" of {GATED}"
    margin = f" with a margin of at least {policy.margin:g} nats" if policy.margin else ""
    return f"overrides by {names}{margin}"


def of_table(finding: PlainFinding) -> list[str]:
    """Return the results of a plain table, the most important sentence first."""
    proven, name = finding.certificate, finding.table.name
    sure, errors = f"with {_confidence(proven.terms.delta)}", finding.errors
    lines = [*_automated(finding.curve, proven.automation, proven.terms.delta)]
    for counts in (trial.evidence for trial in proven.trials):
        rates = (
            f"accuracy {percent(1 - errors.rate)} against "
            f"{percent(counts.base_right / counts.items)}, {counts.fixed} answers corrected and "
            f"{counts.broken} broken"
        )
        beside = f"{name} is not shown to be better than its rival"
        if proven.automation is not None:
            beside = f"{name} beside its rival, without a guarantee"
        elif (gain := proven.worth.get("net_at_least")) is not None:
            least = f"at least {100 * gain:.1f} points"
            beside = f"{name} is better than its rival by {least}, {sure}"
        lines.append(f"{beside}: {rates}.")
    of = f"{percent(1 - errors.rate)} of {counted(errors.items, 'labelled row')}"
    of += "" if errors.exact else f" in {errors.groups} groups"
    if (bound := proven.worth.get("accuracy_at_least")) is not None:
        of = f"at least {percent(bound)}, {sure}: {of}"
    return [
        *lines,
        f"The accuracy of {name} is {of}.",
        "This holds for rows like the labelled ones. It says nothing about the model behind the "
        "predictions, which was not seen.",
    ]


def _controls(finding: Finding) -> str:
    sentences = [
        f"{name} for {f'{worth:+g} answers' if worth else 'nothing'}"
        for name, worth in finding.controls.items()
    ]
    return f"without reading the question would be certified: {', '.join(sentences)}"


def _worth(finding: Finding) -> str:
    assert finding.chosen is not None
    worth, evidence = finding.worth, finding.chosen.evidence
    bound = worth["net_at_least"]
    least = f"at least {two_digits(bound, '+')}" if bound else "more than 0"
    return (
        f"{two_digits(worth['net'], '+')} corrected in 100 answers ({least}). Of "
        f"{counted(finding.most.base_right, 'right answer')} {evidence.broken} are broken, and of "
        f"{counted(evidence.overrides, 'override')} {evidence.fixed} correct a wrong answer"
    )


def _limit(share: float) -> str:
    """Return a share that may be far below 1%; `percent` would round it to 0."""
    return f"{100 * share:.3g}%"


def _confidence(delta: float) -> str:
    """Return `95% confidence`; it is never rounded up to 100%."""
    return f"{100 * (1 - delta):.10g}% confidence"
