"""Rows of annotation tools: Label Studio's tasks and Argilla's records, read and written.

A task of Label Studio has the columns in `data`, and per annotation a `result` of type `choices`. A
record of Argilla has the text in `fields`, other columns in `metadata`, and per question the
`responses`. Neither is written with suggestions, because they would bias the labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from lastword.files.rows import Row, read_rows, require_rows, values_of
from lastword.files.strict_json import to_json

Format = Literal["label-studio", "argilla"]
FORMATS: tuple[Format, ...] = get_args(Format)


def annotated_rows(rows: Sequence[Row]) -> list[Row]:
    """Return tasks and records as rows of a table, with a column per question; others as they are.

    A row whose annotators disagree, or of several choices, has an error.
    """
    return [_task(row) or _record(row) or row for row in rows]


def read_annotated(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, of tasks or of records, each as an object.

    Raises:
        InputError: Unreadable, or annotators disagree.
    """
    return values_of(annotated_rows(require_rows(read_rows(path), path)), path)


def annotation_file(
    form: Format, rows: Mapping[str, Mapping[str, Any]], text: str, label: str
) -> str:
    """Return rows without labels as the file that an annotation tool imports.

    Args:
        form: The tool.
        rows: The rows by id.
        text: The column of the text.
        label: The column of the labels, which is left out.
    """
    entries: list[dict[str, Any]] = []
    for id, row in rows.items():
        columns = {n: cell for n, cell in row.items() if n != label and cell not in (None, "")}
        if form == "label-studio":
            entries.append({"data": columns})
            continue
        entry = {"id": id, "fields": {text: columns.pop(text)}, "metadata": columns}
        entries.append(entry | {"suggestions": {}, "responses": {}, "vectors": {}})
    return to_json(entries) + "\n"


def _task(row: Row) -> Row | None:
    """Return a task of Label Studio as a row of a table; None if it is none."""
    match row.value:
        case {"data": Mapping() as data, "annotations": list() as annotations}:
            return _with_labels(row, data, _choices(annotations))
        case {"data": Mapping() as data, **rest} if not rest:  # as it was imported
            return Row(row.place, dict(data))
    return None


def _choices(annotations: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the question and the choices of each annotation that was not skipped."""
    for annotation in annotations:
        if annotation.get("was_cancelled"):
            continue
        for result in annotation.get("result") or ():
            if result.get("type") == "choices":
                yield result["from_name"], result["value"]["choices"]


def _record(row: Row) -> Row | None:
    """Return a record of Argilla as a row of a table; None if it is none."""
    match row.value:
        case {"fields": Mapping() as fields, "responses": Mapping() as responses, **rest}:
            choices = (
                (question, [response["value"]])
                for question, question_responses in responses.items()
                for response in question_responses
                if response["value"] is not None
            )
            metadata = rest.get("metadata") or {}
            if not isinstance(metadata, Mapping):
                kind = type(metadata).__name__
                return Row(row.place, error=f"its metadata is {kind}, expected an object")
            return _with_labels(row, {**metadata, **fields}, choices)
    return None


def _with_labels(
    row: Row, columns: Mapping[str, Any], annotations: Iterator[tuple[str, Sequence[Any]]]
) -> Row:
    labels: dict[str, str] = {}
    try:
        for question, choices in annotations:
            if len(choices) != 1 or isinstance(choices[0], list):
                return Row(row.place, error=f"{question} has {len(choices)} choices, expected one")
            (choice,) = choices
            if labels.setdefault(question, choice) != choice:
                both = f"{labels[question]!r} and {choice!r}"
                return Row(row.place, error=f"its annotators disagree: {both}")
    except (KeyError, TypeError, AttributeError) as error:
        return Row(row.place, error=f"an annotation cannot be read: {error!r}")
    return Row(row.place, {**columns, **labels})
