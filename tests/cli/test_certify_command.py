"""`lastword certify`: six lines, a file, JSON, and refusals in one line."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from populations import Kind, labelled
from synthetic import synthetic_cell, write_cells
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import TraceError
from lastword.files.folder import locate
from lastword.records.stored import read_cells
from lastword.rule.geometry import margin
from lastword.trust.calibration import calibrate
from lastword.trust.certificate import Certificate
from lastword.trust.certify import certify
from lastword.trust.summary import summary
from lastword.trust.terms import Terms


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_cells(synthetic_cell(benchmark="halueval-qa", items=300), folder)
    return folder


def run(*arguments):
    result = CliRunner().invoke(app, ["certify", *map(str, arguments)])
    if isinstance(result.exception, TraceError):
        raise result.exception
    return result


def test_six_lines_and_a_file(runs, tmp_path):
    out = tmp_path / "certificate.toml"
    result = run(runs, "--alpha", 0.4, "--error", 0.6, "--out", out)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and len(lines) == 8 and lines[7] == str(out)
    assert lines[6].startswith("beside it: what does not read the question would certify: shortest")
    assert lines[0].startswith("tried: 24 policies, decisive or mix or both")
    assert "300 labelled items of halueval-qa by org/model-a" in lines[0]
    made = Certificate.read(out)
    assert made.terms == Terms(0.4, 0.05, True, 0.6)
    told = json.loads(run(runs, "--alpha", 0.4, "--error", 0.6, "--json").stdout)
    assert told["terms"]["gain"]
    assert not json.loads(run(runs, "--alpha", 0.4, "--no-gain", "--json").stdout)["terms"]["gain"]
    assert told["policy"]["operators"] == list(made.policy.operators)
    assert told["policy"]["margin"] == made.policy.margin and len(told["trials"]) == 24
    assert told["deferral"]["threshold"] == made.threshold


def test_a_temperature_is_fitted_on_what_the_certificate_shows(runs, tmp_path):
    out = tmp_path / "certificate.toml"
    lines = run(runs, "--alpha", 0.4, "--calibrate", "--out", out).stdout.splitlines()
    made = Certificate.read(out)
    assert made.calibration is not None and Certificate.from_dict(made.to_dict()) == made
    said = next(line for line in lines if line.startswith("probabilities: temperature"))
    assert f"{made.calibration.temperature:.3g}, of {made.calibration.items} items" in said
    (cell,) = read_cells(locate(runs))
    frame = cell.mc1_items
    scores, truths = [], []
    for row in frame.itertuples():
        stands = made.policy.withholds(row.operator, margin(np.array(row.scores))) is None
        shown = row.scores if row.index == row.base_index or stands else row.base_scores
        if sum(row.truthful) == 1:
            scores.append(np.array(shown, dtype=float))
            truths.append(list(row.truthful).index(True))
    assert calibrate(scores, truths) == made.calibration
    counts = [line.split()[3] for line in lines if line.startswith("  0.")]
    assert sum(map(int, counts)) == made.calibration.items
    told = json.loads(run(runs, "--alpha", 0.4, "--calibrate", "--json").stdout)
    assert told["calibration"] == asdict(made.calibration)


def test_slices_are_told_and_counted(runs):
    lines = run(runs, "--alpha", 0.4, "--by", "answer").stdout.splitlines()
    assert len(lines) == 8 and lines[7].startswith("by answer, ")
    told = json.loads(run(runs, "--alpha", 0.4, "--by", "truth", "--json").stdout)
    chosen = next(t for t in told["trials"] if t["policy"] == told["policy"])
    assert told["by"] == "truth"
    for name in ("items", "fixed", "broken"):
        assert sum(part[name] for part in told["slices"]) == chosen[name]
    (whole,) = json.loads(run(runs, "--alpha", 0.4, "--by", "benchmark", "--json").stdout)["slices"]
    assert (whole["name"], whole["items"]) == ("halueval-qa", 300)
    with pytest.raises(TraceError, match="names no group"):
        run(runs, "--alpha", 0.4, "--by", "group")


def test_slices_go_by_a_field_of_the_items_file(runs, tmp_path):
    path, by = tmp_path / "items.jsonl", ["--by", "language", "--items", tmp_path / "items.jsonl"]
    rows = [{"id": str(n), "language": ["de", "fr", 3][n % 3]} for n in reversed(range(300))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = json.loads(run(runs, "--alpha", 0.4, *by, "--json").stdout)
    assert [(part["name"], part["items"]) for part in told["slices"]] == [
        ("3", 100),
        ("de", 100),
        ("fr", 100),
    ]
    chosen = next(t for t in told["trials"] if t["policy"] == told["policy"])
    assert sum(part["broken"] for part in told["slices"]) == chosen["broken"]
    assert "by language, 3 slices: " in run(runs, "--alpha", 0.4, *by).stdout
    with pytest.raises(TraceError, match="--by takes truth, answer, group, benchmark, or a field"):
        run(runs, "--alpha", 0.4, *by[:2])
    with pytest.raises(TraceError, match="--items goes with --by FIELD"):
        run(runs, "--alpha", 0.4, *by[2:])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    with pytest.raises(TraceError, match="items.jsonl says no language of item 299: give it one"):
        run(runs, "--alpha", 0.4, *by)
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[5]]))
    with pytest.raises(TraceError, match="two rows of .* have the id 294; give each its own"):
        run(runs, "--alpha", 0.4, *by)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--alpha", 0.01], "300 labelled items cannot certify a broken rate of 0.01 at 0.95"),
        (["--alpha", 2], "alpha is a share between 0 and 1, not 2.0"),
        (["--benchmark", "demo"], "no records of demo"),
        (["--out", "nowhere/c.toml"], "there is no folder"),
    ],
)
def test_what_cannot_be_certified_is_refused(runs, arguments, said):
    with pytest.raises(TraceError, match=said):
        run(runs, *arguments)


def told(kinds, terms, failed=0):
    finding = certify(labelled(kinds), "early", terms)
    return summary(finding, "org/m", ["a", "b"], failed)


def test_a_certificate_in_words():
    kinds = [Kind(1, False, True, "decisive")] * 30 + [Kind(1, True, False, "early", 0.3)] * 20
    lines = told(kinds + [Kind(1, True, True)] * 250, Terms(0.05, gain=True, error=0.3), failed=2)
    assert "a and b by org/m (2 failed)" in lines[0]
    assert lines[1] == (
        "let through: overrides by decisive with a margin of at least 4 nats, 30 of 50"
    )
    assert "at most 5% of all answers broken and more fixed than broken" in lines[2]
    assert "with 95% confidence (counted: 0 of 300 broken, 30 fixed)" in lines[2]
    assert "at a probability from 0.05 on are wrong in at most 30%" in lines[2]
    assert lines[4] == (
        "worth: +10 repairs in 100 answers where a break costs 1, +3.2 at least; 0 of 270 right "
        "answers broken, 2.26% at most; of 30 overrides 30 make a wrong answer right, 0 another "
        "wrong one"
    )
    assert lines[5] == "cost: none of 30 repairs is given up"


def test_keep_it_off_in_words():
    kinds = [Kind(1, False, True, "decisive")] * 12 + [Kind(1, True, False, "decisive")] * 3
    lines = told(kinds + [Kind(1, True, True)] * 285, Terms(0.02, error=0.01))
    assert lines[1] == "let through: nothing: keep correction off"
    assert "3 of 300 broken, 12 fixed" in lines[2] and "would do if the rates stay" in lines[2]
    assert "no threshold keeps the errors among answers given at 1%" in lines[2]
    assert lines[4].startswith("cost: 12 of 12 repairs given up, and 3 of 3 breaks spared")
    assert "no look is left" in lines[2]
    second = told(kinds + [Kind(1, True, True)] * 285, Terms(0.03, looks=4, look=2))
    assert "; 2 looks of 4 left" in second[2]
    hopeless = told([Kind(1, True, False, "decisive")] * 300, Terms(0.02))
    assert hopeless[2] == "why: no policy fixed more than it broke"
    assert hopeless[4] == "cost: nothing, there was no gain to lose"
    breaks = [Kind(1, False, True, "decisive")] * 90 + [Kind(1, True, False, "decisive")] * 60
    never = told(breaks + [Kind(1, True, True)] * 150, Terms(0.02))
    assert "no number of items would do if the rates stay" in never[2]
    assert "--gain" not in never[2]
    wide = Kind(1, False, True, "decisive", margin=5)
    close = Kind(1, True, False, "decisive", margin=0.1)
    later = told([wide] * 40 + [close] * 45 + [Kind(1, True, True)] * 215, Terms(0.04))
    assert later[2].startswith("promised: ")  # version 0.2 wanted a gain at smaller margins too
