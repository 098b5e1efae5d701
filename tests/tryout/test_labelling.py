"""Labels on disk: restarts, undo, a full disk, and invalid input."""

import json
import sqlite3
from pathlib import Path

import pytest

from lastword import Tracer
from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.trust.second_round import FIRST
from lastword.trust.terms import Terms
from lastword.tryout.label_job import LabelJob, label_job
from lastword.tryout.labelling import FILE, Repeated
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")

NAMED = TableOptions(choices="animal,money", instructions="Topic?")
TEXTS = ["", *(f"text number {i}" for i in range(80))]


def opened(folder: Path, texts: list[str], named: TableOptions = NAMED) -> LabelJob:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return label_job(str(path), named, folder / "out", Tracer.demo, Terms(promise="gain"))


def test_a_restart_restores_labels_and_skips_and_can_undo_them(tmp_path: Path) -> None:
    job = opened(tmp_path, TEXTS)
    labelling, shown = job.labelling, list[str]()
    assert len(labelling.rows) == FIRST
    for choice in ("animal", None, "money", "money"):
        row = labelling.next()
        assert row is not None and labelling.texts[row]
        labelling.give(row, choice)
        shown.append(row)
    assert labelling.undo() == shown[3] == labelling.next()
    assert labelling.undo() == shown[2] == labelling.next()
    labelling.give(shown[2], "animal")
    expected = {shown[0]: "animal", shown[1]: None, shown[2]: "animal"}
    assert labelling.labels == expected
    job.close()
    again = opened(tmp_path, TEXTS)
    assert again.labelling.labels == expected and again.labelling.next() == shown[3]
    assert [again.labelling.undo() for _ in range(4)] == [*reversed(shown[:3]), None]
    again.close()


def test_invalid_labels_are_refused_and_a_complete_round_is_not_undone(tmp_path: Path) -> None:
    job = opened(tmp_path, TEXTS)
    labelling, first = job.labelling, job.labelling.rows[0]
    labelling.give(first, "animal")
    with pytest.raises(Repeated, match="already"):
        labelling.give(first, "money")
    with pytest.raises(InputError, match="is not one of animal, money"):
        labelling.give(labelling.rows[1], "mony")
    with pytest.raises(InputError, match="not a row of this round"):
        labelling.give("1", "money")
    assert labelling.labels == {first: "animal"}
    while (row := labelling.next()) is not None:
        labelling.give(row, "money")
    assert labelling.complete and len(labelling.labels) == FIRST and labelling.undo() is None
    job.close()


def test_a_full_disk_and_a_damaged_database_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, connect = opened(tmp_path, TEXTS), sqlite3.connect
    path, row = tmp_path / "out" / FILE, job.labelling.rows[0]

    def full(path: Path) -> sqlite3.Connection:
        base = connect(path)
        base.execute("PRAGMA max_page_count = 1")  # the size that the file has is kept
        base.execute(
            "CREATE TEMP TRIGGER grow BEFORE UPDATE ON labels BEGIN "
            "UPDATE task SET question = zeroblob(100000); END"
        )
        return base

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", full)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            job.labelling.give(row, "money")
    assert not job.labelling.labels
    job.labelling.give(row, "money")
    job.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(InputError, match="not a database. Restore the file"):
        opened(tmp_path, TEXTS)


def test_edited_tables_and_other_questions_are_refused(tmp_path: Path) -> None:
    job = opened(tmp_path, TEXTS)
    row = job.labelling.rows[0]
    job.labelling.give(row, "money")
    with pytest.raises(InputError, match="another `lastword label` writes"):
        opened(tmp_path, TEXTS)
    job.close()
    edited = [text + "!" * (i == int(row) - 1) for i, text in enumerate(TEXTS)]
    with pytest.raises(InputError, match=f"row {row} of the table was edited since"):
        opened(tmp_path, edited)
    with pytest.raises(InputError, match="is gone"):
        opened(tmp_path, TEXTS[:5])
    other = TableOptions(choices="animal,money,else", instructions="Topic?")
    with pytest.raises(InputError, match="labels of another question"):
        opened(tmp_path, TEXTS, other)
    longer = opened(tmp_path, [*TEXTS, "one more"])
    assert longer.labelling.labels == {row: "money"} and len(longer.labelling.rows) == FIRST
    longer.close()


def test_a_labelled_table_and_a_results_folder_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "labelled.jsonl"
    source.write_text('{"text": "a", "label": "money"}\n{"text": "b", "label": ""}\n')
    with pytest.raises(InputError, match="has labels already. Test a model"):
        label_job(str(source), NAMED, tmp_path / "out", Tracer.demo, Terms(promise="gain"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "second-round.json").write_text("{}")
    with pytest.raises(InputError, match="results of a try"):
        opened(tmp_path, TEXTS)


def test_unreadable_texts_do_not_end_the_job_and_one_label_has_no_second_round(
    tmp_path: Path,
) -> None:
    texts = [f"the fox {i} runs to {7 * i}" for i in range(70)]
    job = opened(tmp_path, texts)
    while (row := job.labelling.next()) is not None:
        job.labelling.give(row, "animal")
    job.close()
    # All texts of a piece are too long for the model's 128 tokens.
    places = {int(row) - 1 for row in job.order[FIRST:]}
    job = opened(tmp_path, [t + " fox" * 200 * (i in places) for i, t in enumerate(texts)])
    job.run()
    assert job.progress.ended and not job.progress.proven and job.progress.page is not None
    assert "needs several labels of at least two options" in job.progress.words
    labels = read_objects(tmp_path / "out" / "labels.csv")
    assert [(row["label"], row["round"]) for row in labels] == [("animal", "1")] * FIRST
    assert job.progress.read == job.progress.to_read == len(texts)
    job.close()
