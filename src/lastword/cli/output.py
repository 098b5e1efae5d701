"""Output of commands: printable text, tables, and files that are written atomically.

A file that cannot be written raises `InputError`.
"""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lastword.errors import InputError
from lastword.files.cells import csv_line
from lastword.files.strict_json import to_json
from lastword.files.writing import open_whole

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

    from lastword.lab.report.table import ReportTable

_PIPED_WIDTH = 100_000  # characters per line in a pipe, so that nothing is cut or wrapped


def printable(text: str) -> str:
    """Return untrusted text without control characters for the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(line: str) -> None:
    """Print a line to stderr, apart from the output."""
    typer.echo(printable(line), err=True)


def show(*parts: "RenderableType") -> None:
    """Print tables and text, wrapped to the terminal's width but not in a pipe."""
    from rich.console import Console

    terminal = Console()
    out = terminal if terminal.is_terminal else Console(width=_PIPED_WIDTH)
    for part in parts:
        out.print(part)


def show_tables(tables: "Sequence[ReportTable]", format: str | None) -> None:
    """Print tables of the report as `md` (the default), `csv` or `json`."""
    from lastword.lab.report.table import WRITERS

    if format == "json":
        typer.echo(to_json([_as_json(table) for table in tables]))
    else:
        typer.echo("\n".join(WRITERS[format or "md"](table) for table in tables), nl=False)


def _as_json(table: "ReportTable") -> dict[str, Any]:
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    return {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}


def grid(
    heads: Iterable[str], rows: Iterable[Iterable[str]], numbers: Container[str] = ()
) -> "RichTable":
    """Return a table for the terminal, with numbers aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for head in heads:
        title = Text(printable(head))
        table.add_column(title, overflow="fold", justify="right" if head in numbers else "left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def check_writable(path: Path) -> None:
    """Check that a file can be written, before the work that produces its content."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.absolute().parent}")
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: expected a file, found something else")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file atomically; after an error the file does not exist."""
    check_writable(path)
    try:
        with open_whole(path) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV without formulas, as `write_lines`."""
    write_lines(path, (csv_line(cells).rstrip("\n") for cells in rows))
