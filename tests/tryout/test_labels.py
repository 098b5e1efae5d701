"""Labelled examples from tables: columns, options, doubts, and rows that cannot be read."""

import json
import unicodedata
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from topics import hidden, table, write_csv

from lastword.errors import InputError
from lastword.tryout.labels import read_labels
from lastword.tryout.table_options import TableOptions

COLOURS: list[dict[str, Any]] = [
    {"body": f"thing {i} is seen", "tone": ["01", "blue"][i % 2], "n": i} for i in range(12)
]
TWELVE = [f"parcel {letter} is not here" for letter in "abcdefghijkl"]


def test_columns_are_guessed_from_every_format_and_the_guess_is_noted(tmp_path: Path) -> None:
    (lines := tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in COLOURS))
    frame = pd.DataFrame(COLOURS)
    frame.to_parquet(parquet := tmp_path / "a.parquet")
    written = [write_csv(tmp_path / name, COLOURS) for name in ("a.csv", "a.tsv")]
    rows = read_labels(COLOURS).rows
    for source in (*written, lines, parquet, frame, pa.Table.from_pandas(frame)):
        labels = read_labels(source)
        guessed, authors = labels.notes
        assert guessed == "guessed: text is column body, label is column tone"
        assert "--group" in authors and labels.rows == rows
    # Labels stay texts, and the options are the labels that occur.
    assert [option.value for option in rows[0].question.options] == ["01", "blue"]
    assert (rows[1].text, rows[1].truth) == ("thing 1 is seen", "blue")
    twice = [{"Text": "?", "text": row["body"], "tone": row["tone"]} for row in COLOURS]
    assert "text is column Text (not text)" in read_labels(twice).notes[0]
    two = [row | {"kind": row["tone"]} for row in COLOURS]
    assert read_labels(two, TableOptions(label="kind")).rows == rows
    without = [*COLOURS, {"body": "nobody knows", "tone": None, "n": 5}]
    assert "1 row without a label" in read_labels(without, TableOptions("body", "tone")).notes


def offered(**change: Any) -> list[dict[str, Any]]:
    """Return rows with options, of which the second is changed."""
    rows: list[dict[str, Any]] = [
        {"text": text, "label": "a", "options": ["a", "b"]} for text in TWELVE
    ]
    rows[1] |= change
    return rows


@pytest.mark.parametrize(
    ("rows", "named", "message"),
    [
        ([row | {"kind": row["tone"]} for row in COLOURS], {}, "few values. Choose one with --lab"),
        (COLOURS, {"label": "colour"}, "no column 'colour'; the table has body, tone, n"),
        ([{"text:team": "late:shipping"}], {}, "one column, 'text:team'.*separated by commas"),
        ([row | {"may": "01|x"} for row in COLOURS], {"choices": "may"}, "row 2: the label 'blue'"),
        (offered(label=["a"]), {}, "row 2: its label is a list"),
        (offered(options="a;b"), {}, "row 2: 1 choice, .* separated by |"),
        (offered(options=[{"text": "a"}]), {}, "row 2: an option is blank"),
        (offered(options=None), {}, "row 2: 0 choices"),
        (offered()[:1], {"choices": "a.txt"}, "a file of options, or options as a,b,c"),
        (offered(), {"describe": "a.toml"}, "cannot read the descriptions a.toml"),
    ],
)
def test_unsuitable_tables_are_refused_in_one_line(rows, named, message) -> None:
    with pytest.raises(InputError, match=message):
        read_labels(rows, TableOptions(**named))


def test_doubtful_labels_name_their_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"Ticket-ID": f"T{i}", "text": f"thing {i} is seen", "team": ["Lager", "Kasse"][i % 2]}
        for i in range(12)
    ] + [
        {"Ticket-ID": "T12", "text": "thing  4 is seen", "team": " Kasse"},
        {"Ticket-ID": "T13", "text": "the other one", "team": "LAGER"},
        {"Ticket-ID": "T13", "text": "alone", "team": "Hof"},
        {"Ticket-ID": "", "text": "nobody knows", "team": None},
    ]
    labels = read_labels(rows)
    assert [row.id for row in labels.rows[-3:]] == ["T12", "T13 (row 14)", "T13 (row 15)"]
    notes = "\n".join(labels.notes)
    for part in (
        "id is column Ticket-ID",
        "1 row without a label",
        "`Kasse` (6 rows) and ` Kasse` (1 row)",
        "`Lager` (6 rows) and `LAGER` (1 row)",
        "`Hof` (row T13 (row 15))",
        "row T4 (`Lager`) and row T12 (` Kasse`)",
    ):
        assert part in notes
    (path := tmp_path / "t.csv").write_text("".join(f"text {n},{'ab'[n % 2]}\n" for n in range(9)))
    assert any("`a` is a label too: if the table has no line" in n for n in read_labels(path).notes)
    path.write_text("text,label\n" + path.read_text())
    assert not any("no line of names" in note for note in read_labels(path).notes)


@pytest.mark.parametrize(
    ("labels", "apart"),
    [
        (["café", unicodedata.normalize("NFD", "café"), "bar"], 3),
        (["1", "1.0", "0"], 3),
        (["1", "01", "0"], 3),
        (["1", "\uff11", "0"], 3),
        (["a\u200bb", "ab", "c"], 3),
        ([1, 1.0, 0], 2),
        ([0.0, 1.0, float("nan")], 2),
        ([Decimal(1), Decimal(0), pd.NA], 2),
        ([b"yes", b"no", b"\xff"], 2),
        ([date(2025, 1, 1), datetime(2025, 1, 1), pd.NaT], 2),
    ],
    ids="forms strings zeros wide hidden numbers gaps decimals bytes dates".split(),
)
def test_similar_labels_of_all_types_are_noted(labels, apart):
    rows = [{0: text, 1: labels[i % 3], "other": labels[i % 3]} for i, text in enumerate(TWELVE)]
    read = read_labels(rows, TableOptions(text="0", label="1"))
    assert read.question is not None and len(read.question.options) == apart
    assert any("look like one class" in note for note in read.notes) == (apart > 2)


def test_unreadable_rows_are_left_out_and_named(tmp_path: Path) -> None:
    rows = [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(TWELVE)]
    rows[2]["text"], rows[3]["text"], rows[4]["label"] = "\0", "\ud800", "\ud800"
    rows[6]["text"], rows[7]["label"] = " \n", "  "
    lines = [json.dumps(row) for row in rows]
    lines[5] = "{"
    (path := tmp_path / "t.jsonl").write_text("\n".join(lines))
    labels = read_labels(path)
    assert [row.text for row in labels.rows] == TWELVE[:2] + TWELVE[8:]
    assert any("line 6: not JSON" in note for note in labels.notes)
    (note,) = [note for note in labels.notes if note.startswith("left out 4 rows: ")]
    assert "row 3: its text contains a NUL" in note and "row 5: its label contains a lone" in note
    assert "1 row without a label" in labels.notes


def test_options_come_from_a_file_a_column_or_the_labels(tmp_path: Path) -> None:
    (options := tmp_path / "options.txt").write_text("blue\n01\ngreen\n")
    (described := tmp_path / "labels.toml").write_text('blue = "as the sky"\n')
    named = TableOptions(choices=str(options), describe=described, instructions="?")
    question = read_labels(COLOURS, named).question
    assert question is not None and question.instructions == "?"
    described_as = {o.text: o.description for o in question.options}
    assert described_as == {"blue": "as the sky", "01": None, "green": None}
    by_row = [row | {"may": "blue|01|x" if row["n"] % 2 else '["01", "blue"]'} for row in COLOURS]
    labels = read_labels(by_row, TableOptions(choices="may"))
    assert labels.question is None and len(labels.rows[1].question.options) == 3
    tools = ["a tool of some length", "another tool"]
    for column in (tools, json.dumps(tools), np.array(tools)):
        rows = [{"request": f"do {i}", "tools": column, "tool": tools[i % 2]} for i in range(12)]
        row = read_labels(rows, TableOptions(text="request", choices="tools")).rows[1]
        assert (row.text, row.truth) == ("do 1", "another tool")
        assert [option.text for option in row.question.options] == tools


def test_the_pool_has_one_text_per_group_and_none_of_labelled_groups() -> None:
    rows = [row | {"author": str(i // 4)} for i, row in enumerate(hidden(table(40), 10))]
    assert len(read_labels(rows).pool) == 30
    by_author = read_labels(rows, TableOptions(group="author"))
    assert [*by_author.pool] == [str(4 * i + 1) for i in range(3, 10)]
    assert any("--group" in note for note in read_labels(rows).notes)
    assert not any("--group" in note for note in by_author.notes)
