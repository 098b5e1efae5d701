"""Everyday: the blind prompts of a pair are equal, and limits do not split pairs."""

import pytest

from lastword.lab.benchmarks import find


@pytest.mark.parametrize("variant", find("everyday").templates)
def test_both_items_of_a_pair_have_the_same_blind_prompt(variant):
    items = find("everyday").load().items(find("everyday").template(variant))
    pairs = [item for item in items if str(item.id).startswith("pair")]
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        assert (a.blind_prompt, a.candidates) == (b.blind_prompt, b.candidates)
        assert a.prompt != b.prompt


def test_limit_selects_whole_pairs():
    ids = [e.id for e in find("everyday").load(limit=40, seed=3).examples]
    pairs = {i[:-2] for i in ids if i.startswith("pair")}
    assert pairs and all({f"{p}/a", f"{p}/b"} <= set(ids) for p in pairs)
