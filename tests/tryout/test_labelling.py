"""Labels on disk: restarts, two tabs, and invalid input."""

import json
import os
from pathlib import Path

import pytest

from lastword import Tracer
from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.trust.second_round import FIRST
from lastword.trust.terms import Terms
from lastword.tryout.journal import FILE
from lastword.tryout.label_job import LabelJob, label_job
from lastword.tryout.labelling import Repeated
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")

NAMED = TableOptions(choices="animal,money", instructions="Topic?")


def write(folder: Path, texts: list[str]) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def opened(folder: Path, texts: list[str], named: TableOptions = NAMED) -> LabelJob:
    source = write(folder, texts)
    return label_job(str(source), named, folder / "out", Tracer.demo, Terms(promise="gain"))


TEXTS = ["", *(f"text number {i}" for i in range(80))]


def test_a_restart_restores_labels_skips_and_undone_labels(tmp_path: Path) -> None:
    job = opened(tmp_path, TEXTS)
    labelling, shown = job.labelling, list[str]()
    assert labelling.rows == FIRST
    for choice in ("animal", None, "money", "money"):
        row = labelling.next("a")
        assert row is not None and labelling.texts[row]
        labelling.give("a", row, choice)
        shown.append(row)
    assert labelling.undo("a") == shown[3] and labelling.next("a") == shown[3]
    assert labelling.undo("a") == shown[2] == labelling.next("a")
    labelling.give("a", shown[2], "animal")
    expected = {shown[0]: "animal", shown[1]: None, shown[2]: "animal"}
    assert labelling.labels == expected
    job.close()
    again = opened(tmp_path, TEXTS)
    assert again.labelling.labels == expected and again.labelling.next("b") == shown[3]
    again.close()


def test_only_a_half_written_last_line_is_discarded(tmp_path: Path) -> None:
    job = opened(tmp_path, TEXTS)
    row = job.labelling.next("a")
    job.labelling.give("a", row, "money")
    job.close()
    path = tmp_path / "out" / FILE
    whole = path.read_bytes()
    for torn in (b"{", b'{"round": 1, "row": "5", "text', b'{"round": 1, "row": "5"}'):
        path.write_bytes(whole + torn)
        again = opened(tmp_path, TEXTS)
        assert again.labelling.labels == {row: "money"} and path.read_bytes() == whole
        again.close()
    path.write_bytes(whole[: len(whole) // 2] + b"\n" + whole[len(whole) // 2 :])
    with pytest.raises(InputError, match="is damaged. Restore the file"):
        opened(tmp_path, TEXTS)


def test_two_tabs_get_different_texts_and_a_label_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(tmp_path, TEXTS)
    labelling = job.labelling
    first, second = labelling.next("a"), labelling.next("b")
    assert first != second and labelling.next("a") == first
    labelling.give("b", first, "animal")
    with pytest.raises(Repeated, match="already"):
        labelling.give("a", first, "money")
    assert labelling.labels == {first: "animal"} and labelling.undo("a") is None
    assert labelling.undo("b") == first
    with pytest.raises(InputError, match="is not one of animal, money"):
        labelling.give("a", second, "mony")
    with pytest.raises(InputError, match="not a row of this round"):
        labelling.give("a", "1", "money")
    while len(labelling.labels) < FIRST - 1:
        labelling.give("c", labelling.next("c"), "money")
        monkeypatch.setattr("lastword.tryout.labelling._LEASE_SECONDS", -1.0)
    last = labelling.next("d")
    labelling.give("d", last, "money")
    assert labelling.complete and labelling.next("d") is None
    assert labelling.undo("d") is None, "the round is complete"
    job.close()


def test_a_full_disk_does_not_change_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(tmp_path, TEXTS)
    row, before = job.labelling.next("a"), (tmp_path / "out" / FILE).read_bytes()

    def fails(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="No space"):
            job.labelling.give("a", row, "money")
    assert (tmp_path / "out" / FILE).read_bytes() == before and not job.labelling.labels
    job.labelling.give("a", row, "money")
    job.close()


def test_edited_tables_and_other_questions_are_refused(tmp_path: Path) -> None:
    job = opened(tmp_path, TEXTS)
    row = job.labelling.next("a")
    job.labelling.give("a", row, "money")
    with pytest.raises(InputError, match="another `lastword label` writes"):
        opened(tmp_path, TEXTS)
    job.close()
    edited = [text + "!" * (i == int(row) - 1) for i, text in enumerate(TEXTS)]
    with pytest.raises(InputError, match=f"row {row}: the row was edited since"):
        opened(tmp_path, edited)
    with pytest.raises(InputError, match="the row is gone"):
        opened(tmp_path, TEXTS[:5])
    other = TableOptions(choices="animal,money,else", instructions="Topic?")
    with pytest.raises(InputError, match="labels of another question"):
        opened(tmp_path, TEXTS, other)
    longer = opened(tmp_path, [*TEXTS, "one more"])
    assert longer.labelling.labels == {row: "money"} and longer.labelling.rows == FIRST
    longer.close()


def test_a_labelled_table_and_a_results_folder_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "labelled.jsonl"
    source.write_text('{"text": "a", "label": "money"}\n{"text": "b", "label": ""}\n')
    with pytest.raises(InputError, match="has labels already. Test a model"):
        label_job(str(source), NAMED, tmp_path / "out", Tracer.demo, Terms(promise="gain"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "next.json").write_text("{}")
    with pytest.raises(InputError, match="results of a try"):
        opened(tmp_path, TEXTS)


def test_without_two_labels_per_class_there_is_no_second_round(tmp_path: Path) -> None:
    texts = [f"the fox {i} runs to {7 * i}" for i in range(70)]
    job = opened(tmp_path, texts)
    while (row := job.labelling.next("a")) is not None:
        job.labelling.give("a", row, "animal")
    job.run()
    assert job.progress.ended and not job.progress.proven and job.progress.page is not None
    assert "needs several labels of at least two options" in job.progress.words
    assert [row["label"] for row in read_objects(tmp_path / "out" / "first.csv")] == ["animal"] * 60
    job.close()
