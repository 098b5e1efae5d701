"""Groups: one normal form for copies, and items that share anything are one draw."""

import unicodedata

import pytest

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
    assert numbers([list(own) for own in items]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("one", "other"),
    [("order 5", "order 6"), ("x < y", "x > y"), ("C++ code", "C code"), ("don't", "do")],
)
def test_other_questions_are_other_groups(one, other):
    assert normal(one) != normal(other)


def test_what_names_one_group_or_is_a_pair_is_together():
    items = [
        marks("p/1/a", "one", ["x"], None),
        marks("p/1/b", "two", ["x"], None),
        marks("3", "three", ["x"], "user"),
        marks("4", "four", ["x"], "user"),
        marks("5", "five", ["x"], None),
    ]
    assert numbers([list(own) for own in items]).tolist() == [0, 0, 1, 1, 2]
