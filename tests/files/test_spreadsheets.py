"""Tables as spreadsheets leave them: separators, encodings, Excel, and what cannot be read."""

from pathlib import Path

import pytest

from lastword.errors import InputError
from lastword.files.rows import id_column, read_rows

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
def test_separators_and_encodings_are_found_and_said(
    tmp_path: Path, separator: str, encoding: str
) -> None:
    path, said = tmp_path / "tickets.csv", list[str]()
    path.write_bytes(quoted(separator).encode(encoding))
    assert [row.value for row in read_rows(path, said.append)] == ROWS
    plain = separator == "," and encoding in ("utf-8", "utf-8-sig")
    assert len(said) == (0 if plain else 1)


def test_a_separator_in_a_header_of_several_is_the_one_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_text("text, as it came;team\n" + "hello, you;billing\nbye;shipping\n" * 4)
    assert read_rows(path)[0].value == {"text, as it came": "hello, you", "team": "billing"}


def test_one_column_is_no_guess(tmp_path: Path) -> None:
    path, said = tmp_path / "texts.csv", list[str]()
    path.write_text("text\nI paid; twice\n")
    assert [row.value for row in read_rows(path, said.append)] == [{"text": "I paid; twice"}]
    assert said == []


def test_a_workbook_is_read_as_text_and_its_sheet_is_said(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book, path, said = openpyxl.Workbook(), tmp_path / "tickets.xlsx", list[str]()
    for cells in [*CELLS, [None, None, None], [7, "NA", True]]:
        book.active.append(cells)
    book.create_sheet("notes")
    book.save(path)
    rows = read_rows(path, said.append)
    assert [row.value for row in rows[:3]] == ROWS
    assert list(rows[3].value.values()) == ["7", "NA", "True"] and rows[3].place == "row 5"
    assert len(said) == 1 and "Sheet" in said[0]
    path.write_bytes(b"no workbook")
    with pytest.raises(InputError, match=r"cannot read .*tickets\.xlsx"):
        read_rows(path)


def test_what_cannot_be_read_names_the_separator_or_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_bytes(quoted(",").encode("utf-16-le"))
    with pytest.raises(InputError, match="UTF-8"):
        read_rows(path)
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
def test_the_column_of_ids_is_known_by_its_name(columns: list[str], column: str | None) -> None:
    assert id_column(columns) == column
