"""Labels on disk: restarts, undo, a full disk, and invalid input."""

import json
import os
from pathlib import Path

import pytest

from lastword import Tracer
from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.trust.second_round import FIRST
from lastword.trust.terms import Terms
from lastword.tryout.label_job import LabelJob
from lastword.tryout.labelling import FILE, Labelling, Repeated
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")

NAMED = TableOptions(choices="animal,money", instructions="Topic?")
TEXTS = ["", "a\0b", *(f"text number {i}" for i in range(80))]


def opened(folder: Path, texts: list[str] = TEXTS, named: TableOptions = NAMED) -> LabelJob:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return LabelJob(str(path), named, folder / "out", Tracer.demo, Terms(promise="gain"))


def test_a_restart_restores_labels_and_skips_and_can_undo_them(tmp_path: Path) -> None:
    job = opened(tmp_path)
    labelling, shown = job.labelling, [*job.labelling.rows]
    assert len(shown) == FIRST
    for row, choice in zip(shown, ("animal", None, "money", "money"), strict=False):
        assert row == labelling.next() and "number" in labelling.texts[row]
        labelling.give(row, choice)
    for repeated in (shown[0], shown[5], "1"):
        with pytest.raises(Repeated, match="already"):
            labelling.give(repeated, "money")
    assert labelling.undo() == shown[3] == labelling.next()
    assert labelling.undo() == shown[2] == labelling.next()
    labelling.give(shown[2], "animal")
    job.close()
    again = opened(tmp_path).labelling
    assert again.done == shown[:3] and again.next() == shown[3]
    assert [again.rows[row] for row in shown[:4]] == ["animal", None, "animal", None]
    assert [again.undo() for _ in range(4)] == [*reversed(shown[:3]), None]
    while (row := again.next()) is not None:
        again.give(row, "money")
    assert again.complete and again.undo() is None  # a complete round is in use


def test_ids_that_a_spreadsheet_rewrote_are_matched_by_text_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = ["010", "1e3", "2026-01-02", "=1"]
    texts = {id: f"text {n}" for n, id in enumerate(ids)}
    Labelling(tmp_path, texts).draw(1, ids)
    written = (tmp_path / FILE).read_text()
    rewritten = written.replace("010", "10").replace("1e3", "1000").replace(",1,\n", ",1,money\n")
    (tmp_path / FILE).write_text(rewritten)
    with caplog.at_level("WARNING"):
        again = [Labelling(tmp_path, texts) for _ in range(2)][1]
    assert again.rows == dict.fromkeys(ids, "money")
    (message,) = caplog.messages
    assert "2 ids rewritten, such as '10' for '010'" in message


def test_a_full_disk_keeps_the_labels_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelling = opened(tmp_path).labelling
    first, second, *_ = labelling.rows
    labelling.give(first, "animal")
    before = labelling.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space left")))
        with pytest.raises(OSError, match="no space"):
            labelling.give(second, "money")
        with pytest.raises(OSError, match="no space"):
            labelling.undo()
    assert labelling.done == [first] and labelling.path.read_bytes() == before
    labelling.give(second, "money")
    assert b"money" in labelling.path.read_bytes()


def test_edited_tables_and_other_questions_are_refused(tmp_path: Path) -> None:
    job = opened(tmp_path)
    row = next(iter(job.labelling.rows))
    job.labelling.give(row, "money")
    with pytest.raises(InputError, match="another `lastword label` writes"):
        opened(tmp_path)
    job.close()
    edited = [text + "!" * (i == int(row) - 1) for i, text in enumerate(TEXTS)]
    for texts, choices, why in (
        (edited, "animal,money", "line 2: its text is not in the table. Restore"),
        (TEXTS[:5], "animal,money", "its text is not in the table"),
        (TEXTS, "animal,plant", "a label that is not an option: money"),
    ):
        with pytest.raises(InputError, match=why):
            opened(tmp_path, texts, TableOptions(choices=choices, instructions="Topic?"))
    longer = opened(tmp_path, [*TEXTS, "one more"]).labelling
    assert longer.done == [row] and len(longer.rows) == FIRST
    labelled = '{"text": "a", "label": "money"}\n{"text": "b", "label": ""}\n'
    (tmp_path / "labelled.jsonl").write_text(labelled)
    with pytest.raises(InputError, match="has labels already. Test a model"):
        LabelJob(str(tmp_path / "labelled.jsonl"), NAMED, tmp_path, Tracer.demo, Terms())


def test_unreadable_texts_do_not_end_the_job_and_one_label_has_no_second_round(
    tmp_path: Path,
) -> None:
    texts = [f"the fox {i} runs to {7 * i}" for i in range(70)]
    job = opened(tmp_path, texts)
    while (row := job.labelling.next()) is not None:
        job.labelling.give(row, "animal")
    job.close()
    # All texts but those of round one are too long for the model's 128 tokens.
    first = {int(row) - 1 for row in job.labelling.rows}
    job = opened(tmp_path, [t + " fox" * 200 * (i not in first) for i, t in enumerate(texts)])
    job.run()
    assert job.progress.ended and job.progress.page is not None
    assert "needs labels of several options" in job.progress.words
    labels = read_objects(tmp_path / "out" / FILE)
    assert [(row["label"], row["round"]) for row in labels] == [("animal", "1")] * FIRST
    job.close()
