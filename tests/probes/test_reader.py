"""Probes on a sentence encoder's states: alone, combined with the model's, and stacked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from small_encoders import DEPTH, write_encoder
from topics import LABELS, NAME, QUESTION, TEMPLATE, TEXTS, certificate_of, with_facts

from lastword import Decider, Tracer
from lastword.decide.item import item_of
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.errors import CertificateError, InputError
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe
from lastword.probes.state import fit_beside, fit_stacked, fit_state
from lastword.text.question import Choice

WIDE = Choice(QUESTION.instructions, ["animal", "money", "music"])  # music has no label
NEW = ["a horse eats hay", "the price of bread", "a much longer text about bills and horses"]


@pytest.fixture(scope="module")
def tracer() -> Tracer:
    return Tracer.demo()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("readers") / "letters")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder(folder, "cpu")


def encoded(encoder: Encoder, texts: list[str]) -> np.ndarray:
    return encoder.pooled(encoder.encode(texts), range(DEPTH + 1))[:, :, None]


@pytest.fixture(scope="module")
def probes(tracer: Tracer, encoder: Encoder) -> dict[str, Probe]:
    """Return an encoder's probe, a combined one and a stacked one."""
    x, y = read_states(tracer, TEXTS, WIDE, TEMPLATE, ("mean",)), encoded(encoder, TEXTS)
    model = fit_state(x, LABELS, poolings=("mean",))
    alone = fit_state(y, LABELS, encoder="letters")
    rows = x[:, model.probe.blocks[0].layer, 0], y[:, alone.probe.blocks[0].layer, 0]
    both = fit_beside(model, alone, (rows[0].astype(float), rows[1].astype(float)), LABELS)
    names = [option.text for option in WIDE.options]
    base, blind = model_scores(tracer, TEXTS)
    over = fit_stacked(both, LABELS, names, base, blind, [*map(str, range(8))])
    subject, reader = subject_of(tracer), subject_of(encoder)
    return {
        name: Probe(WIDE, NAME, subject, fit, 8, encoder=reader)
        for name, fit in (("alone", alone.probe), ("both", both.probe), ("stacked", over.probe))
    }


def model_scores(tracer: Tracer, texts: list[str]) -> list[np.ndarray]:
    items = [item_of(text, WIDE, TEMPLATE, blind=True) for text in texts]
    read = [*tracer.correct_many(items, read="base", blind="base")]
    return [np.stack([getattr(d, n) for d in read]) for n in ("base_scores", "blind_scores")]


def test_answers_agree_with_the_probe_on_the_states_of_both(
    tracer: Tracer, encoder: Encoder, probes: dict[str, Probe], tmp_path: Path
) -> None:
    x, y = read_states(tracer, NEW, WIDE, TEMPLATE, ("mean",)), encoded(encoder, NEW)
    base, blind = model_scores(tracer, NEW)
    for name, probe in probes.items():
        probe.write(path := tmp_path / f"{name}.probe.safetensors")
        assert Probe.read(path).digest == probe.digest and Probe.read(path).name == probe.name
        decider, fit = Decider(tracer, probes=[path], encoders=[encoder]), probe.linear
        assert fit is not None and fit.encoder == "letters"
        rows = y[:, fit.blocks[-1].layer, 0]
        if len(fit.blocks) == 2:
            rows = np.concatenate([x[:, fit.blocks[0].layer, 0], rows], axis=1)
        a, b, c = fit.stack or (1.0, 0.0, 0.0)
        u = np.full((len(NEW), 3), -np.inf if fit.stack is None else -1.0)
        u[:, :2] = fit.scores(rows.astype(float))  # classes are in the order of the options
        expected = softmax((a * u + b * base + c * blind) / fit.temperature, axis=1)
        together = [one["q"] for one in decider.decide_many(NEW, {"q": WIDE})]
        alone = [decider.decide(text, {"q": WIDE})["q"] for text in NEW]
        for one, other, p, scores in zip(together, alone, expected, base, strict=True):
            assert one.method == probe.name
            np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-5)
            np.testing.assert_allclose(one.probabilities, p, atol=1e-5)
            assert fit.stack is None or one.corrected == (p.argmax() != scores.argmax())


def test_a_missing_or_another_encoder_is_refused(
    tracer: Tracer, probes: dict[str, Probe], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"reads the encoder 'letters'"):
        Decider(tracer, probes=[probes["alone"]])
    other = Encoder(write_encoder(tmp_path / "letters", seed=1), "cpu")
    with pytest.raises(InputError, match="fitted with the weights"):
        Decider(tracer, probes=[probes["both"]], encoders=[other])


def test_a_damaged_file_is_refused(probes: dict[str, Probe]) -> None:
    own = {"layer": 2, "pooling": "own"}
    blocks: tuple[Any, ...] = ([own | {"encoder": "letters"}] * 2, [own], [])
    changes = [{"fit.blocks": each} for each in blocks]
    for change in (*changes, {"encoder": {"model": 3}}, {"encoder": None}):
        with pytest.raises(InputError) as refusal:
            Probe.from_bytes(with_facts(probes["both"].to_bytes(), **change))
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["alone", "both", "stacked"])
def test_answers_below_the_threshold_of_the_probes_certificate_are_deferred(
    tracer: Tracer, encoder: Encoder, probes: dict[str, Probe], name: str
) -> None:
    probe, texts = probes[name], [*NEW, *TEXTS]
    model = None if name == "alone" else tracer  # an encoder's probe needs no language model
    question = {"q": replace(WIDE, abstain=True)}
    bare = Decider(model, probes=[probe], encoders=[encoder])
    open_ = [one["q"] for one in bare.decide_many(texts, {"q": WIDE})]
    least = float(np.median([one.probability for one in open_]))
    certificate = certificate_of(probe, least)
    decider = Decider(model, probes=[probe], encoders=[encoder], certificate=certificate)
    given = [one["q"] for one in decider.decide_many(texts, question)]
    for answer, before in zip(given, open_, strict=True):
        assert answer.deferred == (before.probability < least)
        assert answer.choice == (None if answer.deferred else before.choice)
        assert answer.probability == before.probability
    assert 0 < sum(one.deferred for one in given) < len(texts)
    with pytest.raises(CertificateError, match="give its file too"):
        Decider(tracer, certificate=certificate)
