"""Served questions in every form: by name, and with a near miss."""

from typing import Any

import pytest
from served import running

from lastword import Choice, Decider, Option
from lastword.decide.questions_file import write_questions
from lastword.probes import Probe

TEXT = "The folk of Baevwick send clay lamps over the lake."
INSTRUCTIONS, CHOICES = "What is it about?", ["animal", "money"]
NEAR = [
    ("What is it about", CHOICES),
    ("what is it about?", CHOICES),
    (f" {INSTRUCTIONS} ", CHOICES),
    ("What  is it about?", CHOICES),
    (INSTRUCTIONS, ["Animal", "Money"]),
    (INSTRUCTIONS, ["animal", "money", "trade"]),
    ("Of what does it speak?", CHOICES),
]
OTHER = [("What?", ["near", "far"]), ("Which goods?", ["lamps", "money"])]


@pytest.fixture(scope="module")
def decider(topic: Probe, tmp_path_factory: pytest.TempPathFactory) -> Decider:
    path = tmp_path_factory.mktemp("probe") / "topic.probe.safetensors"
    topic.write(path)
    return Decider.demo(probes=[path])


@pytest.fixture(scope="module")
def served(decider):
    with running(decider) as service:
        yield service


def post(
    served: Any,
    form: str,
    instructions: str | None = None,
    choices: Any = None,
    name: str | None = None,
    text: str = TEXT,
):
    """Ask one question in a form, and return the response."""
    model = served.service.name
    question = {} if instructions is None else {"instructions": instructions}
    question |= {} if name is None else {"question": name}
    headers = {}
    if form == "openai":
        options = {} if choices is None else {"choices": choices}
        questions = [{"type": "choice"} | question | options]
        body = {"model": model, "input": text, "questions": questions}
        path = "/v1/decisions"
    elif form == "chat":
        messages = [] if instructions is None else [{"role": "system", "content": instructions}]
        body = {"model": model, "messages": [*messages, {"role": "user", "content": text}]}
        body |= {} if choices is None else {"structured_outputs": {"choice": choices}}
        body |= {} if name is None else {"question": name}
        path = "/v1/chat/completions"
    else:
        criteria = {} if choices is None else {"criteria": dict.fromkeys(choices)}
        key, path = ("state", "/v1/systemone")
        if form == "google":
            key, path, headers = "input", "/v1/decisions", {"x-goog-api-key": "any"}
        by_name = {"any": {"type": "choice"} | question | criteria}
        body = {"model": model, key: text, "questions": by_name}
    return served.client.post(path, json=body, headers=headers)


def choice_of(form: str, response: Any) -> tuple[Any, dict[str, Any]]:
    """Return the choice of a response, and the details of its decision."""
    assert response.status_code == 200, response.text
    value = response.json()
    if form == "chat":
        return value["choices"][0]["message"]["content"], value["lastword"]
    answers = value["answers"]
    (answer,) = answers if isinstance(answers, list) else answers.values()
    return answer["choice"], answer["lastword" if form == "openai" else "x_lastword"]


FORMS = ["openai", "chat", "typesafe", "google"]


@pytest.mark.parametrize("form", FORMS)
def test_a_served_question_can_be_asked_by_name(served, decider, topic, form):
    expected = decider.decide(TEXT, {"topic": topic.question})["topic"].choice
    for instructions, choices in [(None, None), *NEAR[:5]]:
        choice, details = choice_of(form, post(served, form, instructions, choices, "topic"))
        assert details["method"] == topic.name
        written = dict(zip(CHOICES, choices, strict=True)) if choices else {}
        assert choice == (written.get(expected, expected) if form == "chat" else expected)
    for instructions, choices, message in [
        ("Which goods?", None, "in its instructions"),
        (None, ["animal", "trade"], "in its options"),
        (INSTRUCTIONS, ["animal", "money", "trade"], "in its options"),
    ]:
        refused = post(served, form, instructions, choices, "topic")
        assert refused.status_code == (422 if form == "typesafe" else 400)
        assert refused.headers["x-refusal"] == "invalid_body" and message in refused.text
    assert "known: topic" in post(served, form, name="other").text


@pytest.mark.parametrize("form", FORMS)
def test_a_near_miss_of_a_served_question_is_refused(served, topic, form):
    for instructions, choices in NEAR:
        refused = post(served, form, instructions, choices)
        assert refused.status_code == (422 if form == "typesafe" else 400)
        assert refused.headers["x-refusal"] == "near_miss"
        assert "topic" in refused.text
    for instructions, choices in OTHER:
        _, details = choice_of(form, post(served, form, instructions, choices))
        assert details["method"] == "model"
    with running(served.service.decider, lenient=True) as lenient:
        _, details = choice_of(form, post(lenient, form, *NEAR[0]))
        assert details["method"] == "model"
    # The probe also answers with its options in another order.
    _, details = choice_of(form, post(served, form, INSTRUCTIONS, CHOICES[::-1]))
    assert details["method"] == topic.name


def test_a_questions_file_names_its_questions(decider, tmp_path):
    path = tmp_path / "questions.yaml"
    goods = Choice("Which goods?", ["lamps", Option("combs", "of wool")])
    write_questions(path, {"about": Choice(INSTRUCTIONS, CHOICES), "goods": goods})
    with running(Decider(decider.tracer, probes=decider.probes), questions=path) as served:
        (listed,) = served.client.get("/v1/models").json()["models"]
        assert listed["correction"] == "model" and "by model" in listed["description"]
        questions = listed["questions"]
        assert questions["about"]["method"] == decider.probes[0].name
        assert questions["goods"]["method"] == "model"
        assert questions["goods"]["choices"][0] == "lamps"
        choice_of("openai", post(served, "openai", name="goods"))
        near = post(served, "openai", "Which goods?", ["lamps", "combs"])  # without descriptions
        assert near.headers["x-refusal"] == "near_miss" and "goods" in near.text


def test_under_shadow_an_answer_of_a_probe_alone_is_deferred(decider):
    with running(decider) as open_service, running(decider, shadow=True) as shadowed:
        for service, deferred in ((open_service, False), (shadowed, True)):
            response = post(service, "openai", INSTRUCTIONS, CHOICES)
            assert response.status_code == 200, response.text
            (answer,) = response.json()["answers"]
            assert answer["lastword"]["deferred"] == deferred
