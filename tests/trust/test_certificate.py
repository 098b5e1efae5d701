"""Certificates as files: written ones are read back, invalid ones are refused in one line."""

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
from lastword.trust.automation import Automation, Errors, Rung
from lastword.trust.calibration import calibrate
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Trial
from lastword.trust.policy import OFF, Policy, family
from lastword.trust.subject import CertifiedProbe, Subject
from lastword.trust.terms import Terms

RUNGS = (Rung(0.6, 0.3, Errors(100, 100, 0.01)), Rung(0.35, 0.8, Errors(300, 300, 0.03)))
ANSWERS = Automation(0.1, RUNGS, answerers=5)  # one of four policies, or none
GOOD = certificate(
    Subject("org/model", {"weights": "a1b2", "dtype": "float32", "head dtype": "float32"}),
    Policy(("decisive", "mix"), 1.0),
    Terms(0.02, 0.05, error=0.1),
    50,
    1,
    automation=ANSWERS,
    benchmarks={"demo": "ff00", "truthfulqa@own6": "ee11"},
    templates=("demo/prompt 1",),
    questions=("q1", "q2"),
    versions={"lastword": "0.2.0"},
    date="2026-11-21T12:00:00+00:00",
    reference={"confidence": (0.25, 1.0), "log_margin_ratio": (float("-inf"), 2.5)},
)


PROBE = CertifiedProbe("d1", "q1", 7, 0.5, 19, "mean")
OF_PROBE = Policy(("probe@19",), 0.0, "probe@19")


def of_probe(*others, **more):
    """Return the certificate of a probe that was tested beside other methods."""
    terms = Terms(promise="gain", methods=(*others, "probe@19"))
    return certificate(GOOD.subject, OF_PROBE, terms, 20, 2, 50, **more)


def of_means(**more):
    terms = Terms(promise="gain", methods=("pmi@1", "batch-calibrated"))
    policy = Policy(("batch-calibrated",), 0.0, "batch-calibrated")
    return certificate(GOOD.subject, policy, terms, 30, 2, **more)


def calibrated():
    rng = np.random.default_rng(0)
    scores = [3 * rng.normal(size=3) for _ in range(30)]
    return replace(GOOD, calibration=calibrate(scores, [int(rng.integers(3)) for _ in scores]))


MEANS = {"0a": (0.5, 0.5)}
ALONE = Certificate(
    GOOD.subject,
    Terms(error=0.1, methods=("probe@19",), promise="gain"),
    OF_PROBE,
    automation=replace(ANSWERS, answerers=1),
    probe=PROBE,
)
KINDS = {
    "good": GOOD,
    "nothing": replace(GOOD, policy=OFF, automation=None),
    "probe": of_probe("pmi@1", probe=PROBE),
    "few errors": ALONE,
    "calibrated": calibrated(),
    "means": of_means(means=MEANS),
}


def changed_counts(**changes):
    """Return the table of GOOD's tested policies, with other counts of the allowed one."""
    trials = GOOD.to_dict()["trials"]
    next(t for t in trials if t["policy"]["margin"] == 1.0)["evidence"] |= changes
    return {"trials": trials}


def rungs(**changes):
    """Return GOOD's automation, with a changed strictest rung."""
    first, *others = GOOD.to_dict()["automation"]["rungs"]
    return edited("automation", rungs=[first | changes, *others])


def edited(part, **changes):
    """Return a changed part of GOOD's table."""
    return {part: GOOD.to_dict()[part] | changes}


def of_kind(kind, **changes):
    """Return another certificate's table with changed entries of a part."""
    table = KINDS[kind].to_dict()
    for part, entries in changes.items():
        for name, value in entries.items():
            inner = table[part].get(name)
            table[part][name] = inner | value if isinstance(value, dict) else value
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_certificate_is_read_back(kind, tmp_path):
    (tmp_path / "c.toml").write_text(KINDS[kind].to_toml(), encoding="utf-8")
    assert Certificate.read(tmp_path / "c.toml") == KINDS[kind]


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from([3.0, 0.25]),
    st.sampled_from([None, ANSWERS, replace(ANSWERS, look=1)]),
    st.sampled_from([Theta(), Theta(rho_plus=0.9), Theta(scorer=ScorerTheta(outside="clip"))]),
)
def test_any_name_theta_and_policy_are_read_back(model, margin, automation, theta):
    subject, policy = replace(GOOD.subject, model=model, theta=theta), ("decisive", "early")
    written = certificate(subject, Policy(policy, margin), GOOD.terms, 50, automation=automation)
    assert Certificate.from_dict(tomllib.loads(written.to_toml())) == written


def test_a_probe_may_promise_few_errors_without_a_gain():
    assert ALONE.threshold == ALONE.describe()["threshold"] == 0.35 and ALONE.worth == {}
    assert (ALONE.error_rate, KINDS["probe"].error_rate) == (0.1, None)


FAILING = Automation(0.1, (Rung(0.6, 0.3, Errors(100, 100, 0.09)),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (of_probe, "it names a probe"),
        (of_means, "needs its means"),
        (lambda: replace(ALONE, automation=None), "policies of its methods"),
        (lambda: replace(ALONE, probe=None), "it names a probe"),
        (lambda: replace(ALONE, policy=Policy(("pmi@1",), 0, "pmi@1")), "policies of its methods"),
        (lambda: replace(ALONE, automation=FAILING), "do not give its threshold"),
        (lambda: replace(KINDS["calibrated"].calibration, temperature=-1.0), "between 0.001"),
    ],
)
def test_a_certificate_that_contradicts_itself_is_not_made(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, r"\(schema 3, expected 4\): certify again"),
        ({"policy": {"operators": ["all"], "margin": 0}}, "decisive, mix, early, not all"),
        ({"terms": {"alpha": "low"}}, "terms.alpha: expected a valid number, not 'low'"),
        ({"terms": {"promise": "luck"}}, "terms.promise: expected 'gain' or 'breaks', not 'luck'"),
        ({"trials": []}, "does not hold the policies of its methods"),
        (changed_counts(fixed=400), "do not fit together"),
        ({"subject": {"model": "m", "theta": {"tau": 1}}}, "unknown name"),
        (changed_counts(rate=0.0), "items that stand by themselves"),
        (changed_counts(discordant=0), "stand by themselves"),
        (rungs(errors={"items": 300, "groups": 300, "rate": 0.2}), "do not give its threshold"),
        (rungs(threshold=1.5), "threshold is a probability"),
        (rungs(errors={"items": 300, "groups": 300, "rate": 0.0301}), "stand by themselves"),
        (edited("automation", answerers=1), "do not give its threshold"),
        (edited("automation", error=0.2), "do not give its threshold"),
        (changed_counts(groups=0), "do not fit together"),
        (changed_counts(overrides=50), "do not fit together"),  # 51 were fixed or broken
        ({"terms": {"alpha": 0.005}}, "1 broken and 50 fixed of 400, do not give"),
        ({"terms": {"alpha": 0.02}}, "do not give its threshold"),
        ({"colour": "red"}, "colour is an unknown name"),
        # Each of these would be a better promise than the labels support.
        (edited("terms", alpha=0.015), "do not give its promise"),
        (edited("terms", delta=0.0001), "do not give its promise"),
        (edited("terms", promise="gain"), "policies of its methods"),
        (edited("policy", margin=0.0), "its policy was not tested"),
        (edited("policy", operators=["decisive", "mix", "early"]), "its policy was not tested"),
        (
            edited("policy", operators=["pmi@1"], margin=0.0, method="pmi@1"),
            "its policy was not tested",
        ),
        (changed_counts(broken=0, rate=0.0, discordant=50, lost=-1.0), "edited by hand"),
        (edited("terms", alpha=0.05), "edited by hand"),
        (edited("worth", net_at_least=0.2), "edited by hand"),
        ({"digest": "0" * 64}, "edited by hand"),
        (of_kind("calibrated", calibration={"temperature": -1.0}), "a temperature is between"),
        (KINDS["means"].to_dict() | {"means": {}}, "needs its means"),
    ],
)
def test_an_invalid_certificate_is_refused_in_one_line(tmp_path, change, message):
    path = tmp_path / "c.toml"
    table = change if "digest" in change and "trials" in change else GOOD.to_dict() | change
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    with pytest.raises(CertificateError, match=message) as caught:
        Certificate.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "not toml", "schema = 2", f"x = {'[' * 5000}"])
def test_a_file_without_a_certificate_is_refused(tmp_path, text):
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CertificateError, match=r"c\.toml"):
        Certificate.read(path)


@pytest.mark.parametrize(
    ("alpha", "fixed", "broken", "holds"),
    [
        (0.0001, 9, 9, False),
        (0.02, 9, 0, True),
        (0.02, 4, 0, False),  # no proven gain
        (0.02, 9, 5, False),
    ],
)
def test_counts_are_tested_again_also_with_a_valid_digest(alpha, fixed, broken, holds):
    policy, terms = GOOD.policy, Terms(alpha)
    table = certificate(GOOD.subject, policy, Terms(0.5), 90).to_dict()
    trials = [
        Trial(p, s, counted(400, *((fixed, broken) if p == policy else (0, 0))))
        for p, s in family("mix").items()
    ]
    table |= {"trials": [asdict(one) for one in trials], "terms": table["terms"] | {"alpha": alpha}}
    if holds:
        table["worth"] = certificate(GOOD.subject, policy, terms, fixed, broken).worth
    del table["digest"]  # a forger can compute it
    table["digest"] = text_digest(json.dumps(table, sort_keys=True))
    if holds:
        assert Certificate.from_dict(table).counts == counted(400, fixed, broken)
        return
    with pytest.raises(CertificateError, match="do not give its promise"):
        Certificate.from_dict(table)


def marked(**changes):
    return {"marks": {**GOOD.subject.marks, **changes}}


def test_a_certificate_applies_only_to_its_model_and_template():
    GOOD.check(GOOD.subject)
    GOOD.check_template("demo/prompt 1")
    for message, theirs in [
        ("the model 'org/model', and this is 'org/other'", {"model": "org/other"}),
        ("the weights of org/model 'a1b2', and this is 'b2a1'", marked(weights="b2a1")),
        ("the dtype of org/model 'float32', and this is 'bfloat16'", marked(dtype="bfloat16")),
        ("the head dtype of org/model 'float32'", marked(**{"head dtype": "model"})),
        ("the tokenizer of org/model 'none', and this is '0a'", marked(tokenizer="0a")),
        ("the chat template 'none', and this is", {"chat": '{"system": null}'}),
        ("tau_dim = 1.0015, not 1.01", {"theta": Theta(tau_dim=1.01)}),
        ("scorer.outside = clip, not floor", {"theta": Theta(scorer=ScorerTheta(outside="floor"))}),
    ]:
        with pytest.raises(CertificateError, match=re.escape(message)):
            GOOD.check(replace(GOOD.subject, **theirs))
    with pytest.raises(CertificateError, match="'demo/prompt 1', and this is 'demo/prompt 2'"):
        GOOD.check_template("demo/prompt 2")


def test_a_subject_is_read_from_a_runs_description(tmp_path):
    described = {"model": "org/model", "theta": {}, "chat": None}
    assert Subject.of(described) == Subject("org/model")
    extra = {"revision": "abc", "quantisation": "nf4 (bitsandbytes)", "weights": None}
    marks = {"commit": "abc", "quantisation": "nf4 (bitsandbytes)"}
    assert Subject.of(described | extra).marks == marks
    chat = {"system": None, "template": "0a", "thinking": None}
    assert "0a" in Subject.of(described | {"chat": chat}).chat
    # A folder is identified by its name and its content.
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    recorded = described | {"model": str(folder), "weights": folder_digests(folder)}
    assert Subject.of(recorded).model == "checkpoint" and set(recorded["weights"]) == {"config"}


def test_the_digest_covers_all_fields_of_a_subject():
    subject = GOOD.subject
    others = [
        replace(subject, theta=Theta(tau_dim=1.01)),
        replace(subject, chat="x"),
        *(replace(subject, **marked(**{name: "other"})) for name in subject.marks),
    ]
    assert len({subject.digest, *(other.digest for other in others)}) == 1 + len(others)
    assert replace(subject).digest == subject.digest


OVERRIDE = decided([-1.5, -1.0, -3.0], [-1.0, -1.25, -3.0])


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Policy(("decisive", "mix"), 0.25), None),
        (Policy(("decisive", "mix"), 1.0), "a margin of at least 1 nats"),
        (Policy(("pmi@1",), 0.0, "pmi@1"), "only pmi@1 may override"),
        (OFF, "nothing may override"),
    ],
)
def test_an_override_is_allowed_or_withheld(policy, rule):
    terms = Terms(0.02, methods=("trace", "pmi@1"))
    decision = certificate(GOOD.subject, policy, terms, 50).obey(OVERRIDE)
    if rule is None:
        assert decision.to_dict() == replace(OVERRIDE, deferred=False).to_dict()
        return
    assert (decision.index, decision.operator, decision.corrected) == (0, "base", False)
    assert np.array_equal(decision.scores, OVERRIDE.base_scores)
    withheld = decision.to_dict()["withheld"]
    names = ("rule", "index", "answer", "operator", "scores")
    expected = [rule, 1, "b", "decisive", OVERRIDE.scores.tolist()]
    assert [withheld[name] for name in names] == expected
    assert f"({rule}): the answer stays “a”" in explain(decision)


def test_answers_without_override_are_unchanged():
    same = decided([-1.0, -1.5, -3.0], [-0.2, -1.25, -3.0], operator="mix")
    left = replace(GOOD, policy=OFF, automation=None).obey(same)
    assert left.to_dict() == replace(same, deferred=False).to_dict()


@pytest.mark.parametrize(("policy", "index"), [(GOOD.policy, 1), (OFF, 0)])
def test_deferral_uses_the_scores_of_the_shown_answer(policy, index):
    override = decided([-9.0, -1.0, -9.0], [-1.0, -1.25, -1.5])
    shown = softmax((override.base_scores, override.scores)[index]).max()
    for threshold, deferred in ((shown, False), (shown + 1e-9, True)):
        rungs = (replace(RUNGS[1], threshold=float(threshold)),)
        decision = replace(GOOD, policy=policy, automation=replace(ANSWERS, rungs=rungs)).obey(
            override
        )
        assert (decision.index, decision.deferred) == (index, deferred)
