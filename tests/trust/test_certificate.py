"""Certificates as files: written ones are read back, invalid ones are refused in one line."""

import re
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
import tomli_w
from decided import decided
from populations import certificate, counted
from scipy.special import softmax

from lastword.errors import CertificateError, InputError
from lastword.model.weights.identity import folder_digests
from lastword.records.explanation import explain
from lastword.rule.theta import ScorerTheta, Theta
from lastword.trust.automation import Automation, Errors, Rung
from lastword.trust.calibration import Calibration
from lastword.trust.certificate import Certificate
from lastword.trust.policy import OFF, Policy
from lastword.trust.subject import CertifiedProbe, Subject
from lastword.trust.terms import Terms

RUNGS = (Rung(0.6, 0.3, Errors(100, 100, 0.01)), Rung(0.35, 0.8, Errors(300, 300, 0.03)))
FAILING = Rung(0.6, 0.3, Errors(100, 100, 0.09))
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
ALONE = Certificate(
    GOOD.subject,
    Terms(error=0.1, methods=("probe@19",), promise="gain"),
    Policy(("probe@19",), 0.0, "probe@19"),
    automation=replace(ANSWERS, answerers=1, look=1),
    probe=PROBE,
)


def of(*methods, **more):
    """Return the certificate of the last of some methods."""
    policy, terms = Policy(methods[-1:], 0.0, methods[-1]), Terms(promise="gain", methods=methods)
    return certificate(GOOD.subject, policy, terms, 20, 2, 50, **more)


ODD = Subject('ö"\\\n=', theta=Theta(rho_plus=0.9, scorer=ScorerTheta(outside="clip")))
KINDS = {
    "good": GOOD,
    "nothing": replace(GOOD, policy=OFF, automation=None),
    "odd name and theta": replace(GOOD, subject=ODD),
    "probe": of("pmi@1", "probe@19", probe=PROBE),
    "few errors": ALONE,
    "calibrated": replace(GOOD, calibration=Calibration(1.5, 30, 0.1, 0.05, 0.3, 0.2)),
    "means": of("pmi@1", "batch-calibrated", means={"0a": (0.5, 0.5)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_certificate_is_read_back(kind, tmp_path):
    (tmp_path / "c.toml").write_text(KINDS[kind].to_toml(), encoding="utf-8")
    assert Certificate.read(tmp_path / "c.toml") == KINDS[kind]


def test_a_probe_may_promise_few_errors_without_a_gain():
    assert ALONE.threshold == ALONE.describe()["threshold"] == 0.35 and ALONE.worth == {}
    assert (ALONE.error_rate, KINDS["probe"].error_rate) == (0.1, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of("probe@19"), "it names a probe"),
        (lambda: of("batch-calibrated"), "needs its means"),
        (lambda: replace(KINDS["calibrated"].calibration, temperature=-1.0), "between 0.001"),
        (lambda: replace(ALONE, automation=None), "policies of its methods"),
        (lambda: replace(ALONE, probe=None), "it names a probe"),
        (lambda: replace(ALONE, policy=Policy(("pmi@1",), 0, "pmi@1")), "policies of its methods"),
        (lambda: replace(ALONE, automation=Automation(0.1, (FAILING,))), "not give its threshold"),
    ],
)
def test_a_certificate_that_contradicts_itself_is_not_made(make, message):
    with pytest.raises(InputError, match=message):
        make()


def changed(kind, path, value):
    """Return a certificate's table with another value at a path; a table is merged."""
    *parents, name = (int(part) if part.isdigit() else part for part in path.split("."))
    table = KINDS[kind].to_dict()
    inside = reduce(lambda inner, part: inner[part], parents, table)
    inside[name] = inside[name] | value if isinstance(value, dict) and value else value
    return table


EVIDENCE, RUNG = "trials.2.evidence", "automation.rungs.0"  # of the allowed policy


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 3, r"\(schema 3, expected 4\): certify again"),
        ("policy.operators", ["all"], "decisive, mix, early, not all"),
        ("terms.alpha", "low", "terms.alpha: expected a valid number, not 'low'"),
        ("terms.promise", "luck", "terms.promise: expected 'gain' or 'breaks', not 'luck'"),
        ("trials", [], "does not hold the policies of its methods"),
        ("subject.theta", {"tau": 1}, "unknown name"),
        ("colour", "red", "colour is an unknown name"),
        (EVIDENCE, {"fixed": 400}, "do not fit together"),
        (EVIDENCE, {"groups": 0}, "do not fit together"),
        (EVIDENCE, {"overrides": 50}, "do not fit together"),  # 51 were fixed or broken
        (EVIDENCE, {"rate": 0.0}, "items that stand by themselves"),
        (EVIDENCE, {"discordant": 0}, "stand by themselves"),
        (f"{RUNG}.threshold", 1.5, "threshold is a probability"),
        (f"{RUNG}.errors", {"items": 300, "groups": 300, "rate": 0.2}, "not give its threshold"),
        (f"{RUNG}.errors", {"items": 300, "groups": 300, "rate": 0.0301}, "stand by themselves"),
        # Each of these would be a better promise than the labels support.
        ("automation.answerers", 1, "do not give its threshold"),
        ("automation.error", 0.2, "do not give its threshold"),
        ("terms.error", 0.05, "do not give its threshold"),
        ("terms.alpha", 0.015, "1 broken and 50 fixed of 400, do not give its promise"),
        ("terms.delta", 0.0001, "do not give its promise"),
        (
            EVIDENCE,
            vars(counted(400, 4, 0)),
            "0 broken and 4 fixed of 400",
        ),
        ("terms.promise", "gain", "policies of its methods"),
        ("policy.margin", 0.0, "its policy was not tested"),
        ("policy.operators", ["decisive", "mix", "early"], "its policy was not tested"),
        ("policy", {"operators": ["pmi@1"], "method": "pmi@1"}, "its policy was not tested"),
        (
            EVIDENCE,
            {"broken": 0, "rate": 0.0, "discordant": 50, "overrides": 50, "lost": -1.0},
            "edited by hand",
        ),
        ("terms.alpha", 0.05, "edited by hand"),
        ("worth.net_at_least", 0.2, "edited by hand"),
        ("digest", "0" * 64, "edited by hand"),
    ],
)
def test_an_invalid_certificate_is_refused_in_one_line(tmp_path, path, value, message):
    file = tmp_path / "c.toml"
    file.write_text(tomli_w.dumps(changed("good", path, value)), encoding="utf-8")
    with pytest.raises(CertificateError, match=message) as caught:
        Certificate.read(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "not toml", "schema = 2", f"x = {'[' * 5000}"])
def test_a_file_without_a_certificate_is_refused(tmp_path, text):
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CertificateError, match=r"c\.toml"):
        Certificate.read(path)


OTHERS = [
    ("the model 'org/model', and this is 'org/other'", {"model": "org/other"}),
    ("the weights of org/model 'a1b2', and this is 'b2a1'", {"weights": "b2a1"}),
    ("the dtype of org/model 'float32', and this is 'bfloat16'", {"dtype": "bfloat16"}),
    ("the head dtype of org/model 'float32'", {"head dtype": "model"}),
    ("the tokenizer of org/model 'none', and this is '0a'", {"tokenizer": "0a"}),
    ("the chat template 'none', and this is", {"chat": '{"system": null}'}),
    ("tau_dim = 1.0015, not 1.01", {"theta": Theta(tau_dim=1.01)}),
    ("scorer.outside = clip, not floor", {"theta": Theta(scorer=ScorerTheta(outside="floor"))}),
]


@pytest.mark.parametrize(("message", "change"), OTHERS)
def test_a_certificate_applies_only_to_its_model(message, change):
    fields = {name: value for name, value in change.items() if name in vars(GOOD.subject)}
    marks = {**GOOD.subject.marks, **{n: v for n, v in change.items() if n not in fields}}
    other = replace(GOOD.subject, marks=marks, **fields)
    with pytest.raises(CertificateError, match=re.escape(message)):
        GOOD.check(other)
    GOOD.check(GOOD.subject)
    assert other.digest != GOOD.subject.digest == replace(GOOD.subject).digest


def test_a_certificate_applies_only_to_its_template():
    GOOD.check_template("demo/prompt 1")
    with pytest.raises(CertificateError, match="'demo/prompt 1', and this is 'demo/prompt 2'"):
        GOOD.check_template("demo/prompt 2")


def test_a_subject_is_read_from_a_runs_description(tmp_path):
    described = {"model": "org/model", "theta": {}, "chat": None}
    assert Subject.of(described) == Subject("org/model")
    extra = {"revision": "abc", "quantisation": "nf4 (bitsandbytes)", "weights": None}
    marks = {"revision": "abc", "quantisation": "nf4 (bitsandbytes)"}
    chat = {"system": None, "template": "0a", "thinking": None}
    subject = Subject.of(described | extra | {"chat": chat})
    assert subject.marks == marks and "0a" in subject.chat
    # A folder is identified by its name and its content.
    (folder := tmp_path / "checkpoint").mkdir()
    (folder / "config.json").write_text("{}")
    recorded = described | {"model": str(folder), "weights": folder_digests(folder)}
    assert Subject.of(recorded).model == "checkpoint" and set(recorded["weights"]) == {"config"}


OVERRIDE = decided([-1.5, -1.0, -3.0], [-1.0, -1.25, -3.0])
SAME = decided([-1.0, -1.5, -3.0], [-0.2, -1.25, -3.0], operator="mix")


@pytest.mark.parametrize(
    ("policy", "decision", "rule"),
    [
        (Policy(("decisive", "mix"), 0.25), OVERRIDE, None),
        (OFF, SAME, None),
        (Policy(("decisive", "mix"), 1.0), OVERRIDE, "a margin of at least 1 nats"),
        (Policy(("pmi@1",), 0.0, "pmi@1"), OVERRIDE, "only pmi@1 may override"),
        (OFF, OVERRIDE, "nothing may override"),
    ],
)
def test_an_override_is_allowed_or_withheld(policy, decision, rule):
    terms = Terms(0.02, methods=("trace", "pmi@1"))
    obeyed = certificate(GOOD.subject, policy, terms, 50).obey(decision)
    if rule is None:
        assert obeyed.to_dict() == replace(decision, deferred=False).to_dict()
        return
    assert (obeyed.index, obeyed.operator, obeyed.corrected) == (0, "base", False)
    assert np.array_equal(obeyed.scores, OVERRIDE.base_scores)
    withheld = obeyed.to_dict()["withheld"]
    names = ("rule", "index", "answer", "operator", "scores")
    expected = [rule, 1, "b", "decisive", OVERRIDE.scores.tolist()]
    assert [withheld[name] for name in names] == expected
    assert f"({rule}): the answer stays “a”" in explain(obeyed)


@pytest.mark.parametrize(("policy", "index"), [(GOOD.policy, 1), (OFF, 0)])
def test_deferral_uses_the_scores_of_the_shown_answer(policy, index):
    override = decided([-9.0, -1.0, -9.0], [-1.0, -1.25, -1.5])
    shown = softmax((override.base_scores, override.scores)[index]).max()
    for threshold, deferred in ((shown, False), (shown + 1e-9, True)):
        automation = replace(ANSWERS, rungs=(replace(RUNGS[1], threshold=float(threshold)),))
        decision = replace(GOOD, policy=policy, automation=automation).obey(override)
        assert (decision.index, decision.deferred) == (index, deferred)
