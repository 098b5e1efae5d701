"""Priors: scores of a question's options without the input, which are the same for each text."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from jaxtyping import Float

from lastword.rule.geometry import Scores
from lastword.text.tokens import Encoded, EncodedItem

MOST = 4096  # prompts; each has at most 255 scores

ByBranch = Float[np.ndarray, " branches"]  # in the order of a batch


class Priors:
    """The model's scores b after the blind and content-free prompts that were used last."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._scores: OrderedDict[bytes, Scores] = OrderedDict()

    def of(self, encoded: Sequence[EncodedItem]) -> ByBranch:
        """Return the kept score of each branch; nan if it is not kept, or if the input is in it."""
        return np.concatenate([self._of(one, p) for one in encoded for p in one.prompts])

    def _of(self, one: EncodedItem, prompt: Encoded) -> ByBranch:
        unknown = np.full(len(prompt.branches), np.nan)
        return unknown if prompt is one.prompt else self._scores.get(_name(prompt), unknown)

    def keep(self, encoded: Sequence[EncodedItem], scores: ByBranch) -> None:
        """Keep the scores of all branches without the input, if they are finite."""
        start = 0
        for one in encoded:
            for prompt in one.prompts:
                part = scores[start : start + len(prompt.branches)]
                start += len(part)
                if prompt is not one.prompt and np.isfinite(part).all():
                    self._scores.pop(name := _name(prompt), None)  # so that it is the newest
                    self._scores[name] = part.copy()
        while len(self._scores) > self._most:
            self._scores.popitem(last=False)


def _name(prompt: Encoded) -> bytes:
    return blake2b(repr(prompt.branches).encode(), digest_size=16).digest()
