"""The identity of models and encoders, and the encoders that probes name."""

from collections.abc import Sequence
from pathlib import Path

from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.model.encoder import Encoder, installed
from lastword.model.named import published
from lastword.probes.probe import Probe
from lastword.rule.theta import Theta
from lastword.trust.subject import Subject


def subject_of(source: Tracer | Encoder) -> Subject:
    """Return the identity of a model or an encoder, as certificates and probes store it."""
    described = source.describe()
    if isinstance(source, Encoder):
        return Subject.of(described | {"theta": Theta().to_dict()})
    return Subject.of(described | {"weights": source.digests})


def encoders_of(
    probes: Sequence[Probe], given: Sequence[Encoder | str | Path]
) -> dict[str, Encoder]:
    """Return the encoders that probes read, by name.

    A probe's file is untrusted input: it can only cause the loading of encoders in lastword's list.
    """
    encoders = [one if isinstance(one, Encoder) else Encoder(one) for one in given]
    by_name = {subject_of(encoder).model: encoder for encoder in encoders}
    for probe in probes:
        if probe.encoder is None:
            continue
        if (name := probe.encoder.model) not in by_name:
            if not installed(name):
                model = published(name)
                how = "name it among the encoders" if model is None else model.advice
                raise InputError(
                    f"the probe reads the encoder {name!r}, which was not found: {how}"
                )
            by_name[name] = Encoder(name)
        probe.check_encoder(subject_of(by_name[name]))
    return by_name
