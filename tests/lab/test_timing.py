"""The bench: equal results first, and a tracer that is unchanged afterwards."""

from dataclasses import replace

import pytest

from lastword import Item, Tracer
from lastword.decide.decider import Decider
from lastword.lab.timing import contenders
from lastword.lab.timing.meter import metered
from lastword.lab.timing.run import NAMES, bench

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
    result = bench(
        Decider(tracer), encoded, rounds=1, against=("plain base", "padded base", "plain trace")
    )
    assert set(result.seconds) == {*NAMES.values(), "plain base", "padded base", "plain trace"}
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
    few, everything = (result.meters[NAMES[r]] for r in ("decide", "all"))
    assert few.tokens == everything.tokens
    assert few.reads < everything.reads


def test_the_harness_gives_the_same_sums(tracer):
    pytest.importorskip("lm_eval")
    encoded = tracer.encode(ITEMS)
    theirs = contenders.lm_eval(tracer, 2)(encoded)
    ours = contenders.sums_of(encoded, contenders.ours(Decider(tracer), encoded, "base"))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


def test_metering_does_not_change_the_tracer(tracer):
    encoded = tracer.encode(ITEMS)
    before = contenders.ours(Decider(tracer), encoded, "all")
    with metered(tracer) as meter:
        contenders.ours(Decider(tracer), encoded, "all")
    fed = {s[:i] for e in encoded for s in e.prompt.sequences for i in range(1, len(s))}
    assert meter.tokens == len(fed), "every distinct prefix is fed once"
    assert 0 < sum(meter.seconds.values()) <= meter.total
    assert not {"plan"} & vars(tracer).keys()
    assert not {"logits", "log_probs"} & vars(tracer.readout).keys()
    after = contenders.ours(Decider(tracer), encoded, "all")
    assert [d.scores.tolist() for d in before] == [d.scores.tolist() for d in after]
