"""`lastword models`: lists the model families and the variants that were tested."""

from dataclasses import asdict

import typer

from lastword.cli import options as opt
from lastword.cli.output import grid, show
from lastword.files.strict_json import to_json
from lastword.model.families import FAMILIES

_AFTER = """\
quantised: what was loaded here and held to dense weights, on random small checkpoints and the CPU;
fp8 and mxfp4 as stored (plain weights on the CPU), int8 and nf4 by --load quantize. Kernels that
only a GPU has, GPTQ, AWQ and checkpoints of full size were not tried.
readout: the class of transformers whose forward turns states into logits, and what it does
beside norm and head; every model that is loaded is compared with its logits.
Other decoder-only models of transformers are tried too: the check at load compares the packed road
with the plain one and the readout with the model's logits, and refuses by name what does not
agree."""


def models(json: opt.Json = False) -> None:
    """List the model families that were tested, and how each is read."""
    if json:
        typer.echo(to_json([asdict(family) for family in FAMILIES]))
        return
    rows = []
    for family in FAMILIES:
        readout = family.head + (f": {family.rule}" if family.rule else "")
        names = (family.model_type, family.road, family.wrapper or "")
        rows.append((*names, ", ".join(family.tried) or "none", readout, family.note))
    show(grid(("family", "road", "wrapper", "quantised", "readout", "note"), rows))
    typer.echo(_AFTER)
