"""Everyday: what its file may hold, and that nothing but the facts tells the truth."""

import pytest

from lastword.lab.benchmarks import find


@pytest.mark.parametrize("variant", find("everyday").templates)
def test_without_the_question_both_of_a_pair_read_the_same(variant):
    items = find("everyday").load().items(find("everyday").template(variant))
    pairs = [item for item in items if str(item.id).startswith("pair")]
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        assert (a.blind_prompt, a.candidates) == (b.blind_prompt, b.candidates)
        assert a.prompt != b.prompt


def test_limit_keeps_pairs_whole():
    ids = [e.id for e in find("everyday").load(limit=40, seed=3).examples]
    pairs = {i[:-2] for i in ids if i.startswith("pair")}
    assert pairs and all({f"{p}/a", f"{p}/b"} <= set(ids) for p in pairs)
