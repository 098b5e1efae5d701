"""A certificate as a file: what is written is read, and what is not one is refused in one line."""

import json
import re
import tomllib
from dataclasses import asdict, replace

import numpy as np
import pytest
import tomli_w
from decided import decided
from hypothesis import given
from hypothesis import strategies as st
from populations import certificate, counted
from scipy.special import softmax

from lastword.errors import CertificateError, InputError
from lastword.model.weights.identity import folder_digests, text_digest
from lastword.records.explanation import explain
from lastword.rule.theta import ScorerTheta, Theta
from lastword.trust.certificate import (
    Baseline,
    Certificate,
    CertifiedProbe,
    Subject,
    Tried,
    defined,
)
from lastword.trust.policy import OFF, Policy, family
from lastword.trust.terms import Terms

GOOD = certificate(
    Subject("org/model", {"weights": "a1b2", "dtype": "float32", "head dtype": "float32"}),
    Policy(("decisive", "mix"), 1.0),
    Terms(0.02, 0.05, gain=True, error=0.1),
    50,
    1,
    threshold=0.35,
    answered=300,
    wrong=0.03,
    benchmarks={"demo": "ff00", "truthfulqa@own6": "ee11"},
    templates=("demo/prompt 1",),
    questions=("q1", "q2"),
    versions={"lastword": "0.2.0"},
    date="2026-11-21T12:00:00+00:00",
    reference={"confidence": (0.25, 1.0), "log_margin_ratio": (float("-inf"), 2.5)},
)


def by_hand(path, table):
    """A file that somebody wrote who knows how the digest is made."""
    table = {name: value for name, value in table.items() if name != "digest"}
    digest = text_digest(json.dumps(table, sort_keys=True))
    path.write_text(tomli_w.dumps(table | {"digest": digest}), encoding="utf-8")
    return path


def changed_counts(**changes):
    """The table of the good one, other counts of the policy that is allowed."""
    tried = GOOD.to_dict()["tried"]
    next(t for t in tried if t["policy"]["margin"] == 1.0)["counts"] |= changes
    return {"tried": tried}


def edited(part, **changes):
    """A part of the good one's table, changed."""
    return {part: GOOD.to_dict()[part] | changes}


def again(made):
    """What is read of its file."""
    return Certificate.from_dict(tomllib.loads(made.to_toml()))


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from([3.0, 0.25]),
    st.sampled_from([None, 0.05, 1.0]),
    st.sampled_from([Theta(), Theta(rho_plus=0.9), Theta(scorer=ScorerTheta(outside="clip"))]),
)
def test_what_is_written_is_read(model, margin, threshold, theta):
    made = certificate(
        replace(GOOD.subject, model=model, theta=theta),
        Policy(("decisive", "early"), margin),
        GOOD.terms,
        50,
        threshold=threshold,
        answered=300,
        wrong=0.03,
    )
    assert again(made) == made


def test_a_probe_is_part_of_it():
    methods = ("pmi@1", "probe@19")
    probe = CertifiedProbe("d1", "q1", 7, 0.5, 19, "mean")
    policy, terms = Policy(("probe@19",), 0.0, "probe@19"), Terms(promise="gain", methods=methods)
    made = certificate(GOOD.subject, policy, terms, 20, 2, 50, probe=probe)
    assert again(made) == made
    assert made.worth["net_at_least"] > 0
    with pytest.raises(InputError, match="it names a probe"):
        certificate(GOOD.subject, policy, terms, 20, 2, 50)


def test_the_gain_over_baselines_is_tested_again_when_it_is_read():
    methods = ("probe@19",)
    probe = CertifiedProbe("d1", "q1", 7, 0.5, 19, "mean")
    policy, terms = Policy(("probe@19",), 0.0, "probe@19"), Terms(promise="gain", methods=methods)
    words, largest = (
        Baseline(name, counted(*counts, 50))
        for name, counts in {"bag of words": (12, 1), "largest class": (15, 1)}.items()
    )
    made = certificate(
        GOOD.subject, policy, terms, 20, 2, 50, probe=probe, baselines=(largest, words)
    )
    assert again(made) == made
    # It is the bound over the better of the two, which each has by itself.
    alone = [replace(made, baselines=(one,)).over_baselines for one in (largest, words)]
    assert made.over_baselines == made.worth["over_baselines_at_least"] == alone[1] < alone[0]
    noise = replace(words, counts=counted(8, 6, 50))
    beaten_by_one = replace(made, baselines=(largest, noise))
    assert beaten_by_one.over_baselines is None and again(beaten_by_one) == beaten_by_one
    assert "over_baselines_at_least" not in beaten_by_one.worth
    spoiled = made.to_dict()
    spoiled["baselines"][1]["counts"] |= {"fixed": 45}
    with pytest.raises(CertificateError, match="do not fit together"):
        Certificate.from_dict(spoiled)


def test_a_calibration_is_part_of_it():
    rng = np.random.default_rng(0)
    scores = [3 * rng.normal(size=3) for _ in range(30)]
    made = GOOD.calibrated(scores, [int(rng.integers(3)) for _ in scores])
    assert made.calibration is not None and made.calibration.temperature > 1  # truths are noise
    assert again(made) == made
    assert made.describe()["calibration"]["items"] == 30
    spoiled = made.to_dict()
    spoiled["calibration"] |= {"temperature": -1.0}
    with pytest.raises(CertificateError, match="a temperature is between"):
        Certificate.from_dict(spoiled)


def test_off_is_a_policy_too(tmp_path):
    off = replace(GOOD, policy=OFF, threshold=None)
    (tmp_path / "c.toml").write_text(off.to_toml(), encoding="utf-8")
    assert Certificate.read(tmp_path / "c.toml") == off


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 1}, "schema = 3 is missing; certify again"),
        ({"policy": {"operators": ["all"], "margin": 0}}, "decisive, mix, early, not all"),
        ({"policy": {"operators": []}}, "margin is missing"),
        ({"terms": {"alpha": 2}}, "alpha is a share"),
        ({"terms": {"alpha": "low"}}, "alpha cannot be 'low'"),
        ({"terms": {"promise": "luck"}}, "promise cannot be 'luck'"),
        ({"tried": [{"policy": {"operators": [], "margin": 0}}]}, "share is missing"),
        ({"tried": []}, "does not hold the policies of its methods"),
        (changed_counts(fixed=400), "do not fit together"),
        ({"subject": {"model": "m", "theta": {"tau": 1}}}, "unknown name tau"),
        ({"threshold": 1.5}, "threshold is a probability"),
        (changed_counts(rate=0.0), "items that stand by themselves"),
        (changed_counts(discordant=0), "stand by themselves"),
        ({"wrong": 0.2}, "do not give its threshold"),
        (changed_counts(rate=float("nan")), "do not fit together"),
        (changed_counts(groups=0), "do not fit together"),
        (changed_counts(overrides=50), "do not fit together"),  # of 51 that were changed
        ({"terms": {"alpha": 0.005}}, "1 broken and 50 fixed of 400, do not give"),
        ({"terms": {"alpha": 0.02}}, "do not give its threshold"),
        ({"subject": {"model": 7, "theta": {}}}, "model cannot be 7"),
        ({"reference": {"confidence": ["x"]}}, "confidence cannot be 'x'"),
        ({"colour": "red"}, "colour is unknown"),
        # What was accepted once: each is a better promise than the labels gave.
        (edited("terms", alpha=0.015), "do not give its promise"),
        (edited("terms", delta=0.0001), "do not give its promise"),
        (edited("terms", promise="gain"), "policies of its methods"),
        (edited("policy", margin=0.0), "its policy was not tested"),
        (edited("policy", operators=["decisive", "mix", "early"]), "its policy was not tested"),
        (edited("policy", margin=2.0), "do not give its promise"),
        (
            edited("policy", operators=["pmi@1"], margin=0.0, method="pmi@1"),
            "its policy was not tested",
        ),
        (changed_counts(broken=0, rate=0.0, discordant=50, right_rate=0.0), "edited by hand"),
        (edited("terms", alpha=0.05), "edited by hand"),
        (edited("worth", net_at_least=0.2), "edited by hand"),
        ({"digest": "0" * 64}, "edited by hand"),
    ],
)
def test_what_is_no_certificate_is_refused_in_one_line(tmp_path, change, said):
    path = tmp_path / "c.toml"
    path.write_text(tomli_w.dumps(GOOD.to_dict() | change), encoding="utf-8")
    with pytest.raises(CertificateError, match=said) as caught:
        Certificate.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "not toml", "schema = 2", f"x = {'[' * 5000}"])
def test_a_file_that_holds_none_is_refused(tmp_path, text):
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CertificateError, match=r"c\.toml"):
        Certificate.read(path)


@pytest.mark.parametrize(
    ("terms", "fixed", "broken", "holds"),
    [
        (Terms(0.0001, gain=False), 9, 9, False),  # as an attack wrote it by hand
        (Terms(0.02), 9, 0, True),
        (Terms(0.02), 4, 0, False),  # no gain
        (Terms(0.02, gain=False), 4, 0, True),
        (Terms(0.02), 9, 5, False),
        (Terms(0.02, break_costs=4.0), 9, 0, False),  # worth nothing at this cost
        (Terms(0.02, right=0.005), 9, 0, False),  # of 240 right answers none broken says too little
    ],
)
def test_counts_are_tested_again_when_a_certificate_is_read(tmp_path, terms, fixed, broken, holds):
    policy = Policy(("decisive", "mix"), 1.0)
    tried = [
        Tried(p, s, counted(fixed, broken) if p == policy else counted(0, 0))
        for p, s in family("mix").items()
    ]
    table = replace(GOOD, threshold=None).to_dict() | {
        "tried": [defined(asdict(one)) for one in tried],
        "terms": {name: value for name, value in vars(terms).items() if value is not None},
    }
    if holds:
        table["worth"] = certificate(GOOD.subject, policy, terms, fixed, broken).worth
        read = Certificate.read(by_hand(tmp_path / "c.toml", table))
        assert read.counts == counted(fixed, broken)
        return
    with pytest.raises(CertificateError, match="do not give its promise"):
        Certificate.read(by_hand(tmp_path / "c.toml", table))


def test_a_method_that_learns_without_labels_brings_what_it_learned():
    terms = Terms(promise="gain", methods=("pmi@1", "batch-calibrated"))
    policy = Policy(("batch-calibrated",), 0.0, "batch-calibrated")
    with pytest.raises(InputError, match="needs its means"):
        certificate(GOOD.subject, policy, terms, 30, 2)
    made = certificate(GOOD.subject, policy, terms, 30, 2, means={"0a": (0.5, 0.5)})
    table = made.to_dict()
    other = {"operators": ["pmi@1"], "margin": 0.0, "method": "pmi@1"}
    for part, value in (("policy", other), ("means", {"0a": [0.9, 0.1]}), ("means", {})):
        with pytest.raises(CertificateError):
            Certificate.from_dict(table | {part: value})


def marked(**changes):
    return {"marks": {**GOOD.subject.marks, **changes}}


def test_a_certificate_is_for_what_it_names():
    GOOD.check(GOOD.subject)
    GOOD.check_template("demo/prompt 1")
    for said, theirs in [
        ("the model 'org/model', and this is 'org/other'", {"model": "org/other"}),
        ("the weights of org/model 'a1b2', and this is 'b2a1'", marked(weights="b2a1")),
        ("the dtype of org/model 'float32', and this is 'bfloat16'", marked(dtype="bfloat16")),
        ("the head dtype of org/model 'float32'", marked(**{"head dtype": "model"})),
        ("the tokenizer of org/model 'none', and this is '0a'", marked(tokenizer="0a")),
        ("the chat template 'none', and this is", {"chat": '{"system": null}'}),
        ("tau_dim = 1.0015, not 1.01", {"theta": Theta(tau_dim=1.01)}),
        ("scorer.outside = clip, not floor", {"theta": Theta(scorer=ScorerTheta(outside="floor"))}),
    ]:
        with pytest.raises(CertificateError, match=re.escape(said)):
            GOOD.check(replace(GOOD.subject, **theirs))
    with pytest.raises(CertificateError, match="'demo/prompt 1', and this is 'demo/prompt 2'"):
        GOOD.check_template("demo/prompt 2")


def test_a_subject_is_what_a_run_records_of_its_model(tmp_path):
    described = {"model": "org/model", "theta": {}, "chat": None}
    assert Subject.of(described) == Subject("org/model")
    known = {"revision": "abc", "quantisation": "nf4 (bitsandbytes)", "weights": None}
    marks = {"commit": "abc", "quantisation": "nf4 (bitsandbytes)"}
    assert Subject.of(described | known).marks == marks
    chat = {"system": None, "template": "0a", "thinking": None}
    assert "0a" in Subject.of(described | {"chat": chat}).chat
    # A folder is known by its own name and by what is in it.
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    recorded = described | {"model": str(folder), "weights": folder_digests(folder)}
    assert Subject.of(recorded).model == "checkpoint" and set(recorded["weights"]) == {"config"}
    assert Subject.of(described | {"weights": "0b"}).marks == {"weights": "0b"}


def test_one_digest_is_over_all_of_a_subject():
    subject = GOOD.subject
    others = [
        replace(subject, theta=Theta(tau_dim=1.01)),
        replace(subject, chat="x"),
        *(replace(subject, **marked(**{name: "other"})) for name in subject.marks),
    ]
    assert len({subject.digest, *(other.digest for other in others)}) == 1 + len(others)
    assert replace(subject).digest == subject.digest


@pytest.mark.parametrize(
    ("own", "rule"),
    [
        (Policy(("decisive", "mix"), 0.25), None),
        (Policy(("decisive", "early"), 0.25), None),
        (Policy(("decisive", "mix"), 1.0), "a margin of at least 1 nats"),
        (Policy(("pmi@1",), 0.0, "pmi@1"), "only pmi@1 may override"),
        (OFF, "nothing may override"),
    ],
)
def test_an_override_stands_or_gives_way_to_the_model(own, rule):
    wanted = decided([-1.5, -1.0, -3.0], [-1.0, -1.25, -3.0])
    terms = Terms(0.02, methods=("trace", "pmi@1"))
    stood = certificate(GOOD.subject, own, terms, 50).obey(wanted)
    if rule is None:
        assert stood.withheld is None and stood.index == 1 and stood.operator == "decisive"
        assert np.array_equal(stood.scores, wanted.scores)
        return
    assert (stood.index, stood.operator, stood.corrected, stood.answer) == (0, "base", False, "a")
    assert np.array_equal(stood.scores, wanted.base_scores)
    told = stood.to_dict()["withheld"]
    assert (told["rule"], told["index"], told["answer"]) == (rule, 1, "b")
    assert told["operator"] == "decisive" and told["scores"] == [-1.5, -1.0, -3.0]
    assert f"({rule}): the answer stays “a”" in explain(stood)


def test_what_is_no_override_is_left_as_it_is():
    same = decided([-1.0, -1.5, -3.0], [-0.2, -1.25, -3.0], operator="mix")
    left = replace(GOOD, policy=OFF, threshold=None).obey(same)
    assert left.withheld is None and left.operator == "mix" and not left.deferred
    assert np.array_equal(left.scores, same.scores)


def test_what_is_unsure_is_deferred_by_the_scores_that_are_shown():
    wanted = decided([-9.0, -1.0, -9.0], [-1.0, -1.25, -1.5])
    lets, withholds = (replace(GOOD, policy=p, threshold=0.5) for p in (GOOD.policy, OFF))
    assert not lets.obey(wanted).deferred and withholds.obey(wanted).deferred
    assert "deferred" in explain(withholds.obey(wanted))
    at = softmax(wanted.base_scores).max()
    assert not replace(withholds, threshold=at).obey(wanted).deferred
