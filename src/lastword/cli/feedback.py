"""`lastword feedback`: exports the labels that a service received."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli.output import say, write_csv
from lastword.errors import InputError
from lastword.files.wording import counted


def feedback(
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="File or address of `lastword serve --state`.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV file to write.")],
) -> None:
    """Export the labels that a service received as a table for `lastword try`."""
    from lastword.files.rows import is_table
    from lastword.service.ledger import labelled_rows

    if is_table(Path(state)):
        raise InputError(
            f"{state} is a table, not a state of `lastword serve`: give it to `lastword try`"
        )
    rows, several = labelled_rows(state)
    if several:
        say(f"lastword: left out {counted(several, 'answer')} with several right options")
    if not rows:
        raise InputError(f"{state} has no labels with their texts: serve with --keep-texts")
    write_csv(out, (rows[0], *(row.values() for row in rows)))
    typer.echo(f"{out}: {counted(len(rows), 'label')}")
