"""Served questions: questions that nearly match one, and two probes for one question."""

import warnings

import pytest
from topics import QUESTION, probe_of

from lastword import Choice, Decider, Multi, Option, Predicate, Score, Tracer
from lastword.decide.served import NearMissWarning, Served
from lastword.errors import InputError

LEVELS = ["low", "high"]
SERVED = Served(
    {
        "team": Choice("Which team?", ["billing", Option("returns", "things sent back")]),
        "angry": Predicate("The customer is angry."),
        "urgent": Score("How urgent is it?", LEVELS),
    }
)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (Choice("\uff37hich  team", ["billing", Option("returns", "things sent back")]), "team"),
        (Choice("Which team?", ["billing", "returns"]), "team"),
        (Choice("which team", ["billing", "it"]), "team"),
        (Multi("Which team?", ["billing", "returns"]), "team"),
        (Choice("Who?", ["BILLING", "returns"]), "team"),
        (Predicate("the customer is angry"), "angry"),
        (Predicate("The customer is angry.", "he shouts"), "angry"),
        (Score("How urgent is it?", LEVELS[::-1]), "urgent"),
        (Choice("Which team?", [Option("returns", "things sent back"), "billing"]), None),
        (Predicate("The customer is sad."), None),
        (Choice("The customer is sad.", ["yes", "no"]), None),
        (Choice("Which teams?", ["billing", "it"]), None),
        (Choice("Which team?" + " x" * 100, ["billing", "it"]), None),
    ],
)
def test_a_question_with_the_instructions_or_options_of_a_served_one_is_near(question, name):
    assert SERVED.near(question) == name


def test_prepare_warns_once_of_a_near_miss():
    decider = Decider.demo(probes=[probe_of(Tracer.demo())])
    near = {"topic": Choice("What is it about", ["animal", "money"])}
    with pytest.warns(NearMissWarning, match=r"'topic' is almost .* 'answer'"):
        ready = decider.prepare(near)
    assert [*ready.near] == ["topic"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decider.decide("a cat", ready)["topic"].method == "model"
        decider.decide("a cat", {"topic": QUESTION})


def test_two_probes_for_one_question_are_refused(tmp_path):
    """A retrained probe next to that of a questions file must not be ignored."""
    tracer = Tracer.demo()
    paths = [tmp_path / f"{name}.probe.safetensors" for name in ("first", "again")]
    for path, pooling in zip(paths, ("mean", "last"), strict=True):
        probe_of(tracer, pooling).write(path)
    with pytest.raises(InputError, match=r"two probes answer .*first.* and .*again"):
        Decider(tracer, probes=paths)
    assert len(Decider(tracer, probes=[paths[0], paths[0]]).probes) == 1
