"""`lastword certify TABLE`: makes a certificate from the predictions of any system."""

from dataclasses import asdict
from pathlib import Path

import typer

from lastword.cli.output import printable, say, write_lines
from lastword.files.strict_json import to_json
from lastword.trust.automation import estimates
from lastword.trust.predictions import (
    Columns,
    PlainFinding,
    certify_plain,
    next_rows,
    read_plain,
)
from lastword.trust.words import of_table


def certify_table(
    path: Path,
    columns: Columns,
    name: str | None,
    encoding: str | None,
    delta: float,
    error: float | None,
    out: Path | None,
    *,
    json: bool,
) -> None:
    """Print the result for a table of predictions; with `out`, write certificate, page and rows."""
    table = read_plain(path, columns, name, encoding)
    for note in table.notes:
        say(note)
    finding = certify_plain(table, delta=delta, error=error)
    words = of_table(finding)
    files = [] if out is None else _write(finding, words, out)
    if json:
        typer.echo(to_json(_to_dict(finding, words)))
        return
    for line in [*words, *files]:
        typer.echo(printable(line))


def _write(finding: PlainFinding, words: list[str], out: Path) -> list[str]:
    """Write the certificate, the page and the rows to label next; return lines that name them."""
    from lastword.files.cells import csv_line
    from lastword.trust.plain_page import write_plain_page

    out.parent.mkdir(parents=True, exist_ok=True)
    page, after = out.with_suffix(".html"), out.with_name("next.csv")
    write_lines(out, finding.certificate.to_toml().splitlines())
    write_plain_page(finding, words, page)
    lines = [str(out), str(page)]
    if rows := next_rows(finding.table):
        names = list(dict.fromkeys(key for row in finding.table.rows for key in row))
        cells = [[row.get(key, "") for key in names] for row in rows]
        write_lines(after, [csv_line(line).rstrip("\n") for line in (names, *cells)])
        lines.append(f"{after}: {len(rows)} rows to label next")
    return lines


def _to_dict(finding: PlainFinding, words: list[str]) -> dict[str, object]:
    proven, errors = finding.certificate, finding.errors
    rung = None if proven.automation is None else proven.automation.rung(proven.terms.delta)
    return {
        "name": finding.table.name,
        "words": words,
        "accuracy": 1 - errors.rate,
        "accuracy_at_least": proven.worth.get("accuracy_at_least"),
        "gain_at_least": proven.worth.get("net_at_least"),
        "estimates": [asdict(one) for one in estimates(finding.curve)],
        "threshold": None if rung is None else asdict(rung),
        "labelled": errors.items,
        "groups": errors.groups,
        "classes": [asdict(one) for one in finding.classes],
        "next": len(next_rows(finding.table)),
    }
