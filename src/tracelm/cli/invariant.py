"""`tracelm invariant`: I(M), its factors, and the branch that it chooses."""

from pathlib import Path
from typing import Annotated

import typer

from tracelm.cli.output import to_json
from tracelm.cli.progress import waiting


def invariant(
    model: Annotated[str, typer.Argument(help="Hub name, folder or weights file.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    theta: Annotated[
        Path | None, typer.Option(help="TOML file that overrides constants of the method.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Read I(M) from five tensors of a checkpoint, without loading the model."""
    from tracelm.theta import Theta

    constants = Theta() if theta is None else Theta.from_toml(theta)
    with waiting(f"reading {model}"):
        from tracelm.invariant import read_invariant

        factors = read_invariant(model, theta=constants, revision=revision)
    branch = factors.branch(constants.tau_I)
    if as_json:
        typer.echo(to_json(factors.to_dict() | {"branch": branch}))
        return
    e, m = factors.blocks
    for name, value, meaning in (
        ("phi_N", factors.phi_N, "mean |weight| of the final norm"),
        ("phi_K", factors.phi_K, f"rcv of the key projection of block {e}"),
        ("phi_V", factors.phi_V, f"rcv of the value projections, block {e} over block {m}"),
        ("phi_O", factors.phi_O, f"rcv of the output projection of block {m}"),
        ("I(M)", factors.value, f"{branch} branch (tau_I = {constants.tau_I:g})"),
    ):
        typer.echo(f"{name:<6} {value:<10.6g} {meaning}")
    typer.echo(f"read from {model} ({factors.depth} blocks, {factors.layout}):")
    for name in factors.tensors:
        typer.echo(f"  {name}")
