"""`lastword doctor`: reports what is installed, what would run, and what is missing."""

import typer

from lastword.cli import options as opt
from lastword.cli.output import grid, show
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json


def doctor(json: opt.Json = False) -> None:
    """Show the hardware and packages of this machine, what runs on it, and what is missing."""
    with waiting("looking around"):
        from lastword.model.machine import describe_machine

        facts = describe_machine()
    if json:
        typer.echo(to_json(facts))
        return
    tables = {
        "version": {n: version or "not installed" for n, version in facts["versions"].items()},
        "device": {
            d["name"]: d["is"] + ("" if d["free_gb"] is None else f", {d['free_gb']:g} GB free")
            for d in facts["devices"]
        },
        "extra": {
            name: f'missing {", ".join(gone)}: pip install "lastword[{name}]"' if gone else "here"
            for name, gone in facts["extras"].items()
        },
        "model": {
            name: place or f"not here: lastword get {name.removeprefix('lastword/')}"
            for name, place in facts["models"].items()
        },
    }
    show(*(grid((title, ""), rows.items()) for title, rows in tables.items()))
