"""Where a served model stands, in words: what it is, what is certified, whether that holds."""

from typing import Any

from lastword.service.correction import Corrector
from lastword.service.oversight import Oversight
from lastword.trust.certificate import Certificate


def standing(name: str, corrector: Corrector) -> dict[str, Any]:
    """A model as the explorer tells of it, as plain JSON values.

    Args:
        name: What the page calls it.
        corrector: Its answers.
    """
    tracer, profile = corrector.tracer, corrector.tracer.profile
    certificate, oversight = tracer.certificate, corrector.oversight
    high = tracer.invariant > tracer.theta.tau_I
    facts = {
        "model": str(tracer.source["model"]),
        "family": profile.model_type,
        "blocks": str(profile.depth),
        "I(M)": f"{tracer.invariant:.4g}, {'above' if high else 'at most'} {tracer.theta.tau_I:g}",
        "Θ": "outside the paper's range" if tracer.theta.outside_paper else "as frozen",
        "runs in": f"{profile.precision} on {profile.device}",
    }
    return {
        "name": name,
        "facts": [{"name": key, "value": value} for key, value in facts.items()],
        "told": [*_certified(certificate), *_overseen(oversight), *_manner(corrector)],
        "alerts": _alerts(oversight),
    }


def _certified(certificate: Certificate | None) -> list[str]:
    if certificate is None:
        return ["Nothing is certified: every override is shown, with no promise."]
    policy, terms, counts = certificate.policy, certificate.terms, certificate.counts
    names = " and ".join(policy.operators)
    few = f"at most {terms.alpha:.3g} of all answers are broken"
    promised = few if terms.promise == "breaks" else "more answers are fixed than broken"
    through = (
        f"{names} may override, with a margin of at least {policy.margin:g} nats"
        if policy.operators
        else "nothing may override"
    )
    return [
        f"Certified {certificate.date}: {through}.",
        f"Promised: {promised}, but for a chance of {terms.delta:.3g}. Of {counts.items:,} "
        f"labelled items {counts.fixed} were fixed and {counts.broken} broken.",
    ]


def _overseen(oversight: Oversight | None) -> list[str]:
    if oversight is None:
        return []
    labelled, broken = oversight.monitor.labelled, oversight.monitor.broken
    quiet = "" if _alerts(oversight) else " No alarm, and no drift is seen."
    return [
        f"Labels that came back: {labelled:,}, {broken} of them on answers that correction broke."
        f"{quiet}"
    ]


def _alerts(oversight: Oversight | None) -> list[str]:
    if oversight is None:
        return []
    drifted = ", ".join(sorted(oversight.drift.warned))
    alarm, slipping = oversight.monitor.alarm, oversight.monitor.slipping
    return [
        *(["Alarm: more was broken than was promised."] if alarm else []),
        *(["Slipping: of late more seems to be broken than may be."] if slipping else []),
        *([f"What is asked has drifted: {drifted}."] if drifted else []),
    ]


def _manner(corrector: Corrector) -> list[str]:
    if not corrector.shadow:
        return []
    return ["Shadow: the API answers with the model's own choice. This page shows the correction."]
