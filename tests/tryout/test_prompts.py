"""Other prompts: tested on rows that are no examples, within their time."""

from collections import Counter

import pytest

from lastword import Tracer
from lastword.decide.decider import Decider
from lastword.decide.item import item_of
from lastword.decide.templates import TEMPLATES
from lastword.tryout.labels import read_labels
from lastword.tryout.prompts import SHOTS, examples, race, with_examples

PLAIN = TEMPLATES["decide/plain"]
ROWS = [
    {"id": f"r{i}", "text": f"{'clay' if i % 3 else 'wool'} {i}", "label": "ab"[i % 3 > 0]}
    for i in range(48)
]


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


def test_examples_are_balanced_and_written_verbatim():
    labels = read_labels([*ROWS, {"id": "odd", "text": '{{ x }} "{% raw %}" 😀\n', "label": "a"}])
    chosen = examples(labels, 8)
    assert Counter(labels.rows[place][2] for place in chosen) == {"a": 4, "b": 4}
    assert examples(labels, 4) == chosen[:4]
    odd, question = len(ROWS), labels.question
    assert question is not None
    template = with_examples(PLAIN, labels, [odd, 0])
    prompt = item_of("new", question, template).prompt
    shots = [item_of(labels.rows[i][0], question, PLAIN).prompt + " a\n\n" for i in (odd, 0)]
    assert prompt == "".join(shots) + item_of("new", question, PLAIN).prompt


def test_rows_used_as_examples_are_not_tested(tracer):
    labels = read_labels(ROWS)
    prompts, (left,) = race(tracer, labels, PLAIN, 60.0)
    example_ids = {labels.rows[place][3] for place in examples(labels, max(SHOTS))}
    named = {prompt.name: prompt for prompt in prompts}
    assert set(named) == {"decide/listed", "4 examples"}
    assert left.startswith("8 examples")  # too long for this model's 128 tokens
    for prompt in prompts:
        assert example_ids.isdisjoint(prompt.ids) and len(prompt.ids) == len(prompt.right)
    whole = named["decide/listed"]
    rows = {row[3]: row for row in labels.rows}
    for id, right in list(zip(whole.ids, whole.right, strict=True))[:5]:
        text, question, truth, *_ = rows[id]
        answer = Decider(tracer).decide(text, {"q": question}, template="decide/listed")["q"]
        assert (answer.choice == truth) == right


def test_without_time_or_rows_no_prompt_is_tested(tracer):
    prompts, left_out = race(tracer, read_labels(ROWS), TEMPLATES["decide/listed"], 0.0)
    assert prompts == [] and left_out[0] == "decide/plain (no time)"
    assert race(tracer, read_labels(ROWS[: max(SHOTS)]), PLAIN, 60.0) == ([], [])  # only examples
