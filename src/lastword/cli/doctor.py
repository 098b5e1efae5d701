"""`lastword doctor`: reports what is installed, what would run, and what is missing."""

from typing import TYPE_CHECKING, Any

import typer

from lastword.cli import options as opt
from lastword.cli.output import printable, show
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json

if TYPE_CHECKING:
    from rich.table import Table


def doctor(json: opt.Json = False) -> None:
    """Show the hardware and packages of this machine, what runs on it, and what is missing."""
    with waiting("looking around"):
        from lastword.model.machine import describe_machine

        facts = describe_machine()
    if json:
        typer.echo(to_json(facts))
        return
    versions = {name: version or "not installed" for name, version in facts["versions"].items()}
    show(_table("versions", versions), _table("devices", _devices(facts)))
    show(_table("extras", {name: _extra(name, e) for name, e in facts["extras"].items()}))
    show(_table("models", _models(facts)))


def _table(title: str, facts: dict[str, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, title=title, title_justify="left", show_header=False, padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(Text(printable(name)), Text(printable(fact)))
    return table


def _devices(facts: dict[str, Any]) -> dict[str, str]:
    return {
        d["name"]: d["is"] + ("" if d["free_gb"] is None else f", {d['free_gb']:g} GB free")
        for d in facts["devices"]
    }


def _extra(name: str, missing: list[str]) -> str:
    return f'missing {", ".join(missing)}: pip install "lastword[{name}]"' if missing else "here"


def _models(facts: dict[str, Any]) -> dict[str, str]:
    return {
        name: place or f"not here: lastword get {name.removeprefix('lastword/')}"
        for name, place in facts["models"].items()
    }
