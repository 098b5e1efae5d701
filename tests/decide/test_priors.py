"""Scores without the input, which come back with the next text about the same questions."""

from dataclasses import replace

import numpy as np
import pytest

from lastword import Choice, Decider
from lastword.decide.priors import Priors
from lastword.errors import NonFiniteError

QUESTIONS = {
    "goods": Choice(
        "Which goods come from there?", ["green wool combs", "clay lamps", "horn hats"]
    ),
    "colour": Choice("Which colour is named?", ["green", "pale", "amber"]),
}
FIRST, SECOND = "Baevwick sells clay lamps.", "Barholt makes green wool combs."


def computed(decider, monkeypatch):
    """The list of how many branches each pass of the model computes."""
    counts, states = [], decider.tracer.backbone.states

    def counted(branches, *rest):
        counts.append(len(branches))
        return states(branches, *rest)

    monkeypatch.setattr(decider.tracer.backbone, "states", counted)
    return counts


@pytest.mark.parametrize(
    ("correction", "first", "second"),
    [("pmi@0.5", 12, 6), ("contextual", 24, 6), ("trace-gated", 12, 12), ("trace", 6, 6)],
)
def test_a_second_text_has_the_answers_of_a_fresh_model(monkeypatch, correction, first, second):
    decider, fresh = (Decider.demo(correction=correction, prefix_cache=n) for n in (9, 0))
    counts = computed(decider, monkeypatch)
    answers = [decider.decide(text, QUESTIONS) for text in (FIRST, SECOND)]
    assert counts == [first, second]
    expected = [fresh.decide(text, QUESTIONS) for text in (FIRST, SECOND)]
    for ours, theirs in zip(answers, expected, strict=True):
        for name in QUESTIONS:
            np.testing.assert_allclose(
                ours[name].decision.scores, theirs[name].decision.scores, atol=1e-5
            )


def test_a_model_that_may_change_is_always_read(monkeypatch):
    decider = Decider.demo(correction="pmi@0.5", prefix_cache=0)
    counts = computed(decider, monkeypatch)
    for text in (FIRST, SECOND):
        decider.decide(text, QUESTIONS)
    assert counts == [12, 12]


def test_a_prompt_whose_logits_are_not_finite_is_read_again(monkeypatch):
    """A score is finite if only other tokens of its rows have a logit that is not."""
    decider = Decider.demo(correction="pmi@0.5")
    read, last = decider.tracer.readout.read, decider.tracer.profile.depth

    def masked(states, targets, *rest):
        return replace(read(states, targets, *rest), faults=np.full(len(targets), last))

    monkeypatch.setattr(decider.tracer.readout, "read", masked)
    counts = computed(decider, monkeypatch)
    for text in (FIRST, SECOND):
        with pytest.raises(NonFiniteError):
            decider.decide(text, QUESTIONS)
    assert counts == [12, 12]


def test_prompts_that_were_not_used_for_long_are_forgotten():
    decider = Decider.demo(correction="pmi@0.5")
    goods, colour = (
        [query.item for query in decider.plan(FIRST, decider.prepare({name: QUESTIONS[name]}))]
        for name in QUESTIONS
    )
    priors = Priors(most=1)
    for item in (goods, colour):
        priors.keep(item, np.arange(6.0))
    assert np.isnan(priors.of(goods)).all()
    np.testing.assert_array_equal(priors.of(colour), [np.nan] * 3 + [3.0, 4.0, 5.0])
    priors.keep(goods, np.array([0.0, 1, 2, 3, np.nan, 5]))  # not finite: computed again
    assert np.isnan(priors.of(goods)).all()
