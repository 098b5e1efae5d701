"""`tracelm models`: the families, and what holds for each."""

import typer


def models() -> None:
    """List the model families, the road that each takes, and what is special about it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from tracelm.cli.progress import waiting

    with waiting("loading transformers"):
        from tracelm.families import FAMILIES

    table = Table("family", "road", "wrapper", "note", box=box.SIMPLE_HEAD)
    for family in FAMILIES:
        table.add_row(family.model_type, family.road, family.wrapper or "", family.note)
    Console().print(table)
    typer.echo(
        "Other decoder-only models of transformers are tried too: the check at load compares the\n"
        "packed road with the plain one and the readout with the model's own logits, and refuses\n"
        "by name what does not agree."
    )
