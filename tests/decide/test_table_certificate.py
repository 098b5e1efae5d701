"""A certificate of the table that `decide` wrote defers the same answerer's answers."""

import csv

import pytest
from topics import QUESTION, probe_of, write_csv

from lastword import Choice, Decider, Tracer
from lastword.decide.questions_file import write_questions
from lastword.errors import CertificateError
from lastword.trust.certificate import Certificate

TEXTS = [f"{i} {word} today" for i in range(60) for word in ("fox", "bill", "cat", "rent")]


@pytest.mark.parametrize("column", ["topic.probability", "topic.confidence"])
def test_a_certificate_of_a_table_holds_for_its_answerer_alone(run, tmp_path, column):
    write_csv(tmp_path / "t.csv", [{"text": text} for text in TEXTS])
    write_questions(tmp_path / "q.yaml", {"topic": QUESTION})
    probe_of(Tracer.demo()).write(tmp_path / "topic.probe.safetensors")
    model = ("--model", "lastword/demo-organism", "--questions", tmp_path / "q.yaml")
    probe = ("--probe", tmp_path / "topic.probe.safetensors")
    files = ("--input", tmp_path / "t.csv", "--out", tmp_path / "a.csv")
    assert run("decide", *model, *files, *probe)[0] == 0
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # The less certain half is wrong in half of the rows.
    middle = sorted(float(row[column]) for row in rows)[len(rows) // 2]
    for i, row in enumerate(rows):
        wrong = float(row[column]) < middle and i // 4 % 2
        row["truth"] = (
            {"animal": "money", "money": "animal"}[row["topic"]] if wrong else row["topic"]
        )
    write_csv(tmp_path / "labelled.csv", rows)
    # The columns of an answer and its probability are found by their names.
    other = column.endswith("confidence")
    names = ("--prediction-column", "topic", "--confidence-column", column) if other else ()
    out = tmp_path / "c" / "certificate.toml"
    code, _, err = run("certify", tmp_path / "labelled.csv", "--error", "0.1", "--out", out, *names)
    assert code == 0, err
    least = Certificate.read(out).threshold
    assert least is not None
    questions = {"topic": QUESTION, "other": Choice("Is it old?", ["yes", "no"])}
    probes = [tmp_path / "topic.probe.safetensors"]
    decider = Decider.demo(probes=probes, certificate=out)
    for row, answers in zip(rows, decider.decide_many(TEXTS, questions), strict=True):
        number = getattr(answers["topic"], column.rpartition(".")[2])
        assert answers["topic"].deferred == (number < least)
        assert number == pytest.approx(float(row[column]), abs=1e-6)
        assert not answers["other"].deferred
    for other in (Decider.demo(certificate=out), Decider.demo("mix", certificate=out)):
        with pytest.raises(CertificateError, match="for another question than these, or"):
            other.decide("a fox", questions)
    certify = ("certify", tmp_path / "labelled.csv", "--out", out, *names, "--error")
    assert run(*certify, "0.001")[0] == 0
    with pytest.raises(CertificateError, match="proves no threshold for its error"):
        Decider.demo(probes=probes, certificate=out)
    bare = [{key: cell for key, cell in row.items() if key != "answerer"} for row in rows]
    write_csv(tmp_path / "bare.csv", bare)
    assert run("certify", tmp_path / "bare.csv", "--error", "0.1", "--out", out, *names)[0] == 0
    with pytest.raises(CertificateError, match="does not name its answerer"):
        Decider.demo(probes=probes, certificate=out)
