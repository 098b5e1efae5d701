"""Slices: parts of the items that satisfy the promise alone, and parts that break too much."""

import numpy as np
from populations import Kind, at, in_groups, labelled
from scipy.stats import binom

from lastword.trust.claims import certify
from lastword.trust.slices import slices
from lastword.trust.terms import Terms
from lastword.trust.words import sliced

FIXED, BROKEN, STILL = range(3)
KINDS = labelled(
    [Kind(0, False, True, "decisive"), Kind(0, True, False, "decisive"), Kind(0, True, True)]
)
TERMS = Terms(0.05)


def population(**counts):
    """Return items with these fixed, broken and unchanged per slice, and their slices."""
    places = [p for triple in counts.values() for p, n in enumerate(triple) for _ in range(n)]
    names = [name for name, triple in counts.items() for _ in range(sum(triple))]
    return at(KINDS, np.array(places)), names


def test_a_slice_that_breaks_too_much_is_named():
    items, names = population(good=(60, 0, 940), bad=(0, 12, 38))
    finding = certify(items, "mix", TERMS)
    assert finding.chosen is not None
    good, bad = slices(items, names, finding)[::-1]
    assert (good.name, good.items, good.fixed, good.broken) == ("good", 1000, 60, 0)
    assert (bad.name, bad.items, bad.fixed, bad.broken) == ("bad", 50, 0, 12)
    assert good.holds and not good.exceeds and bad.exceeds and not bad.holds
    words = sliced([bad, good], "truth", TERMS)
    assert "for good alone. Warning" in words and words.endswith("in bad (12 of 50).")


def test_the_levels_follow_holm():
    """The smaller of two p-values has half of the level of one of four policies."""
    level = 0.05 / 4 / 2
    fewest = next(n for n in range(1, 1000) if binom.cdf(0, n, 0.05) <= level)
    for size, holds in ((fewest - 1, False), (fewest, True)):
        items, names = population(a=(40, 0, size - 40), b=(0, 1, 40))
        first = slices(items, names, certify(items, "mix", TERMS))[0]
        assert (first.name, first.holds) == ("a", holds)


def test_copies_in_a_group_count_once():
    items, names = population(a=(100, 0, 300), b=(0, 6, 44))
    finding = certify(in_groups(items, 3), "mix", TERMS)
    assert finding.chosen is not None
    alone = {part.name: part for part in slices(items, names, finding)}
    copied = {
        part.name: part for part in slices(in_groups(items, 3), [*np.repeat(names, 3)], finding)
    }
    assert copied["b"].items == 3 * alone["b"].items
    assert not copied["b"].exceeds  # 18 of 150 independent items would exceed
    single, single_names = population(a=(100, 0, 300), b=(0, 18, 132))
    assert slices(single, single_names, finding)[1].exceeds


def test_slices_without_allowed_overrides_are_empty():
    items, names = population(a=(0, 0, 300))
    assert slices(items, names, certify(items, "mix", TERMS)) == []
    assert sliced([], "group", TERMS) == "By group: no override is allowed in any slice."
