"""The bench: equal results first, and a tracer that is unchanged afterwards."""

from dataclasses import replace

import pytest

from lastword import Item, Tracer
from lastword.decide.decider import Decider
from lastword.lab.timing import NAMES, bench, lm_eval, ours, sums_of

ITEMS = [
    Item(
        "Question: Which goods come from Baevwick? Answer:", ("clay lamps", "cedar boats", "hats")
    ),
    Item("Question: Which goods come from Gluthholt? Answer:", ("copper masks", "horn bells")),
]


@pytest.fixture(scope="module")
def tracer() -> Tracer:
    return Tracer.demo()


def test_every_contender_gives_the_same_sums(tracer):
    encoded = tracer.encode(ITEMS)
    result = bench(Decider(tracer), encoded, rounds=1, against=("plain base", "plain trace"))
    assert set(result.seconds) == {*NAMES.values(), "plain base", "plain trace"}
    assert result.tolerance == 1e-4 and all(map(result.agrees, result.seconds))
    staged, plain = result.seconds[NAMES["decide"]], result.seconds["plain base"]
    assert result.ratio(NAMES["decide"], "plain base") == staged / plain
    costs = result.to_dict()["costs"]
    assert costs["packed TRACE / plain base"] == staged / plain
    assert costs["packed TRACE / packed base"] == staged / result.seconds[NAMES["base"]]
    assert costs["plain TRACE / plain base"] == result.seconds["plain trace"] / plain
    # Sums of different roads differ in the last bits.
    assert not replace(result, tolerance=0.0).agrees("plain base")
    for wrong in (replace(result, tolerance=0.0), replace(result, same_decisions=False)):
        assert wrong.ratio(NAMES["decide"], "plain base") is None


def test_the_harness_gives_the_same_sums(tracer):
    pytest.importorskip("lm_eval")
    encoded = tracer.encode(ITEMS)
    theirs = lm_eval(tracer, 2)(encoded)
    base = sums_of(encoded, ours(Decider(tracer), encoded, "base"))
    for mine, other in zip(base, theirs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
