"""Groups: one normal form for copies; items with a common mark are one group."""

import unicodedata

import numpy as np
import pytest

from lastword.trust.evidence import as_good
from lastword.trust.groups import marks, normal, numbers

TEXT = "Where’s my order — “Café #5”?"


@pytest.mark.parametrize(
    "copy",
    [
        TEXT.upper(),
        f"  {TEXT}\n",
        TEXT.replace(" ", "\u00a0"),
        TEXT.rstrip("?") + " !!",
        f"<p>{TEXT}</p>",
        f"<div class='x'>{TEXT}<br/></div>",
        TEXT.replace("“", "&ldquo;").replace("é", "&eacute;"),
        unicodedata.normalize("NFD", TEXT),
        TEXT.replace("order", "or\u200bder\ufeff"),
        TEXT.replace("order", "ｏｒｄｅｒ"),
        TEXT.replace("order", "order."),
    ],
)
def test_copies_are_one_group(copy):
    assert normal(copy) == normal(TEXT)
    items = [marks(str(i), text, ["a", "b"], None) for i, text in enumerate((TEXT, copy))]
    assert numbers([list(item) for item in items]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("one", "other"),
    [("order 5", "order 6"), ("x < y", "x > y"), ("C++ code", "C code"), ("don't", "do")],
)
def test_different_texts_have_different_normal_forms(one, other):
    assert normal(one) != normal(other)


@pytest.mark.parametrize(
    ("corrected", "broken", "good"), [(0, 0, True), (4, 2, True), (4, 1, False), (7, 1, False)]
)
def test_as_good_means_within_one_standard_error_over_groups(corrected, broken, good):
    best, other, groups = np.ones(100), np.ones(100), np.repeat(np.arange(100), 4)
    best[:broken], other[broken : broken + corrected] = 0, 0
    assert as_good(other, best, np.arange(100)) == good
    assert as_good(other[groups], best[groups], groups) == good
