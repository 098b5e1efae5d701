"""A question that is almost one with a probe: a warning, a refusal, or its name."""

import json

import pytest
from served import running

from lastword import Choice, Decider, Predicate, Score
from lastword.decide.nearby import nearby
from lastword.errors import InputError

TEXT = "the red fox runs"
ASKED = "What is it about?"
SERVED = Choice(ASKED, ["animal", "money"])
FORMS = {
    "openai": ("/v1/decisions", "lastword"),
    "google": ("/v1/decisions", "x_lastword"),
    "typesafe": ("/v1/systemone", "x_lastword"),
    "chat": ("/v1/chat/completions", "lastword"),
}
MODEL = "lastword/demo-organism"


def body(form, instructions=ASKED, options=("animal", "money"), model=MODEL, **more):
    """The question as a client of one form sends it; `more` stands beside it."""
    if form == "chat":
        said = [{"role": "system", "content": instructions}, {"role": "user", "content": TEXT}]
        return {"model": model, "messages": said, "guided_choice": [*options]} | more
    question = {"type": "choice", "instructions": instructions} | more
    if form == "openai":
        asked = question | {"choices": [*options]}
        return {"model": model, "input": TEXT, "questions": [asked]}
    question["criteria"] = dict.fromkeys(options)
    key = "input" if form == "google" else "state"
    return {"model": model, key: TEXT, "questions": {"q": question}}


def ask(served, form, **how):
    """Return the status, the chosen option and what lastword says of it."""
    path, key = FORMS[form]
    answer = served.client.post(path, json=body(form, **how))
    content = answer.json()
    if answer.status_code != 200:
        return answer.status_code, json.dumps(content), {}
    if form == "chat":
        return 200, content["choices"][0]["message"]["content"], content[key]
    told = content["answers"]
    told = told[0] if form == "openai" else told["q"]
    return 200, told["choice"], told[key]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("near") / "questions.yaml"
    path.write_text(f"topic: {{type: choice, instructions: '{ASKED}', choices: [animal, money]}}")
    return path


@pytest.fixture(scope="module")
def service(topic, questions):
    with running(Decider.demo(probes=[topic]), questions=questions) as served:
        yield served


@pytest.mark.parametrize("form", FORMS)
def test_a_near_miss_is_answered_by_the_model_with_a_warning(service, topic, form):
    status, _, reasons = ask(service, form)
    assert status == 200 and reasons["method"] == topic.name and "warnings" not in reasons
    for changes, difference in (
        ({"instructions": "What is it about"}, "instructions"),
        ({"instructions": " what is it  about? "}, "instructions"),
        ({"options": ("Animal", "money")}, "'Animal' instead of 'animal'"),
    ):
        before = len(service.events("near_miss"))
        status, _, reasons = ask(service, form, **changes)
        assert status == 200 and reasons["method"] == "model" and not reasons["corrected"]
        (warning,) = reasons["warnings"]
        assert difference in warning and "'topic'" in warning
        assert len(service.events("near_miss")) == before + 1
    _, _, reasons = ask(service, form, instructions="Is it long?", options=("yes", "no"))
    assert reasons["method"] == "model" and "warnings" not in reasons


@pytest.mark.parametrize("form", FORMS)
def test_a_served_question_is_asked_by_its_name(service, topic, form):
    expected = ask(service, form)
    named = ask(service, form, instructions="what?", options=("ANIMAL", "Money"), question="topic")
    suffix = ask(service, form, instructions="what?", model=f"{MODEL}:topic")
    for status, choice, reasons in (named, suffix):
        assert (status, choice, reasons["method"]) == (200, expected[1], topic.name)
    for how in ({"question": "other"}, {"options": ("a", "b"), "question": "topic"}):
        status, told, _ = ask(service, form, **how)
        assert status in (400, 422) and "topic" in told
    status, told, _ = ask(service, form, model=f"{MODEL}:other")
    assert status == 404 and f"{MODEL}:topic" in told


def test_a_chat_needs_no_options_if_it_names_a_question(service):
    said = {"model": f"{MODEL}:topic", "messages": [{"role": "user", "content": TEXT}]}
    answer = service.client.post("/v1/chat/completions", json=said).json()
    assert answer["choices"][0]["message"]["content"] == ask(service, "chat")[1]
    listed = service.client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == [MODEL, f"{MODEL}:topic"]
    assert listed["models"][0]["correction"] == "model"


@pytest.mark.parametrize("form", FORMS)
def test_a_strict_service_refuses_a_near_miss(topic, questions, form):
    with running(Decider.demo(probes=[topic]), questions=questions, strict=True) as served:
        status, told, _ = ask(served, form, instructions="What is it about")
        assert status in (400, 422) and "resembles the served question" in told
        assert ask(served, form)[0] == 200
        assert ask(served, form, instructions="Is it long?", options=("yes", "no"))[0] == 200


def test_nothing_is_corrected_unasked_on_any_route():
    prompt = "Question: Which goods come from Baevwick? Answer:"
    goods = ["green wool combs", "pale cedar boats", "clay lamps"]
    with running(Decider.demo()) as plain:
        told = plain.client.post("/v1/correct", json={"prompt": prompt, "candidates": goods}).json()
        assert told["corrected"]  # by its name
        sent = {"prompt": prompt, "guided_choice": goods}
        text = plain.client.post("/v1/completions", json=sent).json()
        assert not text["lastword"]["corrected"]
        assert text["choices"][0]["text"] == told["base_answer"]
        for form in FORMS:
            _, _, reasons = ask(plain, form, instructions=prompt, options=goods)
            assert not reasons["corrected"] and reasons["method"] == "model"


def test_a_completion_is_corrected_by_what_the_service_names():
    prompt = "Question: Which goods come from Baevwick? Answer:"
    goods = ["green wool combs", "pale cedar boats", "clay lamps"]
    with running(Decider.demo(correction="trace")) as served:
        sent = {"prompt": prompt, "guided_choice": goods}
        told = served.client.post("/v1/completions", json=sent).json()["lastword"]
    assert told["corrected"] and told["method"] == "trace"


def test_python_warns_of_the_same(topic):
    decider = Decider.demo(probes=[topic])
    with pytest.warns(UserWarning, match="resembles the served question"):
        answers = decider.decide(TEXT, {"q": Choice("What is it about", ["animal", "money"])})
    assert answers["q"].method == "model"


def test_two_probes_for_one_question_are_refused(topic):
    from dataclasses import replace

    with pytest.raises(InputError, match="two probes answer one question"):
        Decider.demo(probes=[topic, replace(topic, labels=topic.labels + 1)])
    assert len(Decider.demo(probes=[topic, topic]).probes) == 2  # the flag and the file name one


@pytest.mark.parametrize(
    ("question", "difference"),
    [
        (Choice("WHAT is it about", ["animal", "money"]), "instructions"),
        (Choice(ASKED, ["animal", "money", "other"]), "'other' is not one of its options"),
        (Choice("What is it about?", ["a", "b"]), None),
        (Choice("Is it spam?", ["animal", "money"]), None),  # two options, as yes and no are
        (Predicate(ASKED), None),
        (Score(ASKED, ["animal", "money"]), None),
    ],
)
def test_what_is_near(question, difference):
    told = nearby(question, {"topic": SERVED})
    assert (told is None) if difference is None else (difference in told)


def test_a_missing_option_and_other_words_over_the_same_options_are_near():
    teams = Choice("Which team?", ["orders", "returns", "billing"])
    few = Choice("Which team?", ["orders", "returns"])
    assert "'billing' is missing" in nearby(few, {"team": teams})
    assert "instructions" in nearby(Choice("Who?", ["Billing", "returns", "orders"]), {"t": teams})
