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
        variants: Other checkpoints that the paper's name may mean.
    """

    model: str
    hub: str
    billions: float
    context: int
    invariant: float
    branch: Literal["mix", "early"]
    precision: str | None = None
    variants: tuple[str, ...] = ()


@cache
def presets() -> tuple[Preset, ...]:
    """The fifteen, in the order of the paper's master grid."""
    text = files("lastword.model").joinpath("models.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["models"]
    return tuple(Preset(**row | {"variants": tuple(row.get("variants", ()))}) for row in rows)


def find_preset(name: str) -> Preset | None:
    """The preset that a hub name, a variant, a folder of that name or the paper's name means."""
    own = name.rstrip("/").rpartition("/")[2].casefold()
    for preset in presets():
        names = (preset.model, preset.hub, *preset.variants)
        if own in (n.rpartition("/")[2].casefold() for n in names):
            return preset
    return None
