"""The paper's fifteen models as data (`models.toml`): where they are, and the I(M) it prints."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True)
class Preset:
    """One model of the paper's grid.

    Attributes:
        model: As the paper names it.
        hub: The checkpoint of that name on the hub.
        billions: Parameters, in billions.
        context: Positions of the checkpoint's own config.
        invariant: I(M) as printed, two decimals.
        branch: The scalar regime's branch as printed.
        precision: `int8`, `nf4`, `fp8`, `mxfp4` or `bfloat16`; None where the paper does not say.
    """

    model: str
    hub: str
    billions: float
    context: int
    invariant: float
    branch: Literal["mix", "early"]
    precision: str | None = None


@cache
def presets() -> tuple[Preset, ...]:
    """The fifteen, in the order of the paper's master grid."""
    text = files("lastword.model").joinpath("models.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["models"]
    return tuple(Preset(**row) for row in rows)
