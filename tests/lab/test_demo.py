"""`lastword demo`: its story and its output."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from decided import decided

from lastword import Tracer
from lastword.lab.demo import story
from lastword.rule.operators import Gate
from lastword.trust.terms import Terms


def judged(base, scores, operator="base", changes=False):
    """Return a labelled decision between a true and a false candidate, of four blocks."""
    decision = decided(
        scores,
        base,
        candidates=("true", "false"),
        operator=operator,
        gates={"changes": Gate(changes, True, changes)},
        trajectory=np.array([[-1.0, -1.0, -0.1, -2.0, base[0]], [-1.0, -2, -9, -1, base[1]]]),
    )
    return replace(decision, truthful=(True, False), kind="mc1")


RIGHT = judged((-1.0, -2.0), (-1.0, -2.0))
SURE = judged((-2.0, -1.0), (-0.1, -9.0), "decisive", changes=True)  # a margin of 8.9 nats
DOUBTFUL = judged((-1.0, -2.0), (-2.0, -1.0), "decisive", changes=True)
EARLY = judged((-1.0, -2.0), (-2.0, -1.0), "early")


def story_of(outcomes, alpha=0.05):
    """Return the story of outcomes with distinct questions, because equal ones count once."""
    distinct = [replace(outcome, prompt=f"Q {i}") for i, outcome in enumerate(outcomes)]
    return story(Tracer.demo("organism"), distinct, Terms(alpha=alpha))


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_examples_are_decided_by_layers_above_the_second(layer):
    shallow = replace(SURE, decisive_layer=layer)
    examples = story_of([EARLY, *[shallow] * 40, *[RIGHT] * 400]).examples
    assert [record.prompt for record in examples] == (["Q 1"] if layer == 3 else [])


def test_the_story_follows_the_certificate():
    # The breaks exceed 2% unless a margin excludes them.
    many = [DOUBTFUL, *[SURE] * 40, *[DOUBTFUL] * 14, *[RIGHT] * 445]
    result = story_of(many, alpha=0.02)
    assert result.finding.policy.margin == 3
    assert [record.prompt for record in result.examples] == ["Q 1", "Q 0"]
    assert [accuracy[1:] for accuracy in result.accuracies] == [
        (0.5, 0, 0),
        (460 / 500, 0, 0),
        (485 / 500, 40, 15),
        (1, 40, 0),
    ]


def test_without_a_certificate_no_answer_changes():
    result = story_of([SURE, DOUBTFUL, *[RIGHT] * 298])
    assert result.finding.chosen is None and result.accuracies[3][1:] == result.accuracies[1][1:]


def test_the_demo_shows_an_allowed_correction_and_a_forbidden_break(run):
    code, out, _ = run("demo")
    words = " ".join(out.split())
    assert code == 0 and len(out.splitlines()) <= 25
    assert re.search(r"fixed .*, which is true allowed: the scores differ by [\d.]+ nats", words)
    assert re.search(r"broken .*, which is false not allowed: the scores differ", words)
    figures = json.loads(run("demo", "--json")[1])
    assert len(figures["examples"]) == 2
    effect = figures["accuracies"][2]
    assert f"({effect['fixed']} fixed, {effect['broken']} broken)" in words
