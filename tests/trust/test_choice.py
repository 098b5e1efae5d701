"""Certificates that choose among methods: the tests, the decisions, and the controls."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from lastword import Decider, Tracer
from lastword.errors import CertificateError, RecordError
from lastword.lab.benchmarks.ready import jsonl
from lastword.lab.demo import items as world_items
from lastword.lab.evaluation.runner import evaluate
from lastword.lab.evaluation.work import Work
from lastword.records.cells import load_records
from lastword.text.items import Item
from lastword.trust.certificate import Certificate
from lastword.trust.certification import outcome, read_sample
from lastword.trust.terms import Terms
from lastword.trust.words import summary

LABELS = ("clay lamps", "green wool combs", "pale cedar oars", "copper masks")
LONGEST = 1
FAMILY = ("trace", "trace-gated", "pmi@0.25", "pmi@0.5", "pmi@1", "batch-calibrated")


@pytest.fixture(scope="module")
def questions():
    """Return questions with one label set."""
    once = list({item.prompt: item for item in world_items()}.values())[:150]
    return [Item(i.prompt, LABELS, id=i.id, blind_prompt=i.blind_prompt) for i in once]


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


def recorded(tracer: Tracer, items: list[Item], truths: list[int], folder: Path) -> Path:
    """Write records of these items with the given truths; return the folder of the runs."""
    lines = [
        {
            "id": f"q{n}",
            "prompt": item.prompt,
            "blind_prompt": item.blind_prompt,
            "candidates": item.candidates,
            "truthful": [place == truth for place in range(len(item.candidates))],
        }
        for n, (item, truth) in enumerate(zip(items, truths, strict=True))
    ]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    benchmark = jsonl(path)
    work = Work(benchmark.load(), benchmark.template(), blind="all")
    evaluate(Decider(tracer), work, folder / "runs")
    return folder / "runs"


@pytest.fixture(scope="module")
def by_pmi(tracer, questions, tmp_path_factory):
    """Return records whose truths are the answers of pmi@1."""
    answers = [d.index for d in Decider.demo(correction="pmi@1").correct_many(questions)]
    return recorded(tracer, questions, answers, tmp_path_factory.mktemp("pmi"))


def test_by_default_all_methods_with_recorded_scores_are_tested(by_pmi):
    sample = read_sample(by_pmi, methods=None)
    assert sample.methods == FAMILY and set(FAMILY) < set(sample.items.methods)
    with pytest.raises(RecordError, match="scores that contextual needs"):
        read_sample(by_pmi, methods=("trace", "contextual"))


def test_methods_from_records_agree_with_their_definitions(by_pmi):
    items, frame = read_sample(by_pmi, methods=None).items, load_records(by_pmi)
    bases, truths = np.array([*frame["base_scores"]]), np.array([*frame["truthful"]])
    p, rows = softmax(bases, axis=1), np.arange(len(bases))
    for name, u in {
        "pmi@0.5": bases - 0.5 * np.array([*frame["blind_scores"]]),
        "batch-calibrated": p - p.mean(axis=0),
    }.items():
        method, ordered = items.methods[name], np.sort(u)
        assert_allclose(method.margins, ordered[:, -1] - ordered[:, -2], rtol=1e-6, atol=1e-9)
        assert_allclose(method.confidence, softmax(u, axis=1).max(axis=1))
        assert (method.overrides == (u.argmax(axis=1) != bases.argmax(axis=1))).all()
        assert (method.mc1 == truths[rows, u.argmax(axis=1)]).all()
        assert (items.mc1_base == truths[rows, bases.argmax(axis=1)]).all()
        assert set(method.operators) == {name}


def certified(runs: Path, methods: tuple[str, ...] | None) -> Certificate:
    """Return the certificate from records, as it is read back."""
    certificate = outcome(read_sample(runs, methods=methods), Terms(0.1)).certificate
    assert Certificate.from_dict(tomllib.loads(certificate.to_toml())) == certificate
    return certificate


def assert_follows(certificate: Certificate, questions: list[Item], scores: list) -> None:
    """Check that an answer changes only if the margin of the method's scores is large enough."""
    for some in (range(150), range(149, -1, -1), range(40, 41)):  # whatever else is asked
        decisions = Decider.demo(certificate=certificate).correct_many([questions[i] for i in some])
        for place, decision in zip(some, decisions, strict=True):
            u, base = scores[place], decision.base_scores.argmax()
            sure = np.subtract(*np.sort(u)[:-3:-1]) >= certificate.policy.margin
            assert decision.index == (u.argmax() if sure else base)


def test_decisions_under_the_certificate_follow_the_chosen_policy(by_pmi, questions):
    certificate = certified(by_pmi, None)
    assert certificate.policy.method == "pmi@1" and len(certificate.trials) == 20
    assert set(certificate.reference) == {"confidence"} and not certificate.means
    free = Decider.demo(correction="pmi@1").correct_many(questions)
    assert_follows(certificate, questions, [decision.scores for decision in free])
    with pytest.raises(CertificateError, match=r"overrides by pmi@1, not for those of pmi@0\.5"):
        Decider.demo(certificate=certificate, correction="pmi@0.5")


def test_the_means_of_a_certificate_do_not_depend_on_new_items(tracer, questions, tmp_path):
    bases = np.array([softmax(d.base_scores) for d in tracer.correct_many(questions)])
    scores = bases - bases.mean(axis=0)
    runs = recorded(tracer, questions, scores.argmax(axis=1).tolist(), tmp_path)
    certificate = certified(runs, ("batch-calibrated",))
    assert certificate.policy.method == "batch-calibrated"
    (stored,) = certificate.means.values()
    assert stored == pytest.approx(bases.mean(axis=0)[np.argsort(LABELS)])
    assert_follows(certificate, questions, list(scores))


def test_controls_are_tested_like_methods(by_pmi):
    finding = outcome(read_sample(by_pmi, methods=("pmi@1",)), Terms(0.1)).finding
    assert set(finding.controls) == {"shortest", "longest", "question-blind", "anti-blind"}
    assert finding.controls["longest"] < finding.chosen.gain and not finding.rivals
    # The summary begins with a control that gains as much.
    equal = replace(finding, controls={"longest": finding.chosen.gain})
    assert summary(equal, "m", "b")[0].startswith("Warning: longest would be certified")
    assert not any(line.startswith("Warning") for line in summary(finding, "m", "b"))


def test_a_control_gains_as_much_if_the_wording_reveals_the_truth(tracer, questions, tmp_path):
    runs = recorded(tracer, questions, [LONGEST] * len(questions), tmp_path)
    sample = read_sample(runs, methods=("pmi@0.25", "pmi@0.5", "pmi@1"))
    finding = outcome(sample, Terms(0.3)).finding
    assert finding.controls["longest"] == int((sample.items.mc1_base == 0).sum()) > 0
    assert finding.chosen is None or "longest" in finding.rivals
