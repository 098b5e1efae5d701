"""`lastword decide`: one text, a file of texts, and runs that resume."""

import csv
import io
import json
import re

import pytest

from lastword import Choice, Decider, ProbeClassifier, Tracer
from lastword.decide.answer import row_of
from lastword.decide.questions_file import read_questions, write_questions
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.probes import Probe, fit_state

MODEL = ("--model", "lastword/demo-organism")
TEXT = "The folk of Baevwick send clay lamps."
QUESTIONS = """
goods:
  type: choice
  instructions: Which goods come from Baevwick?
  choices: [green wool combs, clay lamps]
lake: {type: predicate, instructions: 'Is there a lake?'}
far: {type: score, levels: [near, far, "=very far"]}
"""


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.yaml"
    path.write_text(QUESTIONS)
    return path


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.csv"
    rows = "".join(f'"=t{i}","{TEXT} It is number {i}, of the lake."\n' for i in range(5))
    path.write_text("id,text\n" + rows)
    return path


def test_one_text_is_answered_as_in_python_or_from_standard_input(run, questions, monkeypatch):
    code, out, _ = run("decide", *MODEL, "--questions", questions, "--text", TEXT, "--json")
    expected = Decider.demo().decide(TEXT, read_questions(questions)).to_dict()
    assert code == 0 and json.loads(out) == json.loads(json.dumps(expected))
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT + "\n"))
    code, out, _ = run("decide", *MODEL, "--questions", questions)
    assert code == 0 and "goods" in out and ("yes" in out or "no " in out)


def test_a_run_resumes_after_the_last_whole_answer(run, questions, texts, tmp_path):
    texts.write_text(texts.read_text().replace("=t2", "a\u2028b"), encoding="utf-8")
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    ask = ("decide", *MODEL, "--questions", questions, "--input", texts, "--out")
    code, _, err = run(*ask, whole)
    assert code == 0 and "5 texts" in err
    lines = whole.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:3]) + lines[3][:9])
    code, _, err = run(*ask, cut)
    assert code == 0 and "5 texts, 3 of them before" in err
    one, two = (
        [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] for path in (whole, cut)
    )
    assert [line["id"] for line in two] == ["=t0", "=t1", "a\u2028b", "=t3", "=t4"]
    for a, b in zip(one, two, strict=True):
        assert a["work"] == b["work"]
        p, q = (x["answers"]["lake"]["probability"] for x in (a, b))
        assert p == pytest.approx(q, abs=1e-5)


def test_the_csv_of_many_texts_has_the_columns_of_the_frame(run, questions, texts, tmp_path):
    out = tmp_path / "out.csv"
    code, _, err = run("decide", *MODEL, "--questions", questions, "--input", texts, "--out", out)
    assert code == 0 and "5 texts" in err
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["id"] for row in rows] == [f"'=t{n}" for n in range(5)]  # not a formula
    answers = Decider.demo().decide(
        f"{TEXT} It is number 0, of the lake.", read_questions(questions)
    )
    cells = row_of(answers)
    assert list(rows[0]) == ["id", *cells, "error"]
    assert rows[0]["lake"] == str(cells["lake"])
    for name in ("goods.probability", "lake.confidence", "far"):
        assert float(rows[0][name]) == pytest.approx(cells[name], abs=1e-5)


def test_answers_to_other_questions_or_texts_are_not_overwritten(run, questions, texts, tmp_path):
    question, decider = read_questions(questions)["goods"], Decider.demo()
    tracer, ready = decider.tracer, decider.prepare({"goods": question})
    labelled = ["wool from sheep", "combs of wool", "lamps of clay", "a lamp burns"]
    states = read_states(tracer, labelled, question, ready.template, ("mean",))
    fit = fit_state(states, ["green wool combs"] * 2 + ["clay lamps"] * 2, poolings=("mean",))
    path, other = tmp_path / "goods.probe.safetensors", tmp_path / "other.yaml"
    Probe(question, ready.template_name, subject_of(tracer), fit.probe, 4).write(path)
    other.write_text("lake: {type: predicate, instructions: 'Is there a sea?'}")
    edited = tmp_path / "edited.csv"
    edited.write_text(texts.read_text().replace("number 3", "number 33"))
    bare = ("--input", texts, "--questions", questions)
    probe = (*bare, "--probe", path)
    pairs = [
        (bare, ("--input", texts, "--questions", other)),
        (bare, ("--input", edited, "--questions", questions)),
        (bare, probe),
        (probe, (*probe, "--novelty", "0.25")),
    ]
    for number, (first, second) in enumerate(pairs):
        ask = ("decide", *MODEL, "--out", out := tmp_path / f"{number}.jsonl")
        assert run(*ask, *first)[0] == 0
        before = out.read_bytes()
        code, _, err = run(*ask, *second)
        assert code == 1 and "answers to other questions" in err and out.read_bytes() == before


def test_a_missing_column_is_refused_with_the_names_of_the_others(run, questions, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("body,who\nHi,me\n")
    ask = ("decide", *MODEL, "--questions", questions, "--input", path)
    code, _, err = run(*ask)
    assert code == 1 and "--text-column names one of body, who" in err
    code, out, _ = run(*ask, "--text-column", "body")
    assert code == 0 and json.loads(out)["id"] == "row 1"


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_an_invalid_row_has_an_error(run, questions, tmp_path, ending):
    texts, out = tmp_path / "texts.jsonl", tmp_path / f"out.{ending}"
    rows = [{"id": "a", "text": TEXT}, {"id": "b", "text": "a\0b"}, {"id": "c"}]
    rows += [{"id": "d", "text": " "}, {"id": "\ud800", "text": "\ud800"}]
    lines = [*map(json.dumps, rows), "{", '{"id": "e", "text": 5}', json.dumps({"text": TEXT})]
    texts.write_text("\n".join(lines))
    ask = ("decide", *MODEL, "--questions", questions, "--input", texts)
    code, _, err = run(*ask, "--out", out)
    assert code == 1 and "8 texts" in err and "6 texts could not be read; `error` says why" in err
    raw = out.read_text()
    if ending == "csv":
        result = list(csv.DictReader(io.StringIO(raw)))
        assert [row["lake"] != "" for row in result] == [True, *[False] * 6, True]
    else:
        result = [json.loads(line) for line in raw.splitlines()]
        assert ["answers" in row for row in result] == [True, *[False] * 6, True]
        code, printed, err = run(*ask)
        assert code == 1 and "6 texts could not be read" in err
        bare = [{key: row[key] for key in row if key != "work"} for row in result]
        assert [json.loads(line) for line in printed.splitlines()] == bare
    assert [row["id"] for row in result] == ["a", "b", "c", "d", "\\ud800", "line 6", "e", "line 8"]
    reasons = ("NUL", "--text-column", "no text", "surrogate", "not JSON", "not int")
    for row, reason in zip(result[1:7], reasons, strict=True):
        assert reason in row["error"]
    code, _, err = run(*ask, "--out", out)
    assert code == 1 and "6 texts could not be read" in err and out.read_text() == raw
    assert ("8 of them before" in err) is (ending == "jsonl")


def test_a_too_long_text_is_truncated_only_on_request(run, questions):
    long = " ".join([TEXT] * 40)
    ask = ("decide", *MODEL, "--questions", questions, "--text", long, "--json")
    code, out, err = run(*ask)
    assert code == 1 and not out
    assert re.search(r"with its prompt needs \d+ tokens and the model's context is 128", err)
    code, out, _ = run(*ask, "--load", "overflow=truncate")
    cut = Decider.demo(overflow="truncate").decide(long, read_questions(questions)).to_dict()
    assert code == 0 and json.loads(out) == json.loads(json.dumps(cut))


def test_certify_leaves_out_rows_that_trained_the_probe(run, tmp_path):
    topics = {"wool": "sheep", "lamp": "light"}
    texts = [f"{word} number {n}" for word in topics.values() for n in range(10)]
    labels = [name for name in topics for _ in range(10)]
    classifier = ProbeClassifier(Tracer.demo(), "Which goods?").fit(texts, labels)
    probe, table, out = (tmp_path / name for name in ("p.probe.safetensors", "t.csv", "out.csv"))
    classifier.probe_.write(probe)
    question = {"goods": Choice("Which goods?", [*topics])}
    write_questions(tmp_path / "q.yaml", question)
    fresh = [f"{word} and {n} more" for word in topics.values() for n in range(10)]
    table.write_text("\n".join(["text", *texts, *fresh]))
    ask = ("decide", *MODEL, "--questions", tmp_path / "q.yaml", "--probe", probe)
    assert run(*ask, "--input", table, "--out", out)[0] == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["trained"] for row in rows] == ["True"] * 20 + ["False"] * 20
    named = [row | {"truth": "wool" if n // 10 % 2 == 0 else "lamp"} for n, row in enumerate(rows)]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, named[0])
        writer.writeheader()
        writer.writerows(named)
    columns = ("--prediction-column", "goods", "--confidence-column", "goods.probability")
    code, printed, err = run("certify", table, *columns, "--error", "0.5")
    assert code == 0 and "of 20 labelled rows" in printed and "20" in err
