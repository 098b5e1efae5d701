"""The options of drawing answers, apart from what draws: nothing heavy is imported here."""

import math
from dataclasses import dataclass
from typing import Annotated

from lastword.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """The options of drawing answers.

    Raises:
        InputError: A number out of its range.
    """

    k: Annotated[int, "Samples, beside the greedy answer."] = 8
    temperature: Annotated[
        float, "Divides the scores; 0 takes the best token, as greedy decoding does."
    ] = 0.7
    seed: Annotated[
        int, "The same seed draws the same answers; a larger k adds to those of a smaller."
    ] = 0
    max_new_tokens: Annotated[int, "Most tokens of an answer."] = 32

    def __post_init__(self) -> None:
        """Refuse what draws nothing."""
        if self.k < 1 or self.max_new_tokens < 1:
            raise InputError("k and max_new_tokens are at least 1")
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature is 0 or more, not {self.temperature}")
        if self.seed < 0:
            raise InputError(f"a seed is 0 or more, not {self.seed}")
