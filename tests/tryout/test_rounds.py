"""The rows to label: `labels.csv`, the verdict of a frozen policy, and invalid input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from topics import hidden, probe_of, run_try, table, write_csv

from lastword import Decider, Tracer
from lastword.errors import CertificateError, InputError
from lastword.files.rows import read_objects
from lastword.probes import Probe
from lastword.trust.certificate import Certificate
from lastword.trust.second_round import FIRST, DrawnRows
from lastword.trust.terms import Terms
from lastword.tryout.labels import Labels, read_labels
from lastword.tryout.rounds import begun, read_trial
from lastword.tryout.second_round import PoolRow, SecondRound
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")

NAMED = TableOptions(choices="animal,money")
TERMS = Terms(promise="gain", alpha=0.05)


def fill(out: Path, truths: dict[str, str], skipped: int = 0) -> list[dict[str, str]]:
    """Label the rows of the last round in `labels.csv`, but not the first few."""
    rows = read_objects(out / "labels.csv")
    last = [row for row in rows if row["round"] == rows[-1]["round"]]
    for row in last[skipped:]:
        row["label"] = truths[row["text"]]
    write_csv(out / "labels.csv", rows)
    return last


def of_rows(rows: tuple[PoolRow, ...], pool: int, **more: Any) -> SecondRound:
    """Return a second round of these rows."""
    probe = probe_of(Tracer.demo(), threshold=0.2)
    terms = replace(TERMS, methods=(probe.name,), error=more.pop("error", None))
    return SecondRound(probe, terms, (1.0,) * pool, rows, **more)


def test_labels_of_differing_rows_prove_a_gain(tmp_path: Path) -> None:
    rows = table(150)
    truths = {row["text"]: row["label"] for row in rows}
    path, out = write_csv(tmp_path / "topics.csv", hidden(rows, 30)), tmp_path / "out"
    for _ in range(2):  # without a label, the rows are drawn again
        done = run_try(path, "--out", out, "--budget", "0")
        assert str(out / "labels.csv") in done.stdout and "the gain of a probe" in done.stdout
    drawn = read_objects(out / "labels.csv")
    assert {row["round"] for row in drawn} == {"2"} and not any(row["label"] for row in drawn)
    assert not {row["text"] for row in drawn} & {row["text"] for row in rows[:30]}
    labels, state = read_labels(path), (out / "second-round.json").read_bytes()
    for bad, why in (
        ([drawn[0] | {"text": "an edited text"}], "line 2: its text is not in the table"),
        ([*drawn, drawn[0]], "twice"),
        ([drawn[0] | {"round": "two"}], "round is not a number"),
        ([{"text": row["text"], "round": row["round"]} for row in drawn], "no column 'label'"),
        ([*drawn, rows[0] | {"round": "2"}], "not drawn for this policy"),
    ):
        write_csv(out / "labels.csv", [{name: row.get(name, "") for name in bad[0]} for row in bad])
        with pytest.raises(InputError, match=why):
            begun(out, labels, TERMS)
    assert (out / "second-round.json").read_bytes() == state
    write_csv(out / "labels.csv", drawn)
    assert begun(out, labels, TERMS) is None
    assert len(fill(out, truths, skipped=1)) == len(drawn)
    for _ in range(2):  # the verdict is the same again
        done = run_try(path, "--out", out)
        assert "Proven with 95% confidence" in done.stdout
        assert "1 of them skipped" in done.stdout
    certificate = Certificate.read(out / "certificate.toml")
    second, probe = certificate.second, Probe.read(out / "answer.probe.safetensors")
    assert second is not None and second.rows == len(drawn) and second.skipped == 1
    assert certificate.worth["net_at_least"] == second.gain_bound(0.025)
    assert certificate.probe is not None and certificate.probe.digest == probe.digest
    assert probe.labels == 30 and probe.threshold is not None
    with pytest.raises(InputError, match="do not give its promise"):
        replace(certificate, second=replace(second, look=30))
    damaged = tmp_path / "damaged.toml"
    text = (out / "certificate.toml").read_text()
    damaged.write_text(text.replace(f"differ = {second.differ}", "differ = 1"))
    with pytest.raises(CertificateError, match="do not fit together"):
        Certificate.read(damaged)
    decider = Decider(Tracer.demo(), probes=[probe], certificate=certificate)
    answer = decider.decide(rows[40]["text"], {"q": probe.question})["q"]
    assert answer.to_dict()["by"] in ("probe", "model")
    fill(out, dict.fromkeys(truths, "animal"))
    with pytest.raises(InputError, match="when it was tested, and cannot change"):
        begun(out, labels, TERMS)


def test_without_proof_the_remaining_rows_are_drawn_in_further_looks() -> None:
    rows = tuple(PoolRow(str(i), f"text {i}", "animal", "money") for i in range(90))
    second = of_rows(rows, 200)
    for look, size in enumerate((40, 40, 10), start=1):
        drawn = second.ask()
        assert [row.id for row in drawn] == [row.id for row in rows[40 * look - 40 :][:size]]
        second.labels |= {row.id: ("animal", "money")[i % 2] for i, row in enumerate(drawn)}
        again = SecondRound.from_json(second.to_json(), second.probe)
        proof = again.verdict()
        half = min(40 * look, 90) // 2
        assert proof.certificate is None and "Not proven" in proof.words
        assert proof.drawn == DrawnRows(200, 90, 2 * half, half, half, look=look)
    with pytest.raises(InputError, match="another policy"):
        SecondRound.from_json(second.to_json(), replace(second.probe, labels=7))


def test_a_label_that_is_no_option_counts_as_wrong_and_is_named() -> None:
    rows = tuple(PoolRow(str(i), f"text {i}", "animal", "money") for i in range(40))
    second = of_rows(rows, 200)
    second.ask()
    second.labels |= {row.id: "plant" if i < 3 else "animal" for i, row in enumerate(rows)}
    proof = second.verdict()
    assert proof.drawn == DrawnRows(200, 40, 40, fixed=37, broken=0)
    assert proof.certificate is not None and "`plant` (3 rows)" in proof.words
    assert "--choices" in proof.words


def test_the_first_rows_of_an_unlabelled_table_are_drawn_and_their_labels_read(
    tmp_path: Path,
) -> None:
    rows = table(100)
    rows[3]["text"] = f"=SUM({rows[3]['text']})"  # written with a ' in front
    truths = {row["text"]: row["label"] for row in rows}
    lines = [json.dumps({"text": row["text"]}) for row in [*rows, rows[0]]]
    (path := tmp_path / "texts.jsonl").write_text("\n".join([*lines, "{broken"]))
    out = tmp_path / "out"
    for _ in range(2):  # the rows stay the same
        words = read_trial(str(path), NAMED, out)
        assert isinstance(words, str) and str(out / "labels.csv") in words
        assert "left out 1 row: line 102" in words
        first = read_objects(out / "labels.csv")
    assert len(first) == FIRST and len({row["text"] for row in first}) == FIRST
    assert {*first[0]} == {"id", "text", "round", "label"}
    # A spreadsheet may rewrite ids and ends of lines.
    filled = [
        row | {"id": "", "label": truths[row["text"].removeprefix("'")], "text": f"{row['text']}\n"}
        for row in first
    ]
    write_csv(out / "labels.csv", filled)
    labels = read_trial(str(path), NAMED, out)
    assert isinstance(labels, Labels) and labels.name == "texts"
    assert {text: truth for text, _, truth, *_ in labels.rows} == {
        row["text"].strip().removeprefix("'"): row["label"] for row in filled
    }
    assert len(labels.pool) == 40 and "left out 1 row: line 102" in labels.notes[0]
    write_csv(out / "labels.csv", [row | {"label": "mony"} for row in filled])
    with pytest.raises(InputError, match="the label 'mony' is not one of its choices"):
        read_trial(str(path), NAMED, out)
    assert isinstance(read_trial(str(write_csv(tmp_path / "some.csv", rows)), NAMED, out), Labels)
