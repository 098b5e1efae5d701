"""The certificate of the demo's own answers, and what it allows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from lastword.demo.outcome import Outcome
from lastword.trust.certify import Finding, certify
from lastword.trust.groups import marks, numbers
from lastword.trust.labelled import Labelled
from lastword.trust.policy import scalar_operator
from lastword.trust.terms import Terms

if TYPE_CHECKING:
    from lastword.tracer import Tracer

# The smallest whole percent at which the organism's 450 questions let any override through.
TERMS = Terms(alpha=0.035)


def certificate(tracer: "Tracer", outcomes: Sequence[Outcome], terms: Terms) -> Finding:
    """The findings of `lastword certify` about these answers.

    Args:
        tracer: The model that gave them.
        outcomes: Its answers, judged.
        terms: What is to be promised.
    """
    decisions, items = [o.decision for o in outcomes], [o.item for o in outcomes]
    labelled = Labelled(
        mc1_base=np.array([o.mc1_base for o in outcomes]),
        mc1=np.array([o.mc1 for o in outcomes]),
        overrides=np.array([not o.stays for o in outcomes]),
        operators=np.array([d.operator for d in decisions]),
        margins=np.array([o.margin for o in outcomes]),
        base_confidence=np.array([softmax(d.base_scores).max() for d in decisions]),
        confidence=np.array([softmax(d.scores).max() for d in decisions]),
        groups=numbers([list(marks(i.id, i.prompt, i.candidates, i.group)) for i in items]),
    )
    return certify(labelled, scalar_operator(tracer.invariant, tracer.theta.tau_I), terms)


def withheld_by(finding: Finding, outcome: Outcome) -> str | None:
    """The rule of the certificate that an answer fails; None where it stands."""
    if outcome.stays:
        return None
    return finding.policy.withholds(outcome.decision.operator, outcome.margin)
