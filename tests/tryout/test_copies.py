"""Near copies against the naive definition."""

import random

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from lastword.trust.groups import normal
from lastword.tryout.copies import NEAR, near_copies

WORDS = [f"w{n}" for n in range(2000)]


def mails(signature: int, length: int) -> list[str]:
    """Return texts with a common signature, most followed by copies with replaced words."""
    draw, texts = random.Random(length), list[str]()
    end = " ".join(f"s{n}" for n in range(signature))
    for _ in range(150):
        words = draw.choices(WORDS, k=length)
        for changes in range(draw.randrange(4)):
            for _ in range(changes):
                words[draw.randrange(length)] = draw.choice(WORDS)
            texts.append(f"{' '.join(words)} {end}")
    return [*texts, texts[0].upper(), "where is it?", "Where is it", "no", ""]


@pytest.mark.parametrize(("signature", "length"), [(0, 20), (40, 60), (40, 5), (2, 8)])
def test_groups_agree_with_the_definition(signature: int, length: int) -> None:
    texts = mails(signature, length)
    words = [normal(text).split() for text in texts]
    sets = [{*zip(text, text[1:], text[2:], strict=False)} for text in words]
    near = [
        [
            words[i] == words[j] or bool(a | b) and len(a & b) >= NEAR * len(a | b)
            for j, b in enumerate(sets)
        ]
        for i, a in enumerate(sets)
    ]
    expected = connected_components(np.array(near), directed=False)[1]
    alike = expected[:, None] == expected
    together = (groups := near_copies(texts))[:, None] == groups
    assert (together == alike).all()
