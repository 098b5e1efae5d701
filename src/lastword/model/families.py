"""The model families that were tested; for others, the check at load decides."""

import csv
from pathlib import Path
from typing import NamedTuple


class Family(NamedTuple):
    """A model type, with properties that tests check on small random checkpoints on the CPU."""

    model_type: str
    head: str  # transformers' class, whose forward computes the logits
    road: str  # `packed` if the check at load takes the packed forest, else `plain`
    rule: str  # operations of that class besides the norm and the head's weights
    wrapper: str  # model type of the multimodal wrapper with this text model
    tried: tuple[str, ...]  # quantisations that were compared with dense weights
    note: str  # special properties of its positions or attention


_LINES = (Path(__file__).parent / "families.csv").read_text(encoding="utf-8").splitlines()
FAMILIES = tuple(
    Family(**row | {"tried": tuple(row["tried"].split())}) for row in csv.DictReader(_LINES)
)
