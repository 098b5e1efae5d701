"""`lastword certify`: its summary, file, JSON and refusals."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from populations import Kind, labelled
from synthetic import synthetic_cell, write_cells
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import TraceError
from lastword.records.cells import read_cells
from lastword.rule.geometry import margin
from lastword.trust.calibration import calibrate
from lastword.trust.certificate import Certificate
from lastword.trust.claims import certify
from lastword.trust.terms import Terms
from lastword.trust.words import summary


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_cells(synthetic_cell(benchmark="halueval-qa", items=300), folder)
    return folder


def run(*arguments):
    return CliRunner().invoke(app, ["certify", *map(str, arguments)], catch_exceptions=False)


def test_a_file_and_json(runs, tmp_path):
    terms = "--promise", "breaks", "--alpha", 0.4, "--error", 0.75
    out = tmp_path / "certificate.toml"
    result = run(runs, *terms, "--out", out)
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == str(out)
    certificate = Certificate.read(out)
    assert certificate.terms == Terms(0.4, 0.05, 0.75)
    output = json.loads(run(runs, *terms, "--json").stdout)
    assert output["policy"]["operators"] == list(certificate.policy.operators)
    assert output["policy"]["margin"] == certificate.policy.margin
    assert output["threshold"] == certificate.threshold and len(output["estimates"]) == 3


def test_a_temperature_is_fitted_on_the_answers_under_the_certificate(runs, tmp_path):
    out = tmp_path / "certificate.toml"
    lines = run(runs, "--alpha", 0.4, "--calibrate", "--out", out).stdout.splitlines()
    certificate = Certificate.read(out)
    calibration = certificate.calibration
    assert calibration is not None and Certificate.from_dict(certificate.to_dict()) == certificate
    (line,) = (line for line in lines if line.startswith("Probabilities: temperature"))
    assert f"{calibration.temperature:.3g}, fitted to {calibration.items} items" in line
    (cell,) = read_cells(Path(runs))
    frame = cell.whole(cell.answer_places[cell.mc1_places])
    scores, truths = [], []
    for row in frame.itertuples():
        allowed = certificate.policy.withholds(row.operator, margin(np.array(row.scores))) is None
        shown = row.scores if row.index == row.base_index or allowed else row.base_scores
        if sum(row.truthful) == 1:
            scores.append(np.array(shown, dtype=float))
            truths.append(list(row.truthful).index(True))
    assert calibrate(scores, truths) == calibration
    output = json.loads(run(runs, "--alpha", 0.4, "--calibrate", "--json").stdout)
    assert output["calibration"] == asdict(calibration)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--promise", "breaks", "--alpha", 0.01], "300 .* at least 437 groups are needed"),
        (["runs", "--alpha", 2], "alpha .* not 2.0"),
        (["runs", "--benchmark", "demo"], "records of demo"),
        (["runs", "--out", "nowhere/c.toml"], "no folder"),
        (["probe", "--error", 0.1], r"answers by a probe.*lastword try FILE --error 0\.1"),
        (["none.csv"], r"cannot read .*\.csv: No such file"),
        (["table.csv", "--error", 0], "a share between 0 and 1, not 0"),
        (["table.csv", "--delta", 0], "a share between 0 and 1, not 0"),
    ],
)
def test_too_little_and_invalid_options_are_refused(
    runs, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to(runs)
    Path("probe").mkdir()
    Path("probe/answer.probe.safetensors").touch()
    Path("table.csv").write_text("prediction,truth\na,a\n", encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        run(*arguments)


RIGHT = Kind(1, True, True)
FIXED, BROKEN = Kind(1, False, True, "decisive"), Kind(1, True, False, "decisive")
EARLY = Kind(1, True, False, "early", 0.3)
WIDE, CLOSE = replace(FIXED, margin=5), replace(BROKEN, margin=0.1)
WORDS = [
    ([FIXED] * 30 + [EARLY] * 20 + [RIGHT] * 250, Terms(0.05, error=0.3), 2),
    ([FIXED] * 12 + [BROKEN] * 3 + [RIGHT] * 285, Terms(0.02, error=0.01), 0),
    ([BROKEN] * 300, Terms(0.02), 0),
    ([FIXED] * 90 + [BROKEN] * 60 + [RIGHT] * 150, Terms(0.02), 0),
    ([WIDE] * 40 + [CLOSE] * 45 + [RIGHT] * 215, Terms(0.04), 0),  # a gain at smaller margins too
]


def test_certificates_and_refusals_in_words(golden):
    summaries = []
    for kinds, terms, failed in WORDS:
        finding = certify(labelled(kinds), "early", terms)
        summaries.append("\n".join(summary(finding, "org/m", "a and b", failed)))
    golden("certify-words", "\n\n".join(summaries) + "\n")
