"""The identity of a model or an encoder, as certificates and probes store it."""

from lastword.decide.tracer import Tracer
from lastword.model.encoder import Encoder
from lastword.rule.theta import Theta
from lastword.trust.subject import Subject


def subject_of(source: Tracer | Encoder) -> Subject:
    """Return the identity of a model or an encoder, as certificates and probes store it."""
    described = source.describe()
    if isinstance(source, Encoder):
        return Subject.of(described | {"theta": Theta().to_dict()})
    return Subject.of(described | {"weights": source.digests})
