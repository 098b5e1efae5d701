"""A certificate is obeyed by the tracer, and so by every command: nothing else is allowed."""

import json
from dataclasses import replace

import populations
import pytest
from typer.testing import CliRunner

from lastword import Decider, Tracer
from lastword.cli import app
from lastword.errors import CertificateError, InputError
from lastword.lab.benchmarks.demo import items
from lastword.records.frame import load_records
from lastword.records.info import find_cells, read_run
from lastword.rule.geometry import margin
from lastword.rule.theta import Theta
from lastword.trust.certificate import Certificate, Subject
from lastword.trust.policy import OFF, Policy
from lastword.trust.terms import Terms

MODEL = "lastword/demo-organism"
TEMPLATE = "demo/prompt 1 (a3ab503dc64d)"


def certificate(policy, **changes):
    known = {"templates": (TEMPLATE,), "answered": 300, "wrong": 0.03}
    made = populations.certificate(Decider.demo().subject, policy, Terms(error=0.1), 9, **known)
    return replace(made, **changes)


@pytest.fixture(scope="module")
def asked():
    return items()[:60]


@pytest.fixture(scope="module")
def free(asked):
    return list(Tracer.demo().correct_many(asked))


def test_a_tracer_lets_through_what_its_certificate_does(asked, free):
    policy = Policy(("decisive", "early"), 3.0)
    held = list(Decider.demo(certificate=certificate(policy)).correct_many(asked))
    for was, stands in zip(free, held, strict=True):
        if was.corrected and policy.withholds(was.operator, margin(was.scores)):
            assert stands.index == was.base_index and stands.withheld.index == was.index
        else:
            assert stands.index == was.index and stands.withheld is None
    assert {bool(d.withheld) for d in held if d.withheld or d.corrected} == {True, False}


def test_a_certificate_of_something_else_is_refused(tmp_path):
    other = certificate(OFF, subject=Subject("org/other"))
    with pytest.raises(CertificateError, match="'org/other', .*organism'"):
        Decider.demo(certificate=other)
    path = tmp_path / "c.toml"
    path.write_text(certificate(OFF).to_toml())
    with pytest.raises(CertificateError, match="tau_dim = 1.0015, not 1.1"):
        Decider.demo(certificate=path, theta=Theta(tau_dim=1.1))
    assert Decider.demo(certificate=path).describe()["certificate"]["policy"]["operators"] == ()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "certificate.toml"
    path.write_text(certificate(OFF, threshold=0.99).to_toml())
    return path


def command(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_correct_says_what_was_withheld(asked, free, file, tmp_path):
    place = next(i for i, decision in enumerate(free) if decision.corrected)
    item = asked[place]
    given = ["correct", "--model", MODEL, "--prompt", item.prompt, "--certificate", file]
    given += [part for text in item.candidates for part in ("--candidate", text)]
    told = json.loads(command(*given, "--json").stdout)
    assert told["withheld"]["answer"] == free[place].answer
    assert told["answer"] == free[place].base_answer and not told["corrected"]
    assert told["deferred"] and told["withheld"]["rule"] == "nothing may override"
    shown = command(*given).stdout
    assert "withheld" in shown and "nothing may override" in shown and "deferred" in shown
    refused = command(*given, "--method", "base-sum", code=2)
    assert "--certificate" in refused.stderr


def test_eval_records_what_was_withheld_and_takes_the_same_template(file, tmp_path):
    given = ["eval", "--model", MODEL, "--benchmark", "demo", "--limit", 40, "--certificate", file]
    command(*given, "--out", tmp_path / "runs")
    records = load_records(tmp_path / "runs")
    withheld = records[records["withheld"].notna()]
    assert len(withheld) and (records["index"] == records["base_index"]).all()
    assert set(withheld["operator"]) == {"base"}
    assert {w["rule"] for w in withheld["withheld"]} == {"nothing may override"}
    assert records["deferred"].any()
    (cell,) = find_cells(tmp_path / "runs")
    assert read_run(cell)["certificate"]["threshold"] == 0.99
    other = tmp_path / "other.jinja"
    other.write_text("{{ prompt }} ")
    with pytest.raises(CertificateError, match="'demo/prompt 1"):
        command(*given, "--template", other, "--out", tmp_path / "more")


def test_the_harness_obeys_too(file):
    from lastword.integrations.lm_eval import CorrectedLM

    lm = CorrectedLM(MODEL, certificate=str(file))
    assert lm.decider.certificate == Certificate.read(file)
    with pytest.raises(InputError, match="needs method=trace"):
        CorrectedLM(MODEL, method="base-sum", certificate=str(file))
