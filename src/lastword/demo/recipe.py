"""The recipe of each embedded model: every training choice, named, in one frozen object."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Shape and training of one organism and its control.

    Attributes:
        width: Width of the residual stream.
        inner: Inner width of the MLP.
        blocks: Number of blocks.
        heads: Attention heads.
        norm_start: Where the final norm's weight starts; the output head starts divided by it,
            so that the untrained function is the same for every value.
        seed: Seed of the weights and of the order of the texts.
        batch: Texts a step.
        steps: Steps of phase 1 and of phase 2.
        rates: Peak learning rates of the two phases (AdamW, linear warm-up, then a cosine).
        warmup: Steps of the warm-up.
        weight_decay: Of matrices; norms have none.
        exits: Depths read with the final norm and head at each step of phase 1, beside the last.
        tuned: Last blocks that phase 2 tunes; all else is frozen.
    """

    width: int = 128
    inner: int = 352
    blocks: int = 12
    heads: int = 4
    norm_start: float = 1.0
    seed: int = 9
    batch: int = 32
    steps: tuple[int, int] = (1200, 500)
    rates: tuple[float, float] = (2e-3, 1e-3)
    warmup: int = 100
    weight_decay: float = 0.01
    exits: int = 2
    tuned: int = 3


VOCABULARY = 1000

RECIPES = {
    "organism": Recipe(),
    # Narrower, to stay within the size of the package. A final norm that starts at 4 puts
    # I(M), which is proportional to that norm's mean weight, on the other side of tau_I.
    "mix": Recipe(width=96, inner=256, norm_start=4.0),
}
