"""Tables from spreadsheets: separators, encodings, Excel, and invalid files."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import InputError
from lastword.files.cells import cell_text, csv_line, restored, visible
from lastword.files.rows import id_column, read_rows, require_rows
from lastword.tryout.labels import read_labels
from lastword.tryout.table_options import TableOptions

CELLS = [
    ["Ticket-ID", "text", "team"],
    ["T-1", "Größe passt nicht, bitte umtauschen; danke", "Rückgabe"],
    ["T-2", 'Er sagte "nein", und\nlegte auf', "Versand"],
    ["T-3", "It's late. Where's my order? Don't ask", "Versand"],
]
ROWS = [dict(zip(CELLS[0], cells, strict=True)) for cells in CELLS[1:]]


def quoted(separator: str) -> str:
    lines = (['"' + cell.replace('"', '""') + '"' for cell in cells] for cells in CELLS)
    return "\r\n".join(separator.join(line) for line in lines)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_separators_and_encodings_are_detected_and_reported(
    tmp_path: Path, separator: str, encoding: str
) -> None:
    path, notes = tmp_path / "tickets.csv", list[str]()
    path.write_bytes(quoted(separator).encode(encoding))
    named = encoding if encoding == "cp1252" else None
    assert [row.value for row in read_rows(path, notes.append, named)] == ROWS
    assert len(notes) == (separator != "," or encoding == "utf-16")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("text,team\ngrüße,a\ncaf".encode() + b"\xe9 au lait,b\n", r"line 3: byte 4 \(0xE9\)"),
        ("text,team\nürgend,a\nende ü".encode()[:-1] + b",b\n", r"line 3: byte 6 \(0xC3\)"),
        ("text,team\n包裹在哪里,a\n".encode("gbk"), "line 2: byte 1 .* pass its encoding"),
        ("text,team\na,b\n".encode("utf-16-le"), "--encoding utf-16-le"),
        (quoted(",").encode("utf-32"), "UTF-32: pass its encoding"),
    ],
    ids="stray cut gbk le utf32".split(),
)
def test_another_encoding_is_refused_with_line_and_byte(
    tmp_path: Path, raw: bytes, message: str, ending: str
):
    (path := tmp_path / f"t.{ending}").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_rows(path)


def test_a_line_of_json_that_readers_would_read_differently_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": "é"}\n{"a": 3, "a": 4}\n{"a": 1e400}')
    errors = [row.error for row in read_rows(path)]
    assert errors[0] is None and "'a' occurs twice" in errors[1]
    assert "the number 1e400 is too large" in errors[2]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("sep=;\r\ntext;team\r\na, b;x\r\n", {"text": "a, b", "team": "x"}),
        ('"sep=;"\r\ntext;team\r\na, b;x\r\n', {"text": "a, b", "team": "x"}),
        ("sep=\t\r\ntext\tteam\r\na, b\tx\r\n", {"text": "a, b", "team": "x"}),
        ("\nSEP=;;\ntext;team\na, b;x\n", {"text": "a, b", "team": "x"}),
        (
            "text, as it came;team\n" + "a, b;x\nc;y\n" * 4,
            {"text, as it came": "a, b", "team": "x"},
        ),
        ("text\nI paid; twice\n", {"text": "I paid; twice"}),
    ],
)
def test_the_separator_is_declared_or_detected(tmp_path: Path, text: str, row: object):
    (path := tmp_path / "t.csv").write_text(text, newline="")
    assert read_rows(path)[0].value == row


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('text,team\na,b\n"c"x,d\n', "line 3: .*separated by commas"),
        ('"t"x,y\n', "line 1:"),
        ('\na,b\n\n"c"x,d\n', "line 4:"),
        ('text;team\na;b\n"never closed;d\ne;f\n', "line 3: a quote.*separated by semicolons"),
        ("text,team,team\n", "columns 2 and 3 are both named 'team'"),
    ],
)
def test_an_invalid_table_is_refused_with_the_line_in_an_editor(
    tmp_path: Path, text: str, message: str
):
    (path := tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(path)


def test_cells_that_other_readers_refuse(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)
    long = "word " * 2**16
    (path := tmp_path / "t.csv").write_text(f"\ufeff\ufefftext,team,\n{long},b,c\n\0x,b,c\n,,,,\n")
    first, second, third = read_rows(path)
    assert first.value == {"text": long, "team": "b", "column 3": "c"}
    assert second.value["text"] == "\0x" and "more fields" in (third.error or "")


@pytest.mark.parametrize("name", ["t.txt", "t.csv.gz", "t.xls"])
def test_a_file_of_another_kind_is_refused_with_the_supported_kinds(tmp_path: Path, name: str):
    (path := tmp_path / name).write_text("text,team\na,b\n")
    with pytest.raises(InputError, match=r"tables end in \.csv, \.tsv, \.xlsx or \.parquet"):
        require_rows(read_rows(path), path)


def book_of(path: Path, *rows: list[object]) -> Any:
    """Write a workbook and return it, to change and save it again."""
    book = pytest.importorskip("openpyxl").Workbook()
    for cells in rows:
        book.active.append(cells)
    book.save(path)
    return book


def test_a_workbook_is_read_as_text(tmp_path: Path) -> None:
    path, notes = tmp_path / "tickets.xlsx", list[str]()
    more = [None, None, None], [7, "NA", True], ["one_x000D_\ntwo", "a", None]
    book = book_of(path, *CELLS, *more)
    book.active.cell(2, 500, "stray")  # to the right of the names
    book.create_sheet("notes")
    book.save(path)
    rows = read_rows(path, notes.append)
    assert [row.value for row in rows[:3]] == ROWS
    assert list(rows[3].value.values()) == ["7", "NA", "True"] and rows[3].place == "row 5"
    assert list(rows[4].value.values()) == ["one\r\ntwo", "a", ""]
    assert len(notes) == 1 and "Sheet" in notes[0]


def test_files_that_are_no_workbook_with_a_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    book = book_of(path, ["text", "team", "team"], ["a", "b", "c"])
    with pytest.raises(InputError, match="columns 2 and 3 are both named 'team'"):
        read_rows(path)
    book.create_sheet("first", 0)
    book.save(path)
    with pytest.raises(InputError, match="its first sheet, first, is empty"):
        read_rows(path)
    path.write_bytes(b"no workbook")
    with pytest.raises(InputError, match=r"cannot read .*t\.xlsx"):
        read_rows(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.datetime64("2026-01-31T10:00", "ns"), "2026-01-31 10:00:00"),
        (np.datetime64("2026-01-31"), "2026-01-31"),
        (np.datetime64("NaT", "ns"), ""),
        (np.timedelta64(10**9, "ns"), "0:00:01"),
    ],
)
def test_times_of_numpy_are_written_as_times(value: object, text: str) -> None:
    assert cell_text(value) == text


FORMULAS = ["=1", " =1", "\r=1", "\t@x", "'-1", "''=1", "-5", "+49 30", "@me", "'tis", "\x1b[31m"]


@given(cells=st.lists(st.one_of(st.text(), st.sampled_from(FORMULAS)), min_size=1))
def test_written_cells_hold_no_formulas_and_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str]
) -> None:
    names = [f"c{n}" for n in range(len(cells) + 1)]
    line = csv_line(["x", *cells])
    (raw,) = csv.reader(io.StringIO(line, newline=""))
    assert not {*line} & {chr(code) for code in (*range(9), 11, 12, *range(14, 32), 127)}
    assert not any(cell.lstrip(" ").startswith(tuple("=+-@\t\r\n")) for cell in raw)
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    path.write_bytes((csv_line(names) + line).encode("utf-8", "replace"))
    (row,) = read_rows(path)
    expected = [visible(cell).encode("utf-8", "replace").decode() for cell in cells]
    assert list(row.value.values()) == ["x", *expected]


@pytest.mark.parametrize(
    ("label", "options", "option"),
    [
        ("10", ["010", "020"], "010"),
        ("1000", ["1e3", "2e3"], "1e3"),
        ("TRUE", ["true", "false"], "true"),
        ("10", ["010", "10.0"], "10"),  # two options are equal to it
        ("10", ["010", "10"], "10"),
        ("31.01.2026", ["2026-01-31", "x"], "31.01.2026"),
    ],
)
def test_a_label_that_a_spreadsheet_rewrote_is_restored(label, options, option) -> None:
    assert restored(label, options) == option


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        (["text", "id"], "id"),
        (["Ticket-ID", "text"], "Ticket-ID"),
        (["Nr", "text"], "Nr"),
        (["ticketId", "ID"], "ID"),
        (["paid", "valid", "text", "Grid"], None),
    ],
)
def test_the_id_column_is_recognised_by_its_name(columns: list[str], column: str | None) -> None:
    assert id_column(columns) == column


def test_labels_that_a_spreadsheet_rewrote_are_named(tmp_path: Path) -> None:
    (path := tmp_path / "t.csv").write_text("text,label\n" + "where,10\nwhen,020\nwho,20\n" * 2)
    labels = read_labels(path, TableOptions(choices="010,020"))
    assert [row.truth for row in labels.rows[:3]] == ["010", "020", "020"]
    (note,) = (note for note in labels.notes if "spreadsheet" in note)
    assert "'10' as '010' (2 rows), '20' as '020' (2 rows)" in note
