"""The tracer and every command apply a certificate."""

import json
from dataclasses import replace

import populations
import pytest
from typer.testing import CliRunner

from lastword import Decider, Tracer
from lastword.cli import app
from lastword.errors import CertificateError, InputError
from lastword.lab.demo import items
from lastword.records.cells import load_records
from lastword.records.info import find_cells, read_run
from lastword.rule.geometry import margin
from lastword.rule.theta import Theta
from lastword.trust.certificate import Certificate
from lastword.trust.policy import OFF, Policy
from lastword.trust.subject import Subject
from lastword.trust.terms import Terms

MODEL = "lastword/demo-organism"
TEMPLATE = "demo/prompt 1 (a3ab503dc64d)"


def certificate(policy, **changes):
    subject, terms = Decider.demo().subject, Terms(error=0.1)
    base = populations.certificate(subject, policy, terms, 9, templates=(TEMPLATE,))
    return replace(base, **changes)


@pytest.fixture(scope="module")
def demo_items():
    return items()[:60]


@pytest.fixture(scope="module")
def uncertified(demo_items):
    return list(Tracer.demo().correct_many(demo_items))


def test_a_decider_applies_only_the_overrides_that_its_certificate_allows(demo_items, uncertified):
    policy = Policy(("decisive", "early"), 3.0)
    certified = list(Decider.demo(certificate=certificate(policy)).correct_many(demo_items))
    for before, after in zip(uncertified, certified, strict=True):
        if before.corrected and policy.withholds(before.operator, margin(before.scores)):
            assert after.index == before.base_index and after.withheld.index == before.index
        else:
            assert after.index == before.index and after.withheld is None
    assert {bool(d.withheld) for d in certified if d.withheld or d.corrected} == {True, False}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "certificate.toml"
    path.write_text(certificate(OFF, automation=populations.above(0.99)).to_toml())
    return path


def test_a_certificate_of_another_model_theta_or_method_is_refused(file):
    other = certificate(OFF, subject=Subject("org/other"))
    with pytest.raises(CertificateError, match="'org/other', .*organism'"):
        Decider.demo(certificate=other)
    with pytest.raises(CertificateError, match="tau_dim = 1.0015, not 1.1"):
        Decider.demo(certificate=file, theta=Theta(tau_dim=1.1))
    with pytest.raises(CertificateError):
        Decider.demo(certificate=file, correction="base-sum")


def command(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_correct_shows_a_withheld_override(demo_items, uncertified, file):
    place = next(i for i, decision in enumerate(uncertified) if decision.corrected)
    item = demo_items[place]
    args = ["correct", "--model", MODEL, "--prompt", item.prompt, "--certificate", file]
    args += [part for text in item.candidates for part in ("--candidate", text)]
    output = json.loads(command(*args, "--json").stdout)
    assert output["withheld"]["answer"] == uncertified[place].answer
    assert output["answer"] == uncertified[place].base_answer and not output["corrected"]
    assert output["deferred"] and output["withheld"]["rule"] == "nothing may override"
    shown = command(*args).stdout
    assert "withheld" in shown and "nothing may override" in shown and "deferred" in shown


def test_eval_records_withheld_overrides_and_needs_the_certified_template(file, tmp_path):
    args = ["eval", "--model", MODEL, "--benchmark", "demo", "--limit", 40, "--certificate", file]
    command(*args, "--out", tmp_path / "runs")
    records = load_records(tmp_path / "runs")
    withheld = records[records["withheld"].notna()]
    assert len(withheld) and (records["index"] == records["base_index"]).all()
    assert {w["rule"] for w in withheld["withheld"]} == {"nothing may override"}
    assert records["deferred"].any()
    (cell,) = find_cells(tmp_path / "runs")
    assert read_run(cell)["certificate"]["threshold"] == 0.99
    (other := tmp_path / "other.jinja").write_text("{{ prompt }} ")
    with pytest.raises(CertificateError, match="'demo/prompt 1"):
        command(*args, "--template", other, "--out", tmp_path / "more")


def test_the_harness_applies_the_certificate(file):
    from lastword.integrations.lm_eval import CorrectedLM

    lm = CorrectedLM(MODEL, certificate=str(file))
    assert lm.decider.certificate == Certificate.read(file)
    with pytest.raises(InputError, match="needs method=trace"):
        CorrectedLM(MODEL, method="base-sum", certificate=str(file))
