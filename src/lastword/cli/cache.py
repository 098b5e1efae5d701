"""`lastword cache`: what is kept between commands and can be made again, and its removal."""

from typing import Annotated

import typer

from lastword.cli.output import printable, show


def cache(
    clear: Annotated[bool, "Remove it all: the next load reads each file anew."] = False,
) -> None:
    """List what GGUF files were dequantised to for the next load, or remove it."""
    from datetime import datetime

    from lastword.model import dequantised

    if clear:
        typer.echo(f"{dequantised.clear() / 1e9:.1f} GB are free again")
        return
    entries = dequantised.entries()
    if entries:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for title in ("file", "GB", "last used", "folder"):
            table.add_column(title, overflow="fold")
        for entry in entries:
            used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
            size = f"{entry.size / 1e9:.2f}"
            table.add_row(printable(entry.file), size, used, printable(str(entry.place)))
        show(table)
    total, most = sum(entry.size for entry in entries) / 1e9, dequantised.limit() / 1e9
    typer.echo(
        f"{total:.1f} of at most {most:g} GB ({dequantised.LIMIT_VARIABLE}; 0 keeps nothing); "
        "--clear removes it"
    )
