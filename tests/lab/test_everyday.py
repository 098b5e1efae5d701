"""Everyday: what its file may hold, and that nothing but the facts tells the truth."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lastword.lab.benchmarks import Example, find
from lastword.records.metrics import mc1, pair_accuracy

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
EXAMPLES = find("everyday").load().examples
SORTS = ("plain", "popular", "pair")
TOLERANCE = 0.05  # of a baseline's MC1 around chance

Score = Callable[[Example], Sequence[float]]


def of_sort(sort: str) -> list[Example]:
    return [e for e in EXAMPLES if e.id.split("/")[0] in (sort, *(SORTS if sort == "all" else ()))]


def first_word(candidate: str) -> str:
    return candidate.split()[0].lower()


WORDS = Counter(first_word(c) for e in EXAMPLES for c in e.candidates)

BASELINES: dict[str, Score] = {
    "shortest": lambda e: [-len(c) for c in e.candidates],
    "longest": lambda e: [len(c) for c in e.candidates],
    "fewest words": lambda e: [-len(c.split()) for c in e.candidates],
    "first": lambda e: [-i for i in range(len(e.candidates))],
    "last": lambda e: list(range(len(e.candidates))),
    "commonest first word": lambda e: [WORDS[first_word(c)] for c in e.candidates],
    "rarest first word": lambda e: [-WORDS[first_word(c)] for c in e.candidates],
}


def test_the_set_is_large_enough_and_says_what_it_holds():
    sizes = {sort: len(of_sort(sort)) for sort in SORTS}
    assert sizes == {"plain": 80, "popular": 80, "pair": 140}
    loaded = find("everyday").load()
    assert loaded.version == "300 items, 70 pairs" and loaded.source == "everyday.jsonl"
    assert 3 <= np.mean([len(e.candidates) for e in EXAMPLES]) <= 5


def test_a_pair_is_two_questions_over_one_candidate_set_with_different_truths():
    pairs = of_sort("pair")
    assert [e.id[-2:] for e in pairs] == ["/a", "/b"] * (len(pairs) // 2)
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        assert a.id[:-2] == b.id[:-2]
        assert a.candidates == b.candidates and a.truthful != b.truthful
        assert a.fields["question"] != b.fields["question"]


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


@pytest.mark.parametrize("sort", ["all", *SORTS])
@pytest.mark.parametrize("name", BASELINES)
def test_what_does_not_know_the_facts_stays_near_chance(name, sort):
    examples = of_sort(sort)
    chance = np.mean([1 / len(e.candidates) for e in examples])
    rights = [mc1(BASELINES[name](e), np.array(e.truthful)) for e in examples]
    assert abs(np.mean(rights) - chance) < TOLERANCE


@pytest.mark.parametrize("name", BASELINES)
def test_who_does_not_read_the_question_gets_no_pair(name):
    pairs = of_sort("pair")
    rights = [mc1(BASELINES[name](e), np.array(e.truthful)) for e in pairs]
    assert pair_accuracy([e.id for e in pairs], rights) == 0
    assert np.mean(rights) <= 0.5


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data here")
def test_no_question_is_one_of_truthfulqa():
    theirs = {e.fields["question"].lower() for e in find("truthfulqa").load(SHARED).examples}
    assert not theirs & {e.fields["question"].lower() for e in EXAMPLES}
