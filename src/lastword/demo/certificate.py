"""What a certificate of the demo's own answers lets through."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from lastword.demo.outcome import Outcome
from lastword.trust.certify import Finding, Terms, certify
from lastword.trust.labelled import Labelled
from lastword.trust.policy import scalar_operator

if TYPE_CHECKING:
    from lastword.tracer import Tracer


def certificate(tracer: "Tracer", outcomes: Sequence[Outcome], terms: Terms) -> Finding:
    """What `lastword certify` finds of these answers.

    Args:
        tracer: The model that gave them.
        outcomes: Its answers, judged.
        terms: What is to be promised.
    """
    decisions = [o.decision for o in outcomes]
    labelled = Labelled(
        mc1_base=np.array([o.mc1_base for o in outcomes]),
        mc1=np.array([o.mc1 for o in outcomes]),
        overrides=np.array([not o.stays for o in outcomes]),
        operators=np.array([d.operator for d in decisions]),
        margins=np.array([o.margin for o in outcomes]),
        base_confidence=np.array([softmax(d.base_scores).max() for d in decisions]),
        confidence=np.array([softmax(d.scores).max() for d in decisions]),
        groups=np.unique([_group(o) for o in outcomes], return_inverse=True)[1],
    )
    return certify(labelled, scalar_operator(tracer.invariant, tracer.theta.tau_I), terms)


def _group(outcome: Outcome) -> str:
    """What an item shares with the other one of its pair; its own name where it has none."""
    name = str(outcome.item.id)
    return name[:-2] if name.startswith("pair/") else name


def withheld_by(finding: Finding, outcome: Outcome) -> str | None:
    """The rule of the certificate that an answer fails; None where it stands."""
    if outcome.stays:
        return None
    return finding.policy.withholds(outcome.decision.operator, outcome.margin)
