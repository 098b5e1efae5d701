"""`lastword invariant`: prints I(M), its factors, and the branch that it chooses."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import quiet
from lastword.cli.output import printable, say
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json
from lastword.model.named import PREFIX
from lastword.trust.policy import scalar_operator

if TYPE_CHECKING:
    from lastword.model.weights.invariant import Factors


def invariant(
    model: Annotated[
        str,
        typer.Argument(help="Hub name, folder or GGUF file; also lastword/demo-organism."),
    ],
    json: opt.Json = False,
) -> None:
    """Print the invariant I(M) of a checkpoint, its factors and the branch it selects."""
    with waiting(f"reading {model}"):
        factors = read_factors(model)
    _print(model, factors, json)


def read_factors(model: str, revision: str | None = None) -> "Factors":
    """Return the factors of I(M); models without safetensors of their own are loaded for this."""
    from lastword.model.weights.identity import is_adapter
    from lastword.model.weights.invariant import model_invariant, read_invariant
    from lastword.rule.theta import Theta

    path = Path(model).expanduser()
    if model.startswith(PREFIX) or is_adapter(path) or path.is_file():
        from lastword.model import loading
        from lastword.model.options import LoadOptions

        quiet()
        options = LoadOptions(model, revision=revision, device="cpu")
        return model_invariant(loading.load(options).model, theta=Theta(), readings=True)
    return read_invariant(model, theta=Theta(), revision=revision, readings=True)


def _print(model: str, factors: "Factors", as_json: bool) -> None:
    from lastword.model.weights.invariant import on_both_sides
    from lastword.rule.theta import Theta

    tau_I = Theta().tau_I
    branch = factors.branch(tau_I)
    if as_json:
        typer.echo(to_json(factors.to_dict() | {"branch": branch}))
        return
    e, m = factors.blocks
    for name, value, meaning in (
        ("phi_N", factors.phi_N, "mean |weight| of the final norm"),
        ("phi_K", factors.phi_K, f"rcv of the key projection of block {e}"),
        ("phi_V", factors.phi_V, f"rcv of the value projections, block {e} over block {m}"),
        ("phi_O", factors.phi_O, f"rcv of the output projection of block {m}"),
        ("I(M)", factors.value, f"{branch} branch (tau_I = {tau_I:g})"),
    ):
        typer.echo(f"{name:<6} {value:<10.6g} {meaning}")
    typer.echo("by each reading (output_rows/block/norm):")
    for name, value in factors.readings.items():
        typer.echo(f"  {name:<23} {value:<10.6g} {scalar_operator(value, tau_I)}")
    if on_both_sides(factors.readings.values(), tau_I):
        say(f"lastword: the readings of I(M) lie on both sides of tau_I = {tau_I:g}")
    typer.echo(printable(f"read from {model} ({factors.depth} blocks, {factors.layout}):"))
    for name in factors.tensors:
        typer.echo(printable(f"  {name}"))
