"""A certificate that chooses among methods: what is tested, what runs then, what stands beside."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from lastword import Decider, Tracer
from lastword.errors import CertificateError, RecordError
from lastword.lab.benchmarks.demo import items as world_items
from lastword.lab.benchmarks.jsonl import jsonl
from lastword.lab.evaluation.runner import execute, prepare
from lastword.lab.evaluation.work import Work
from lastword.records.frame import load_records
from lastword.text.items import Item
from lastword.trust.certificate import Certificate
from lastword.trust.certification import Outcome, read_sample
from lastword.trust.claims import ControlResults, certify
from lastword.trust.other_methods import control_results
from lastword.trust.summary import summary
from lastword.trust.terms import Terms

LABELS = ("clay lamps", "green wool combs", "pale cedar oars", "copper masks")
LONGEST = 1
FAMILY = ("trace", "trace-gated", "pmi@0.25", "pmi@0.5", "pmi@1", "batch-calibrated")


@pytest.fixture(scope="module")
def asked():
    """Questions over one label set."""
    once = list({item.prompt: item for item in world_items()}.values())[:150]
    return [Item(i.prompt, LABELS, id=i.id, blind_prompt=i.blind_prompt) for i in once]


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


def recorded(tracer: Tracer, items: list[Item], truths: list[int], folder: Path) -> Path:
    """Records of these items, of which pmi, or what the test says, is right."""
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
    job = prepare(Decider(tracer), Work(benchmark.load(), benchmark.template(), blind="all"))
    execute(Decider(tracer), job, folder / "runs")
    return folder / "runs"


@pytest.fixture(scope="module")
def by_pmi(tracer, asked, tmp_path_factory):
    """Records whose truths are what pmi@1 answers."""
    answers = [d.index for d in Decider.demo(correction="pmi@1").correct_many(asked)]
    return recorded(tracer, asked, answers, tmp_path_factory.mktemp("pmi"))


def test_all_is_what_the_records_hold_and_what_they_lack_is_named(by_pmi):
    sample = read_sample(by_pmi, methods=None)
    assert sample.methods == FAMILY and set(sample.items.others) == set(FAMILY) - {"trace"}
    with pytest.raises(RecordError, match="scores that contextual needs"):
        read_sample(by_pmi, methods=("trace", "contextual"))


def test_methods_answer_from_records_as_their_definitions_say(by_pmi):
    sample = read_sample(by_pmi, methods=None)
    frame = load_records(by_pmi)
    mean = np.mean([softmax(b) for b in frame["base_scores"]], axis=0)
    bases, blind = frame["base_scores"], frame["blind_scores"]
    for name, scores in {
        "pmi@0.5": [b - 0.5 * q for b, q in zip(bases, blind, strict=True)],
        "batch-calibrated": [softmax(b) - mean for b in bases],
    }.items():
        own = sample.items.others[name]
        rows = zip(scores, bases, frame["truthful"], strict=True)
        for place, (u, b, truth) in enumerate(rows):
            first, second = sorted(u)[-1], sorted(u)[-2]
            assert own.margins[place] == pytest.approx(first - second)
            assert own.overrides[place] == (np.argmax(u) != np.argmax(b))
            assert own.mc1[place] == bool(truth[int(np.argmax(u))])
            assert own.confidence[place] == pytest.approx(softmax(u).max())
            assert own.mc1_base[place] == bool(truth[int(np.argmax(b))])
        assert set(own.operators) == {name}


def test_the_choice_is_what_runs_under_the_certificate(by_pmi, asked):
    sample = read_sample(by_pmi, methods=None)
    finding = certify(sample.items, sample.scalar, Terms(0.1, methods=sample.methods))
    assert finding.policy.method == "pmi@1" and len(finding.trials) == 20
    certificate = Outcome(sample, finding, ControlResults({}, float("nan"))).certificate
    read = Certificate.from_dict(tomllib.loads(certificate.to_toml()))
    assert read == certificate and set(read.reference) == {"confidence"} and not read.means
    free = Decider.demo(correction="pmi@1")
    held = Decider.demo(certificate=read)
    policy = finding.policy
    for was, stands in zip(free.correct_many(asked), held.correct_many(asked), strict=True):
        first, second = sorted(was.scores)[-1], sorted(was.scores)[-2]
        lets = was.index != was.base_index and first - second >= policy.margin
        assert stands.index == (was.index if lets else was.base_index)
    with pytest.raises(CertificateError, match=r"overrides by pmi@1, not for those of pmi@0\.5"):
        Decider.demo(certificate=read, correction="pmi@0.5")
    assert summary(finding, "m", ["b"], 0)[1].startswith("Allowed: overrides by pmi@1")
    with pytest.raises(CertificateError, match="not hold the policies of its methods"):
        Certificate.from_dict(certificate.to_dict() | {"terms": {"alpha": 0.1}})


def test_a_mean_is_frozen_so_that_no_answer_depends_on_the_others(tracer, asked, tmp_path):
    bases = [d.base_scores for d in tracer.correct_many(asked)]
    mean = np.mean([softmax(b) for b in bases], axis=0)
    answers = [int(np.argmax(softmax(b) - mean)) for b in bases]
    runs = recorded(tracer, asked, answers, tmp_path)
    sample = read_sample(runs, methods=("batch-calibrated",))
    finding = certify(sample.items, sample.scalar, Terms(0.1, methods=sample.methods))
    assert finding.policy.method == "batch-calibrated"
    certificate = Outcome(sample, finding, ControlResults({}, float("nan"))).certificate
    (own,) = certificate.means.values()
    assert own == pytest.approx(mean[np.argsort(LABELS)])
    read = Certificate.from_dict(tomllib.loads(certificate.to_toml()))
    held = Decider.demo(certificate=read)
    stands = finding.policy.margin
    for some in (asked, asked[::-1], asked[40:41]):
        for item, decision in zip(some, held.correct_many(some), strict=True):
            u = softmax(bases[asked.index(item)]) - mean
            sure = np.sort(u)[-1] - np.sort(u)[-2] >= stands
            assert decision.index == (u.argmax() if sure else bases[asked.index(item)].argmax())


def test_controls_go_through_the_same_test(by_pmi):
    sample = read_sample(by_pmi, methods=("pmi@1",))
    terms = Terms(0.1, methods=sample.methods)
    finding = certify(sample.items, sample.scalar, terms)
    told = control_results(finding, sample.items, sample.cells, sample.scalar)
    assert set(told.worth) == {"shortest", "longest", "question-blind", "anti-blind"}
    assert told.worth["longest"] < finding.chosen.gain and told.flips < 0.05
    # Where a control is worth as much, that comes first.
    equal = ControlResults(dict.fromkeys(told.worth, 0.0) | {"longest": finding.chosen.gain}, 0.2)
    first, *_ = summary(finding, "m", ["b"], 0, equal)
    assert first.startswith("Warning: longest and random flips in 20% of draws")
    assert not any(line.startswith("Warning") for line in summary(finding, "m", ["b"], 0, told))


def test_where_wording_gives_the_truth_away_the_control_certifies_as_much(tracer, asked, tmp_path):
    runs = recorded(tracer, asked, [LONGEST] * len(asked), tmp_path)
    sample = read_sample(runs, methods=("pmi@0.25", "pmi@0.5", "pmi@1"))
    finding = certify(sample.items, sample.scalar, Terms(0.3, methods=sample.methods))
    told = control_results(finding, sample.items, sample.cells, sample.scalar)
    wrong = int((sample.items.mc1_base == 0).sum())
    assert told.worth["longest"] == wrong > 0
    if finding.chosen is not None:
        assert "longest" in told.rivals(finding.chosen.gain)
