"""`lastword models`: lists the model families and the variants that were tested."""

import typer

from lastword.cli import options as opt
from lastword.cli.output import grid, show
from lastword.files.strict_json import to_json
from lastword.model.families import FAMILIES

_AFTER = """\
code path: packed computes all texts of a batch as one prefix tree, plain as full sequences.
quantised: formats that were compared with dense weights, on small random checkpoints on the CPU.
fp8 and mxfp4 are stored in the checkpoint; int8 and nf4 are made by --load quantize. GPU kernels,
GPTQ, AWQ and full-size checkpoints were not tested.
readout: the class of transformers that computes logits, and its steps besides norm and head.
Other decoder-only models of transformers may work. At load, lastword compares both code paths with
each other, and the readout with the model's logits. It refuses a model that does not agree."""


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
    typer.echo(_AFTER)
