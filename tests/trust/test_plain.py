"""Certificates of plain tables: their promises hold, and invalid tables are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from populations import counted
from scipy.stats import beta
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import CertificateError, InputError
from lastword.trust.certificate import Certificate
from lastword.trust.predictions import (
    PredictionMonitor,
    certify_plain,
    plain_table,
    read_plain,
)
from lastword.trust.testing import paired_bound

LABELS = ("a", "b", "c")


def draw_rows(count: int, seed: int, labelled: int = 10**6) -> list[dict[str, str]]:
    """Return rows, right with probability 0.7 + 0.3 confidence, with a rival's of 0.7."""
    draw, rows = np.random.default_rng(seed), []
    for place in range(count):
        sure, truth = draw.random(), str(draw.choice(LABELS))
        right, rival = draw.random() < 0.7 + 0.3 * sure, draw.random() < 0.7
        row = {
            "prediction": truth if right else "z",
            "rival": truth if rival else "y",
            "confidence": f"{sure:.6f}",
            "truth": truth if place < labelled else "",
        }
        rows.append(row)
    return rows


def test_counts_agree_with_the_table():
    rows = draw_rows(300, 1, labelled=200)
    certificate = certify_plain(plain_table(rows)).certificate
    pairs = [(r["prediction"] == r["truth"], r["rival"] == r["truth"]) for r in rows[:200]]
    ((trial,), worth) = certificate.trials, certificate.worth
    counts = trial.evidence
    assert counts.fixed == sum(ours and not theirs for ours, theirs in pairs)
    assert counts.broken == sum(theirs and not ours for ours, theirs in pairs)
    right = sum(ours for ours, _ in pairs)
    exact = beta.ppf(0.025, right, 200 - right + 1)
    assert worth["accuracy_at_least"] == pytest.approx(exact)
    assert worth["net_at_least"] == paired_bound(counts.fixed, counts.broken, 200, 0.025)
    tied = replace(trial, evidence=counted(200, 6, 6))
    assert "net_at_least" not in replace(certificate, trials=(tied,)).worth


def test_rows_that_trained_the_system_prove_nothing():
    rows = draw_rows(200, 8)
    marked = [row | {"trained": "true"} for row in draw_rows(100, 9)]
    table = plain_table([row | {"trained": ""} for row in rows] + marked)
    assert "left out 100 rows that trained the system" in table.notes[-1]
    alone, others = certify_plain(plain_table(rows), error=0.2), certify_plain(table, error=0.2)
    assert others.errors == alone.errors and table.labelled.sum() == 200


def test_copies_do_not_improve_the_bounds():
    rows = draw_rows(100, 2)
    single = certify_plain(plain_table(rows)).certificate
    grouped = [row | {"group": str(place)} for place, row in enumerate(rows)] * 5
    texts = [row | {"text": f"Text {place}!"} for place, row in enumerate(rows)] * 5
    for copied in (grouped, texts):
        finding = certify_plain(plain_table(copied)).certificate
        assert (finding.errors.items, finding.errors.groups) == (500, 100)
        for name in ("accuracy_at_least", "net_at_least"):
            assert finding.worth.get(name, 0) <= single.worth.get(name, 0)


def test_share_and_errors_by_class_agree_with_the_rows():
    finding = certify_plain(plain_table(rows := draw_rows(300, 3)), error=0.2)
    least = finding.certificate.threshold
    for one in finding.classes:
        of_class = [row for row in rows if row["truth"] == one.name]
        given = [row for row in of_class if float(row["confidence"]) >= least]
        wrong = [row for row in given if row["prediction"] != row["truth"]]
        assert (one.items, one.share) == (len(of_class), len(given) / len(of_class))
        assert one.error == pytest.approx(len(wrong) / len(given))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "ours.jsonl"
    path.write_text("\n".join(map(json.dumps, draw_rows(800, 6, labelled=600))), encoding="utf-8")
    return path


def run(*command: object, **more: Any):
    return CliRunner().invoke(app, [*map(str, command)], **more)


def test_a_written_certificate_is_read_back_and_edited_ones_are_refused(table, tmp_path):
    out = tmp_path / "out" / "certificate.toml"
    done = run("certify", table, "--out", out)
    assert done.exit_code == 0, done.output
    estimates, forecast, first, *_ = done.stdout.splitlines()
    assert estimates.startswith("Estimated share of texts") and forecast.startswith("About 82 new")
    assert first.startswith("ours is better than its rival by at least ")
    assert "guessed: prediction is column prediction" in done.stderr
    worth = Certificate.read(out).worth
    page = out.with_suffix(".html").read_text(encoding="utf-8")
    assert f"at least {100 * worth['net_at_least']:.1f} points" in page and "<svg" in page
    done = run("certify", table, "--error", "0.15", "--out", out)
    assert done.stdout.startswith("Answers 65% of texts with at most 15% wrong (95% confidence): ")
    finding = certify_plain(read_plain(table), error=0.15).certificate
    *passed, last = [rung.errors.p(0.15) <= 0.05 for rung in finding.automation.rungs]
    assert passed and all(passed) and not last  # the first failure ends the tests
    read = Certificate.read(out)
    assert replace(read, date=finding.date) == finding
    table = finding.to_dict()
    table["automation"]["rungs"][0]["share"] += 0.1
    with pytest.raises(CertificateError, match="edited by hand"):
        Certificate.from_dict(table)


def test_shares_of_delta_that_do_not_add_up_are_refused(table):
    certificate = certify_plain(read_plain(table)).certificate
    (trial,) = certificate.trials
    with pytest.raises(InputError, match="do not add up to delta"):
        replace(certificate, trials=(replace(trial, share=1.0),))


@pytest.fixture
def monitor(table) -> PredictionMonitor:
    return PredictionMonitor(certify_plain(read_plain(table), error=0.15).certificate)


def test_a_monitor_counts_given_and_labelled_answers_and_alarms(monitor):
    least, right = monitor.threshold, {"prediction": "a", "truth": "a"}
    for _ in range(500):
        monitor.see(right | {"confidence": str(least)})
        monitor.see({"prediction": "a", "truth": "b", "confidence": str(least - 1e-6)})  # not given
        monitor.see({"prediction": "a", "truth": "", "confidence": "1"})  # given, not labelled
        monitor.see(right | {"truth": "b", "confidence": "1", "trained": "true"})
    state = monitor.state
    assert (monitor.read, monitor.given, state.labelled, state.broken) == (2000, 1500, 500, 0)
    for _ in range(100):
        monitor.see({"prediction": "a", "truth": "b", "confidence": "1"})
    assert not state.alarm and monitor.state.alarm and monitor.drift.warned == {"confidence"}


@pytest.mark.parametrize("shared", [{"group": "x"}, {"text": "One  text!"}, {"text": "one TEXT"}])
def test_a_monitor_counts_rows_of_a_group_or_text_once(monitor, shared):
    for n in range(300):
        row = {"group": str(n), "text": f"text {n}"} if n % 2 else shared | {"text": "One text"}
        monitor.see(row | {"prediction": "a", "truth": "aab"[n % 3], "confidence": "1"})
    assert (monitor.read, monitor.state.labelled) == (300, 151)


@pytest.mark.parametrize("name", ["stream.jsonl", "stream.csv", "-"])
def test_monitor_reads_the_table_that_certify_reads(tmp_path, name):
    out, named = tmp_path / "certificate.toml", tmp_path / "named.csv"
    rows = [row | {"y": row["prediction"]} for row in draw_rows(400, 6)]
    keys = ["truth", "confidence", "y"]
    lines = [keys, *([row[key] for key in keys] for row in rows)]
    named.write_text("\n".join(map(",".join, lines)))
    done = run("certify", named, "--prediction-column", "y", "--error", "0.15", "--out", out)
    assert done.exit_code == 0, done.output
    objects = "\n\n".join(json.dumps({key: row[key] for key in keys}) for row in rows)
    text = named.read_text() if name.endswith("csv") else objects
    (path := tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    source = "-" if name == "-" else path
    done = run("monitor", out, source, "--json", input=path.read_bytes())
    assert done.exit_code == 0, done.output
    counts, certificate = json.loads(done.stdout), Certificate.read(out)
    given = [r for r in rows if float(r["confidence"]) >= certificate.threshold]
    assert (counts["read"], counts["given"], counts["labelled"]) == (400, len(given), len(given))
    assert counts["wrong"] == sum(r["y"] != r["truth"] for r in given)
    wrong = json.dumps({"y": "z", "truth": "a", "confidence": 1})
    done = run("monitor", out, input=f"{wrong}\n" * 300)
    assert done.exit_code == 3 and done.stdout.startswith("ALARM: more than 15%")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "row 1: expected an object"),
        ('{"prediction": "a", "confidence": 1e999}', "line 1: .* 1e999 is too large"),
        ('{"prediction": "a", "confidence": true}', "'confidence' is 'true', expected a finite"),
        ('{"prediction": "", "confidence": 1}', "'prediction' is empty"),
        ('{"truth": "a", "confidence": 1}', "no column for the prediction"),
        ('{"prediction": "a"}', "needs a confidence"),
        ("prediction", "line 1: not JSON"),
    ],
)
def test_a_monitor_refuses_what_certify_refuses(monitor, tmp_path, line, message):
    (path := tmp_path / "stream.jsonl").write_text(line)
    with pytest.raises(InputError, match=message):
        monitor.watch(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prediction,truth\n", "no rows"),
        ("prediction,other\na,b\n", "no column for the truth; it has prediction, other"),
        ("prediction,truth\na,\n", "no row has a truth"),
        ("prediction,truth\na,a\n,b\n", "row 2: 'prediction' is empty"),
        ("prediction,truth,confidence\na,a,high\n", "row 1: 'confidence' is 'high'"),
        ("prediction,truth,confidence\na,a,nan\n", "expected a finite number"),
        ("prediction,truth,rival\na,a,\n", "'rival' is empty"),
        ("prediction,truth,trained\na,a,true\n", "all rows with a truth trained the system"),
    ],
)
def test_invalid_tables_are_refused(tmp_path, text, words):
    (path := tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read_plain(path)


def test_predictions_that_differ_only_in_spelling_are_noted() -> None:
    rows = [{"prediction": p, "truth": t} for p, t in [("Yes", "yes"), ("1.0", "1"), ("a", "b")]]
    table = plain_table(rows)
    assert table.notes[-1].endswith("count as different: `1.0` and `1`, `Yes` and `yes`")
    assert not any("spelling" in note for note in plain_table(rows[2:]).notes)


@pytest.mark.parametrize(("answerers", "known"), [("dd", "d"), ("de", ""), (("", "d"), "")])
def test_a_certificate_names_the_answerer_of_all_labelled_rows(answerers, known) -> None:
    rows = [{"prediction": "a", "truth": "a", "answerer": name} for name in answerers]
    unlabelled = {"prediction": "a", "truth": "", "answerer": "other"}
    assert plain_table([*rows, unlabelled]).subject.answerer == known


def test_answers_that_decide_wrote_are_recognised() -> None:
    row = {"team": "a", "team.probability": "0.9", "team.confidence": "0.8", "truth": "a"}
    columns = plain_table([row]).columns
    assert (columns["prediction"], columns["confidence"]) == ("team", "team.probability")
