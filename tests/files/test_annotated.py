"""Tasks of Label Studio and records of Argilla as rows of a table."""

import json
from pathlib import Path
from typing import Any

import pytest

from lastword.errors import InputError
from lastword.files.annotated import annotated_rows, annotation_file, read_annotated
from lastword.files.rows import Row, read_rows
from lastword.tryout.labels import read_labels


def task(text: str, *labels: str, skipped: bool = False, **more: Any) -> dict[str, Any]:
    """A task as Label Studio exports it, with an annotation per label."""
    annotations = [
        {
            "id": 1001 + i,
            "completed_by": 10,
            "was_cancelled": skipped,
            "ground_truth": False,
            "lead_time": 4.288,
            "result": [
                {
                    "id": "Dx_aB91ISN",
                    "from_name": "tone",
                    "to_name": "text",
                    "type": "choices",
                    "value": {"choices": label.split("|")},
                }
            ],
        }
        for i, label in enumerate(labels)
    ]
    data = {"text": text, "nr": "7"} | more
    return {"id": 1, "project": 83, "data": data, "annotations": annotations, "predictions": []}


def record(text: str, *labels: Any) -> dict[str, Any]:
    """A record as Argilla's `to_json` writes it, with a response per label."""
    responses = [{"value": label, "user_id": f"u{i}"} for i, label in enumerate(labels)]
    return {
        "id": "r1",
        "fields": {"text": text},
        "metadata": {"nr": "7"},
        "suggestions": {"tone": {"value": "bad", "score": 0.9, "agent": "model"}},
        "responses": {"tone": responses} if labels else {},
        "vectors": {},
        "_server_id": "s1",
    }


@pytest.mark.parametrize("build", [task, record])
def test_labels_of_annotators_are_a_column_with_the_name_of_the_question(build: Any) -> None:
    values = [build("a", "good"), build("b", "bad", "bad"), build("c"), build("d", "bad", "good")]
    rows = annotated_rows([Row(f"row {n}", value) for n, value in enumerate(values, start=1)])
    assert [row.value for row in rows[:3]] == [
        {"text": "a", "nr": "7", "tone": "good"},
        {"text": "b", "nr": "7", "tone": "bad"},
        {"text": "c", "nr": "7"},  # a suggestion of a model is not a label
    ]
    assert rows[3].place == "row 4" and rows[3].error is not None
    assert rows[3].error == "its annotators disagree: 'bad' and 'good'"


def test_skipped_tasks_have_no_label_and_several_choices_are_an_error() -> None:
    skipped, several, broken = annotated_rows(
        [
            Row("row 1", task("a", "good", skipped=True)),
            Row("row 2", task("a", "good|bad")),
            Row("row 3", record("a") | {"responses": {"tone": [{"user_id": "u"}]}}),
        ]
    )
    assert "tone" not in skipped.value
    assert several.error == "tone has 2 choices, expected one"
    assert broken.error is not None and "cannot be read" in broken.error
    (many,) = annotated_rows([Row("row 4", record("a", ["good", "bad"]))])
    assert many.error is not None


def test_null_is_no_response_and_metadata_is_an_object(tmp_path: Path) -> None:
    values = [record("a", None, "good"), record("b", "good") | {"metadata": ["7"]}]
    one, other = annotated_rows([Row("row 1", values[0]), Row("row 2", values[1])])
    assert one.value == {"text": "a", "nr": "7", "tone": "good"}
    assert other.error == "its metadata is list, expected an object"


def test_other_rows_are_unchanged() -> None:
    rows = [
        Row("row 1", {"text": "a", "data": {"x": 1}, "label": "b"}),
        Row("row 2", {"fields": "a", "responses": "b"}),
        Row("row 3", error="not JSON"),
    ]
    assert annotated_rows(rows) == rows


@pytest.mark.parametrize("build", [task, record])
def test_try_reads_an_export(build: Any, tmp_path: Path) -> None:
    values = [build(f"thing {i} is seen", ("good", "bad")[i % 2]) for i in range(12)]
    (path := tmp_path / "export.json").write_text(json.dumps([*values, build("not yet")]))
    labels = read_labels(path)
    assert [row[2] for row in labels.rows] == ["good", "bad"] * 6
    assert any("label is column tone" in note for note in labels.notes)
    lines = tmp_path / "export.jsonl"
    lines.write_text("\n".join(json.dumps(value) for value in values))
    assert read_labels(lines).rows == labels.rows
    (bad := tmp_path / "bad.json").write_text(json.dumps([build("a", "good", "bad")]))
    for read in (read_annotated, read_labels):
        with pytest.raises(InputError, match="row 1: its annotators disagree: 'good' and 'bad'$"):
            read(bad)


def test_rows_are_written_in_the_import_formats_of_the_tools(tmp_path: Path) -> None:
    rows = {"7": {"text": "a", "nr": "7", "tone": "", "note": None}}
    tasks = json.loads(annotation_file("label-studio", rows, "text", "tone"))
    assert tasks == [{"data": {"text": "a", "nr": "7"}}]
    (written,) = json.loads(annotation_file("argilla", rows, "text", "tone"))
    assert written == {
        "id": "7",
        "fields": {"text": "a"},
        "metadata": {"nr": "7"},
        "suggestions": {},
        "responses": {},
        "vectors": {},
    }
    # Without annotations, they are rows without a label.
    for form in ("label-studio", "argilla"):
        (path := tmp_path / "rows.json").write_text(annotation_file(form, rows, "text", "tone"))
        assert [row.value for row in annotated_rows(read_rows(path))] == [{"text": "a", "nr": "7"}]
