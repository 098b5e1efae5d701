"""Methods and corrections of a user, passed as objects."""

import families
import numpy as np
import pytest

from lastword import Decider, Tracer
from lastword.decide.batch import Scope
from lastword.errors import ItemError
from lastword.methods import Evidence, Method, Needs


def last_agreeing(evidence: Evidence) -> np.ndarray:
    """Return the scores of the last depth that agrees with the one after it."""
    S = evidence.trajectory.scores
    choices = S.argmax(axis=0)
    agreeing = np.flatnonzero(choices[:-1] == choices[1:])
    return S[:, agreeing[-1]] if len(agreeing) else evidence.trajectory.base


def raised(evidence: Evidence) -> np.ndarray:
    """Return how much the question raises each candidate."""
    assert evidence.blind is not None
    return evidence.trajectory.base - evidence.blind.base


@pytest.fixture(scope="module")
def tracer() -> Tracer:
    return Tracer(families.build("llama"), families.tokenizer())


def test_a_method_scores_and_corrects(tracer):
    items = families.random_items(3, 4, candidates=(2, 3))
    every = frozenset(range(tracer.facts.depth + 1))
    own = Method("last-agreeing", Needs(every), last_agreeing)
    compared = list(tracer.correct_many(items, methods={"own": own}))
    corrected = list(Decider(tracer, correction=own).correct_many(items))
    encoded = tracer.encode(items)
    for decision, other, whole in zip(
        compared, corrected, tracer.decide_group(encoded, Scope("all")), strict=True
    ):
        S = whole.trajectory
        agreeing = [d for d in range(6) if S[:, d].argmax() == S[:, d + 1].argmax()]
        expected = S[:, agreeing[-1]] if agreeing else S[:, 6]
        for scores in (decision.methods["own"], other.scores):
            np.testing.assert_allclose(scores, expected, rtol=1e-5)
        assert (other.operator, other.index) == ("last-agreeing", int(expected.argmax()))


def test_a_correction_reads_the_blind_prompt_that_it_needs(tracer):
    last = frozenset([tracer.facts.depth])
    own = Method("raised", Needs(last, blind=last), raised)
    decider = Decider(tracer, correction=own)
    prompts = {"prompt": "w4 w9", "candidates": ["w5", "w6 w7"]}
    decision = decider.correct(**prompts, blind_prompt="w9")
    base, blind = (
        tracer.correct(prompt, prompts["candidates"]).base_scores for prompt in ("w4 w9", "w9")
    )
    np.testing.assert_allclose(decision.scores, base - blind, atol=1e-5)
    with pytest.raises(ItemError, match="blind_prompt"):
        decider.correct(**prompts)
