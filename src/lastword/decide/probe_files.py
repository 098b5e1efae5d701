"""The probes of a decider, and the sentence encoders that they read."""

from collections.abc import Sequence
from pathlib import Path

from lastword.decide.served import probe_name
from lastword.decide.subject import subject_of
from lastword.errors import InputError
from lastword.model.encoder import Encoder, installed
from lastword.model.named import published
from lastword.probes.probe import Probe


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


def read_probes(probes: Sequence[Probe | str | Path]) -> list[tuple[str, Probe]]:
    """Return distinct probes with the names of their files; InputError if two answer alike."""
    by_digest: dict[str, tuple[str, str, Probe]] = {}
    for one in probes:
        probe = one if isinstance(one, Probe) else Probe.read(one)
        name, where = "answer", "the one given"
        if not isinstance(one, Probe):
            name, where = probe_name(one), str(one)
        for other, (_, place, former) in by_digest.items():
            # Of two trajectory probes, either answers the other's question, whatever its options.
            answers = former.answers(probe.question) or probe.answers(former.question)
            if answers and other != probe.digest:
                raise InputError(
                    f"two probes answer the question {probe.question.instructions!r:.80}: {place} "
                    f"and {where}. Give one; `probe` in a questions file selects one"
                )
        by_digest.setdefault(probe.digest, (name, where, probe))
    return [(name, probe) for name, _, probe in by_digest.values()]


def check_unlike(probe: Probe, level: float) -> None:
    """Refuse a level below 1/(n+1), the smallest p-value of a probe with n labels."""
    likeness = None if probe.linear is None else probe.linear.likeness
    if likeness is not None and 0 < level <= likeness.least_p:
        raise InputError(
            f"--novelty {level:g} would never defer an answer of {probe.name}: its "
            f"{len(likeness.distances)} labelled texts allow no p-value below "
            f"{likeness.least_p:.3g}. Use --novelty {likeness.level(level):g}, or label more texts"
        )
