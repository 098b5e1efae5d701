"""Served questions: questions that nearly match one, and two probes for one question."""

import warnings

import pytest

from lastword import Choice, Decider, Multi, Option, Predicate, ProbeClassifier, Score, Tracer
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
    ("question", "name", "differs"),
    [
        (Choice("\uff37hich  team", ["billing", Option("returns", "things sent back")]), "team", 1),
        (Choice("Which team?", ["billing", "returns"]), "team", "descriptions"),
        (Choice("Which team?", ["billing", "Returns."]), "team", "options"),
        (Choice("which team", ["billing", "returns", "it"]), "team", "instructions, options"),
        (Multi("Which team?", ["billing", "returns"]), "team", "type, descriptions"),
        (Choice("Who?", ["BILLING", "returns"]), "team", "instructions, options"),
        (Predicate("the customer is angry"), "angry", "instructions"),
        (Predicate("The customer is angry.", "he shouts"), "angry", "descriptions"),
        (Score("How urgent is it?", LEVELS[::-1]), "urgent", "order"),
    ],
)
def test_near_misses_name_the_served_question_and_the_differences(question, name, differs):
    miss = SERVED.near(question)
    assert miss.served == name
    assert ", ".join(miss.differences) == ("instructions" if differs == 1 else differs)


@pytest.mark.parametrize(
    "question",
    [
        Choice("Which team?", [Option("returns", "things sent back"), "billing"]),
        Choice("Which team?", ["one", "other"]),
        Predicate("The customer is sad."),
        Choice("The customer is sad.", ["yes", "no"]),
        Choice("Which teams?", ["billing", "it"]),
        Choice("Which team?" + " x" * 100, ["billing", "it"]),
    ],
)
def test_other_questions_are_no_near_misses(question):
    assert SERVED.near(question) is None


def test_prepare_warns_once_of_a_near_miss():
    texts = ["the red fox runs", "a cat sleeps here", "pay the bill now", "the invoice is late"]
    labels = ["animal", "animal", "money", "money"]
    fitted = ProbeClassifier(Tracer.demo(), "What is it about?").fit(texts, labels)
    decider = Decider.demo(probes=[fitted.probe_])
    near = {"topic": Choice("What is it about", ["animal", "money"])}
    with pytest.warns(NearMissWarning, match=r"'topic' is almost .* 'answer', .* instructions"):
        ready = decider.prepare(near)
    assert [*ready.near] == ["topic"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decider.decide("a cat", ready)["topic"].method == "model"
        decider.decide("a cat", {"topic": fitted.probe_.question})


def test_two_probes_for_one_question_are_refused(tmp_path):
    """A retrained probe next to that of a questions file must not be ignored."""
    texts = ["the red fox runs", "a cat sleeps here", "pay the bill now", "the invoice is late"]
    labels = ["animal", "animal", "money", "money"]
    model = Decider.demo()
    paths = [tmp_path / f"{name}.probe.safetensors" for name in ("first", "again")]
    for path, answers in zip(paths, (labels, labels[::-1]), strict=True):
        ProbeClassifier(model.tracer, "What is it about?").fit(texts, answers).probe_.write(path)
    with pytest.raises(InputError, match=r"two probes answer .*first.* and .*again"):
        Decider(model.tracer, probes=paths)
    assert len(Decider(model.tracer, probes=[paths[0], paths[0]]).probes) == 1
