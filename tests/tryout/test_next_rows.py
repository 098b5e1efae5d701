"""A second round: rows to label, the verdict of a frozen policy, and invalid input."""

import json
from dataclasses import replace
from datetime import date, timedelta
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
from lastword.tryout.labels import read_labels
from lastword.tryout.second_round import (
    DifferingRow,
    SecondRound,
    _offer,
    draw_first,
    finish,
    read_round,
)
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")


def test_labels_of_differing_rows_prove_a_gain(tmp_path: Path) -> None:
    rows = table(150)
    truths = {row["text"]: row["label"] for row in rows}
    path, out = write_csv(tmp_path / "topics.csv", hidden(rows, 30)), tmp_path / "out"
    done = run_try(path, "--out", out, "--budget", "0s")
    assert f"--next {out / 'next.csv'}" in done.stdout and "probability" in done.stdout
    drawn = read_objects(out / "next.csv")
    assert {*drawn[0]} == {"text", "label", "note"} and not any(row["label"] for row in drawn)
    assert not {row["text"] for row in drawn} & {row["text"] for row in rows[:30]}
    filled = [row | {"label": truths[row["text"]]} for row in drawn]
    tracer, labels = Tracer.demo(), read_labels(path)
    before = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    for bad, why in (
        ([*filled[1:], filled[0] | {"text": "an edited text"}], "was not drawn for this policy"),
        ([*filled, rows[0]], "was not drawn for this policy"),
        ([*filled, filled[0]], "twice"),
        ([filled[0] | {"label": "mony"}, *filled[1:]], "'mony' is not one of animal, money"),
    ):
        with pytest.raises(InputError, match=why):
            finish(out, tracer, labels, write_csv(tmp_path / "bad.csv", bad))
    assert before == {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    skipped = [row | {"label": row["label"] * (i > 0)} for i, row in enumerate(filled)]
    labelled = write_csv(tmp_path / "labelled.csv", skipped)
    done = run_try(path, "--out", out, "--next", labelled)
    assert (
        done.stdout.startswith("Proven with 95% confidence") and "1 of them skipped" in done.stdout
    )
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
    decider = Decider(tracer, probes=[probe], certificate=certificate)
    answer = decider.decide(rows[40]["text"], {"q": probe.question})["q"]
    assert answer.to_dict()["by"] in ("probe", "model")


def test_without_proof_the_remaining_rows_are_drawn_in_further_looks() -> None:
    rows = tuple(DifferingRow(str(i), f"text {i}", "animal", "money") for i in range(90))
    second = SecondRound(probe_of(Tracer.demo(), threshold=0.2), "gain", 0.05, 0.05, 200, rows)
    with pytest.raises(InputError, match="tell the labels"):
        second.verdict()
    for look, size in enumerate((40, 40, 10), start=1):
        drawn = second.ask()
        assert [row.id for row in drawn] == [row.id for row in rows[40 * look - 40 :][:size]]
        with pytest.raises(InputError, match="without a label yet"):
            second.ask()
        with pytest.raises(InputError, match="not drawn for this look"):
            second.tell({"89" if look < 3 else "0": "animal"})
        second.tell({row.id: ("animal", "money")[i % 2] for i, row in enumerate(drawn)})
        again = SecondRound.from_json(second.to_json(), second.probe)
        proof = again.verdict()
        half = min(40 * look, 90) // 2
        assert proof.certificate is None and "Not proven" in proof.words
        assert proof.drawn == DrawnRows(200, 90, 2 * half, half, half, look=look)
    with pytest.raises(InputError, match="has been given out"):
        second.ask()
    with pytest.raises(InputError, match="another policy"):
        SecondRound.from_json(second.to_json(), replace(second.probe, labels=7))


def test_the_first_rows_of_an_unlabelled_table_are_drawn_and_their_labels_read(
    tmp_path: Path,
) -> None:
    rows = table(100)
    bare = [{"text": row["text"], "note": row["note"]} for row in rows]
    truths = {row["text"]: row["label"] for row in rows}
    path, out = write_csv(tmp_path / "texts.csv", bare), tmp_path / "out"
    named = TableOptions(choices="animal,money")
    words = draw_first(str(path), named, out)
    assert words is not None and f"--next {out / 'first.csv'}" in words
    first = read_objects(out / "first.csv")
    assert len(first) == FIRST and {*first[0]} == {"text", "note", "label"}
    filled = [row | {"label": truths[row["text"]]} for row in first]
    write_csv(out / "first.csv", filled)
    labels = read_round(str(path), named, out / "first.csv", out)
    assert {text: truth for text, _, truth, *_ in labels.rows} == {
        row["text"]: row["label"] for row in filled
    }
    assert len(labels.pool) == 40 and labels.name == "texts"
    with pytest.raises(InputError, match="has labels: give it by --next"):
        draw_first(str(path), named, out)
    write_csv(out / "first.csv", [*filled, {"text": "not there", "note": "", "label": "animal"}])
    with pytest.raises(InputError, match="row 61: no row of"):
        read_round(str(path), named, out / "first.csv", out)
    assert draw_first(str(write_csv(tmp_path / "some.csv", rows)), named, out) is None


def test_invalid_rows_are_named_when_drawing_and_when_reading_labels(
    tmp_path: Path,
) -> None:
    lines = [json.dumps({"text": f"red fox {n}"}) for n in range(100)]
    (path := tmp_path / "texts.jsonl").write_text("\n".join([*lines, "{broken"]))
    named, out = TableOptions(choices="animal,money"), tmp_path / "out"
    words = draw_first(str(path), named, out)
    assert words is not None and "left out 1 row: line 101" in words
    rows = [row | {"label": "money"} for row in read_objects(out / "first.csv")]
    write_csv(out / "first.csv", rows)
    labels = read_round(str(path), named, out / "first.csv", out)
    assert len(labels.rows) == FIRST and "left out 1 row: line 101" in labels.notes[0]


def labelled(path: Path, truths: dict[str, str], column: str = "label") -> Path:
    """Label the drawn rows in a copy, except the first, as an annotation tool does."""
    rows = read_objects(path)
    for i, row in enumerate(rows):
        del row["label"]
        row[column] = truths[row["text"]] if i else ""
    return write_csv(path.parent / "exported.csv", rows)


def test_both_rounds_can_be_labelled_in_a_copy(tmp_path: Path) -> None:
    rows = table(150)
    bare = [{"text": row["text"], "note": row["note"]} for row in rows]
    truths = {row["text"]: row["label"] for row in rows}
    path, out = write_csv(tmp_path / "texts.csv", bare), tmp_path / "out"
    named = TableOptions(choices="animal,money")
    assert draw_first(str(path), named, out) is not None
    drawn = out / "first.csv"
    before, new = drawn.read_bytes(), tmp_path / "new"
    with pytest.raises(InputError, match="no column 'label' for the labels; it has .*sentiment"):
        read_round(str(path), named, labelled(drawn, truths, "sentiment"), out)
    exported = labelled(drawn, truths)
    for folder in (out, new):
        with pytest.raises(InputError, match="'money' is not one of"):
            read_round(str(path), TableOptions(choices="animal,food"), exported, folder)
    assert drawn.read_bytes() == before and not new.exists()
    labels = read_round(str(path), named, exported, new)
    assert read_round(str(path), named, exported, out).rows == labels.rows
    assert drawn.read_bytes() == (new / "first.csv").read_bytes() != before
    assert len(labels.rows) == FIRST - 1
    assert all(truths[text] == truth for text, _, truth, *_ in labels.rows)
    # Second round: the first labels are in first.csv, from either file.
    differing = tuple(
        DifferingRow(id, text, truths[text], "animal" if truths[text] == "money" else "money")
        for id, text in [*labels.pool.items()][:40]
    )
    figures = {"fixed": 20.0, "broken": 0.0, "changed": 20.0}
    probe = replace(probe_of(Tracer.demo(), threshold=0.2), figures=figures)
    _offer(out, SecondRound(probe, "gain", 0.05, 0.05, 90, differing), labels)
    again = read_round(str(path), named, labelled(out / "next.csv", truths), out)
    assert again.rows == labels.rows
    state = (out / "next.json").read_bytes()
    with pytest.raises(InputError, match="no column 'label' for the labels; it has .*sentiment"):
        finish(out, Tracer.demo(), again, labelled(out / "next.csv", truths, "sentiment"))
    assert (out / "next.json").read_bytes() == state
    proof = finish(out, Tracer.demo(), again, labelled(out / "next.csv", truths))
    assert proof.drawn == DrawnRows(90, 40, 40, 39, 1, 1) and proof.certificate is not None


def write_as(kind: str, path: Path, rows: list[dict[str, Any]]) -> None:
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    path.write_text("\n".join(json.dumps(row, default=str) for row in rows))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_first_round_reads_all_formats(kind: str, tmp_path: Path) -> None:
    texts = [*(row["text"] for row in table(FIRST)), None, " "]
    rows: list[dict[str, Any]] = [
        {"text": text, "nr": i, "day": date(2026, 1, 1) + timedelta(i), "tags": ["é", str(i)]}
        for i, text in enumerate(texts)
    ]
    write_as(kind, path := tmp_path / f"texts.{kind}", rows)
    named, out = TableOptions(choices="animal,money"), tmp_path / "out"
    assert draw_first(str(path), named, out) is not None
    truths = {row["text"]: row["label"] for row in table(FIRST)}
    exported = labelled(out / "first.csv", truths)
    labels = read_round(str(path), named, exported, out)
    assert {text for text, *_ in labels.rows} < {*truths} and len(labels.rows) == FIRST - 1
    assert read_round(str(path), named, out / "first.csv", out).rows == labels.rows


def test_the_first_round_uses_the_encoding_of_the_table(tmp_path: Path) -> None:
    rows = [{"text": f"{row['text']} é"} for row in table(20)]
    (path := tmp_path / "texts.csv").write_text(
        "text\n" + "\n".join(r["text"] for r in rows), "cp1252"
    )
    named, out = TableOptions(choices="animal,money", encoding="cp1252"), tmp_path / "out"
    assert draw_first(str(path), named, out) is not None
    first = [row | {"label": "animal"} for row in read_objects(out / "first.csv")]
    labels = read_round(str(path), named, write_csv(out / "first.csv", first), out)
    assert len(labels.rows) == 20


def test_labels_without_a_second_round_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "topics.csv", hidden(table(20), 10))
    with pytest.raises(InputError, match="no second round was begun"):
        read_round(str(path), TableOptions(), tmp_path / "next.csv", tmp_path)


def test_the_pool_has_one_text_per_group_and_none_of_labelled_groups() -> None:
    rows = [row | {"author": str(i // 4)} for i, row in enumerate(hidden(table(40), 10))]
    assert len(read_labels(rows).pool) == 30
    assert [*read_labels(rows, TableOptions(group="author")).pool] == [
        str(4 * i + 1) for i in range(3, 10)
    ]
    assert any("--group" in note for note in read_labels(rows).notes)
    assert not any(
        "--group" in note for note in read_labels(rows, TableOptions(group="author")).notes
    )
