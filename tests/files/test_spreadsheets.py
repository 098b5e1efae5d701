"""Tables from spreadsheets: separators, encodings, Excel, and invalid files."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import InputError
from lastword.files.cells import cell_text, csv_line
from lastword.files.rows import id_column, read_rows, require_rows
from lastword.text.items import rows_of

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


CYRILLIC = "text,team\nгде моя посылка,a\nверните мне деньги,b\n"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_separators_and_encodings_are_detected_and_reported(
    tmp_path: Path, separator: str, encoding: str
) -> None:
    path, notes = tmp_path / "tickets.csv", list[str]()
    path.write_bytes(quoted(separator).encode(encoding))
    named = encoding if encoding == "cp1252" else None
    assert [row.value for row in read_rows(path, notes.append, named)] == ROWS
    plain = named or separator == "," and encoding in ("utf-8", "utf-8-sig")
    assert len(notes) == (0 if plain else 1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("text,team\ngrüße,a\ncaf".encode() + b"\xe9 au lait,b\n", r"line 3: byte 4 \(0xE9\)"),
        ("text,team\nürgend,a\nende ü".encode()[:-1] + b",b\n", r"line 3: byte 6 \(0xC3\)"),
        ("text,team\n包裹在哪里,a\n我要退款,b\n".encode("gbk"), "--encoding gb18030.*包裹"),
        (CYRILLIC.encode("cp1251"), "line 2: byte 1 .*--encoding cp1251"),
        (quoted(",").encode("cp1252"), "line 2: byte 10 .*--encoding"),
        (quoted(",").encode("utf-16-le"), "--encoding utf-16-le"),
    ],
    ids="stray cut gbk cp1251 cp1252 utf16".split(),
)
def test_another_encoding_is_refused_with_line_and_byte(tmp_path: Path, raw: bytes, message: str):
    (path := tmp_path / "t.csv").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_rows(path)
    lines = tmp_path / "t.jsonl"
    lines.write_bytes(b'{"a": "\xc3\xa9\xc3\xa9"}\n{"a": "\xe9"}\n{"a": 3, "a": 4}\n{"a": 1e400}')
    errors = [row.error for row in read_rows(lines)]
    assert errors[0] is None and "byte 8 (0xE9)" in errors[1] and "'a' occurs twice" in errors[2]
    assert "the number 1e400 is too large" in errors[3]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("cp1252", r"byte \d+ \(0xE9\).* guess from only 3 bytes, often wrong, is --encoding"),
        ("utf-16-le", "--encoding utf-16-le"),
        ("utf-16-be", "--encoding utf-16-be"),
    ],
)
def test_the_guess_for_a_short_text_is_marked_as_uncertain(
    tmp_path: Path, ending: str, encoding: str, message: str
) -> None:
    text = {"csv": "text,team\nday,b\ncafééé,a\n", "jsonl": '{"text": "day"}\n{"text": "cafééé"}\n'}
    (path := tmp_path / f"t.{ending}").write_bytes(text[ending].encode(encoding))
    with pytest.raises(InputError, match=message):
        read_rows(path)
    path.write_bytes(("退款" * 200).join(text[ending].split("day")).encode(encoding, "ignore"))
    with pytest.raises(InputError, match=message.partition(" from only")[0]):
        read_rows(path)


@pytest.mark.parametrize(
    "first", ["sep=;", '"sep=;"', "sep=\t", "SEP=;", "sep=;;", "sep=; ", "\nsep=;"]
)
def test_the_separator_line_of_excel_is_not_a_header(tmp_path: Path, first: str):
    mark = first.strip('" \n')[-1] if first[-1] != "\t" else "\t"
    path = tmp_path / "t.csv"
    path.write_text(f"{first}\r\ntext{mark}team\r\na, b{mark}x\r\n", newline="")
    assert [row.value for row in read_rows(path)] == [{"text": "a, b", "team": "x"}]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('text,team\na,b\n"c"x,d\n', 3),
        ('"t"x,y\n', 1),
        ('\na,b\n\n"c"x,d\n', 4),
        ('text,team\na,b\n"never closed,d\ne,f\ng,h\n', 3),
    ],
)
def test_an_invalid_line_is_named_by_its_number_in_an_editor(tmp_path: Path, text: str, line: int):
    (path := tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=f"line {line}:"):
        read_rows(path)


def test_byte_order_marks_are_removed_and_utf32_is_recognised(tmp_path: Path) -> None:
    (path := tmp_path / "t.csv").write_text("\ufeff\ufefftext,team\na,b\n", encoding="utf-8")
    assert read_rows(path)[0].value == {"text": "a", "team": "b"}
    path.write_text("text,team\na,b\n", encoding="utf-32")
    with pytest.raises(InputError, match="--encoding utf-32"):
        read_rows(path)
    assert read_rows(path, encoding="utf-32")[0].value == {"text": "a", "team": "b"}


@pytest.mark.parametrize("name", ["t.txt", "t.csv.gz", "t.xls"])
def test_a_file_of_another_kind_is_refused_with_the_supported_kinds(tmp_path: Path, name: str):
    (path := tmp_path / name).write_text("text,team\na,b\n")
    with pytest.raises(InputError, match=r"tables end in \.csv, \.tsv, \.xlsx or \.parquet"):
        require_rows(read_rows(path), path)


def test_a_cell_beyond_the_limit_of_the_csv_library_is_read(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)
    (path := tmp_path / "t.csv").write_text(f"text,team\n{'x' * 200_000},a\nb,c\n")
    assert [len(row.value["text"]) for row in read_rows(path)] == [200_000, 1]


def test_escaped_control_characters_of_a_workbook_are_decoded(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for cells in [["text", "team"], ["one_x000D_\ntwo", "a_x0041_"]]:
        book.active.append(cells)
    book.save(path := tmp_path / "t.xlsx")
    assert read_rows(path)[0].value == {"text": "one\r\ntwo", "team": "a_x0041_"}
    book.create_sheet("first", 0)
    book.save(path)
    with pytest.raises(InputError, match="its first sheet, first, is empty"):
        read_rows(path)


def test_a_long_cell_is_read_and_duplicate_column_names_are_refused(tmp_path: Path) -> None:
    import pandas as pd

    long = "word " * 2**16
    (path := tmp_path / "t.csv").write_text(f"text,team,\n{long},b,c\n\0x,b,c\n")
    first, second = (row.value for row in read_rows(path))
    assert first == {"text": long, "team": "b", "column 3": "c"} and second["text"] == "\0x"
    frame = pd.DataFrame([["a", "b", "c"]], columns=["text", "team", "team"])
    frame.to_csv(path, index=False)
    frame.to_excel(book := tmp_path / "t.xlsx", index=False)
    for read in (lambda: read_rows(path), lambda: read_rows(book), lambda: [*rows_of(frame)]):
        with pytest.raises(InputError, match="columns 2 and 3 are both named 'team'"):
            read()


def test_cells_to_the_right_of_the_names_are_ignored(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book, path = openpyxl.Workbook(), tmp_path / "t.xlsx"
    for cells in [["text", "team"], ["a", "x"], ["b", None]]:
        book.active.append(cells)
    book.active.cell(2, 500, "stray")
    book.save(path)
    rows = [row.value for row in read_rows(path)]
    assert rows == [{"text": "a", "team": "x"}, {"text": "b", "team": ""}]


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


@given(cells=st.lists(st.one_of(st.text(), st.sampled_from(["=1", " =1", "\r=1", "\x1b[31m"]))))
def test_written_cells_hold_no_formulas_and_control_characters(cells: list[str]) -> None:
    line = csv_line(["x", *cells])
    (read,) = csv.reader(io.StringIO(line, newline=""))
    assert not {*line} & {chr(code) for code in (*range(9), 11, 12, *range(14, 32), 127)}
    assert not any(cell.lstrip(" ").startswith(tuple("=+-@\t\r\n")) for cell in read)
    plain = [cell for cell in cells if cell.isalnum()]
    assert [cell for cell in read[1:] if cell.isalnum()] == plain


def test_the_rows_decide_between_two_separators_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_text("text, as it came;team\n" + "hello, you;billing\nbye;shipping\n" * 4)
    assert read_rows(path)[0].value == {"text, as it came": "hello, you", "team": "billing"}


def test_a_table_of_one_column_needs_no_note(tmp_path: Path) -> None:
    path, notes = tmp_path / "texts.csv", list[str]()
    path.write_text("text\nI paid; twice\n")
    assert [row.value for row in read_rows(path, notes.append)] == [{"text": "I paid; twice"}]
    assert notes == []


def test_a_workbook_is_read_as_text_and_its_sheet_is_reported(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book, path, notes = openpyxl.Workbook(), tmp_path / "tickets.xlsx", list[str]()
    for cells in [*CELLS, [None, None, None], [7, "NA", True]]:
        book.active.append(cells)
    book.create_sheet("notes")
    book.save(path)
    rows = read_rows(path, notes.append)
    assert [row.value for row in rows[:3]] == ROWS
    assert list(rows[3].value.values()) == ["7", "NA", "True"] and rows[3].place == "row 5"
    assert len(notes) == 1 and "Sheet" in notes[0]
    path.write_bytes(b"no workbook")
    with pytest.raises(InputError, match=r"cannot read .*tickets\.xlsx"):
        read_rows(path)


def test_errors_of_rows_name_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_text('text;team\n"never closed;billing\n')
    with pytest.raises(InputError, match="separated by semicolons"):
        read_rows(path)
    path.write_text("text;team\nmine; yours;billing\n")
    assert "separated by semicolons" in (read_rows(path)[0].error or "")


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


def test_a_workbook_with_only_charts_is_refused(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.create_chartsheet("Chart")
    book.remove(book["Sheet"])
    book.save(path := tmp_path / "t.xlsx")
    with pytest.raises(InputError, match="it has no sheet with cells"):
        read_rows(path)
