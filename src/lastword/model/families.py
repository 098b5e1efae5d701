"""The model families that were tested (`lastword models`, `families.csv`).

For other decoder-only models of transformers, the check at load decides.
"""

import csv
from pathlib import Path
from typing import NamedTuple

LOADING = ("int8", "nf4")


class Family(NamedTuple):
    """A model type, with properties that tests check on small random checkpoints on the CPU.

    Attributes:
        model_type: `config.model_type` in transformers.
        head: transformers' class, whose forward computes the logits.
        road: `packed` if the check at load takes the packed forest, else `plain`.
        rule: Operations of that class besides the norm and the head's weights.
        wrapper: Model type of the multimodal wrapper with this text model; empty without one.
        tried: Quantisations that were compared with dense weights: `fp8` and `mxfp4` as stored,
            `int8` and `nf4` by `--load quantize`.
        note: Special properties of its positions or attention.
    """

    model_type: str
    head: str
    road: str
    rule: str
    wrapper: str
    tried: tuple[str, ...]
    note: str


def _read_list() -> tuple[Family, ...]:
    with (Path(__file__).parent / "families.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return tuple(Family(**row | {"tried": tuple(row["tried"].split())}) for row in rows)


FAMILIES = _read_list()
