"""`lastword invariant`: I(M), its factors, and the branch that it chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.output import printable
from lastword.cli.progress import waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.model.embedded import EMBEDDED
from lastword.model.named import OWN, locate
from lastword.theta import Theta

if TYPE_CHECKING:
    from lastword.model.presets import Preset
    from lastword.weights.invariant import Factors, Interpretation


@dataclass(frozen=True)
class PaperOptions:
    """The published values that stand beside ours, if any."""

    against_paper: Annotated[bool, "Show every reading beside the published values."] = False
    paper_model: Annotated[
        str | None, "The paper's model that this is; left out, it is told by the name."
    ] = None

    def find(self, model: str) -> "Preset | None":
        """The paper's model that is meant; None where only a name was to tell, and did not."""
        from lastword.model.presets import find_preset, presets

        preset = find_preset(self.paper_model or model)
        if preset is None and self.paper_model is not None:
            names = ", ".join(preset.model for preset in presets())
            raise InputError(f"the paper has no {self.paper_model}: expected one of {names}")
        return preset


def invariant(
    model: Annotated[
        str, "Hub name, folder, weights or GGUF file; lastword/demo-organism too.", typer.Argument()
    ],
    *,
    revision: Annotated[str | None, "Branch, tag or commit on the hub."] = None,
    gguf: Annotated[str | None, "Name of a GGUF file in the folder, or on the hub."] = None,
    theta: Annotated[Path | None, "TOML file that overrides constants of the method."] = None,
    paper: PaperOptions,
    as_json: Annotated[bool, "Print all of it as JSON."] = False,
) -> None:
    """Read I(M) from five tensors of a checkpoint, without loading the model."""
    constants = Theta() if theta is None else Theta.from_toml(theta)
    if model.startswith(EMBEDDED):
        if paper.against_paper:
            raise typer.BadParameter("the paper has no embedded model: leave --against-paper out")
        _print_factors(model, _embedded(model, constants), constants, as_json)
        return
    source = locate(model) if model.startswith(OWN) else model
    where = {"revision": revision, "gguf": gguf}
    with waiting(f"reading {model}"):
        from lastword.weights.invariant import read_interpretations, read_invariant

        if not paper.against_paper:
            factors = read_invariant(source, theta=constants, **where)
        else:
            preset = paper.find(model)
            readings = read_interpretations(source, theta=constants, **where)
    if paper.against_paper:
        _print_readings(model, readings, preset, constants, as_json)
    else:
        _print_factors(model, factors, constants, as_json)


def _embedded(model: str, theta: Theta) -> "Factors":
    """Read the factors of a model that the package carries; a control's weights are two files."""
    with waiting(f"reading {model}"):
        from lastword.demo import load
        from lastword.weights.invariant import model_invariant

        return model_invariant(load(model.removeprefix(EMBEDDED))[0], theta=theta)


def _print_factors(model: str, factors: "Factors", theta: Theta, as_json: bool) -> None:
    branch = factors.branch(theta.tau_I)
    if as_json:
        typer.echo(to_json(factors.to_dict() | {"branch": branch}))
        return
    e, m = factors.blocks
    for name, value, meaning in (
        ("phi_N", factors.phi_N, "mean |weight| of the final norm"),
        ("phi_K", factors.phi_K, f"rcv of the key projection of block {e}"),
        ("phi_V", factors.phi_V, f"rcv of the value projections, block {e} over block {m}"),
        ("phi_O", factors.phi_O, f"rcv of the output projection of block {m}"),
        ("I(M)", factors.value, f"{branch} branch (tau_I = {theta.tau_I:g})"),
    ):
        typer.echo(f"{name:<6} {value:<10.6g} {meaning}")
    typer.echo(printable(f"read from {model} ({factors.depth} blocks, {factors.layout}):"))
    for name in factors.tensors:
        typer.echo(printable(f"  {name}"))


def _print_readings(
    model: str,
    readings: "tuple[Interpretation, ...]",
    paper: "Preset | None",
    theta: Theta,
    as_json: bool,
) -> None:
    """Print all eight readings, and how far each is from the paper's where it has this model."""
    from dataclasses import asdict

    printed = None if paper is None else paper.invariant
    rows = [
        {
            **asdict(r.switches),
            "invariant": r.factors.value,
            "branch": r.factors.branch(theta.tau_I),
        }
        for r in readings
    ]
    if as_json:
        reference = None if paper is None else {"model": paper.model, "invariant": printed}
        typer.echo(to_json({"paper": reference, "readings": rows}))
        return
    typer.echo(f"{'output_rows':<12} {'block':<6} {'norm':<10} {'I(M)':>10}  branch  as printed")
    for row in rows:
        agrees = "" if printed is None else _agrees(row["invariant"], printed)
        typer.echo(
            f"{row['output_rows']:<12} {row['block']:<6} {row['norm']:<10} "
            f"{row['invariant']:>10.4g}  {row['branch']:<6}  {agrees}".rstrip()
        )
    if paper is None:
        _print_paper(model)
    else:
        line = f"the paper prints {paper.invariant:.2f} ({paper.branch}) for {paper.model}"
        typer.echo(printable(f"{line}; the first line is the default reading"))


def _agrees(value: float, printed: float) -> str:
    return "yes" if f"{value:.2f}" == f"{printed:.2f}" else f"no ({value - printed:+.2f})"


def _print_paper(model: str) -> None:
    """Print the fifteen published values, for a checkpoint that is none of them by name."""
    from lastword.model.presets import presets

    typer.echo(printable(f"{model} is none of the paper's models by name; the paper prints:"))
    for preset in presets():
        typer.echo(f"  {preset.model:<28} {preset.invariant:>6.2f}  {preset.branch}")
    typer.echo("--paper-model NAME compares with one of them")
