"""Served questions over HTTP: named, almost asked, and refused under --strict, in every form."""

import json
from typing import Any

import pytest
from clients import needs_clients
from served import running
from test_decisions import run

from lastword import Choice, Decider, Option
from lastword.decide.questions_file import write_questions
from lastword.probes import Probe

TEXT = "The folk of Baevwick send clay lamps over the lake."
ASKED, CHOICES = "What is it about?", ["animal", "money"]
NEAR = [
    ("What is it about", CHOICES, "instructions"),
    ("what is it about?", CHOICES, "instructions"),
    (f" {ASKED} ", CHOICES, "instructions"),
    ("What  is it about?", CHOICES, "instructions"),
    (ASKED, ["Animal", "Money"], "options"),
    (ASKED, ["animal", "money", "trade"], "options"),
    ("Of what does it speak?", CHOICES, "instructions"),
]
OTHER = [(ASKED, ["near", "far"]), ("Which goods?", ["lamps", "money"])]


@pytest.fixture(scope="module")
def decider(topic: Probe, tmp_path_factory: pytest.TempPathFactory) -> Decider:
    path = tmp_path_factory.mktemp("probe") / "topic.probe.safetensors"
    topic.write(path)
    return Decider.demo(probes=[path])


@pytest.fixture(scope="module")
def lax(decider):
    with running(decider) as served:
        yield served


def post(served: Any, form: str, asked: str | None, choices: Any, name: str | None, suffix: str):
    """Ask one question in a form; its answer, and what is said of it beside."""
    model = served.service.name + suffix
    own = {} if asked is None else {"instructions": asked}
    own |= {} if name is None else {"question": name}
    headers = {}
    if form == "openai":
        options = {} if choices is None else {"choices": choices}
        body = {"model": model, "input": TEXT, "questions": [{"type": "choice"} | own | options]}
        path = "/v1/decisions"
    elif form == "chat":
        said = [] if asked is None else [{"role": "system", "content": asked}]
        body = {"model": model, "messages": [*said, {"role": "user", "content": TEXT}]}
        body |= {} if choices is None else {"guided_choice": choices}
        body |= {} if name is None else {"question": name}
        path = "/v1/chat/completions"
    else:
        criteria = {} if choices is None else {"criteria": dict.fromkeys(choices)}
        key, path = ("state", "/v1/systemone")
        if form == "google":
            key, path, headers = "input", "/v1/decisions", {"x-goog-api-key": "any"}
        questions = {"any": {"type": "choice"} | own | criteria}
        body = {"model": model, key: TEXT, "questions": questions}
    return served.client.post(path, json=body, headers=headers)


def told(form: str, answer: Any) -> tuple[Any, dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    value = answer.json()
    if form == "chat":
        return value["choices"][0]["message"]["content"], value["lastword"]
    answers = value["answers"]
    (own,) = answers if isinstance(answers, list) else answers.values()
    return own["choice"], own["lastword" if form == "openai" else "x_lastword"]


FORMS = ["openai", "chat", "typesafe", "google"]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_almost_a_served_question_is_answered_with_a_warning(lax, topic, form):
    for asked, choices, differs in NEAR:
        answer = post(lax, form, asked, choices, None, "")
        _, beside = told(form, answer)
        assert beside["method"] == "model"
        (warning,) = beside["warnings"]
        assert "'topic'" in warning and '"question": "topic"' in warning
        expected = f'almost the question "topic": {differs} differ'
        assert answer.headers["x-lastword-warning"] == expected
        (line,) = [
            line
            for line in lax.events("near_miss")
            if line["request"] == answer.headers["x-request-id"]
        ]
        assert line["told"] == [expected]
    for asked, choices in [*OTHER, (ASKED, CHOICES[::-1])]:
        answer = post(lax, form, asked, choices, None, "")
        _, beside = told(form, answer)
        assert "warnings" not in beside and "x-lastword-warning" not in answer.headers
    assert beside["method"] == topic.name  # the last has the options in another order


@pytest.mark.parametrize("form", FORMS)
def test_a_served_question_is_asked_by_its_name(lax, decider, topic, form):
    own = decider.decide(TEXT, {"topic": topic.question})["topic"]
    given = [(None, None), *((asked, choices) for asked, choices, _ in NEAR[:5])]
    for asked, choices in given:
        for name, suffix in (("topic", ""), (None, ":topic")):
            choice, beside = told(form, post(lax, form, asked, choices, name, suffix))
            assert beside["method"] == topic.name and "warnings" not in beside
            written = dict(zip(CHOICES, choices, strict=True)) if choices else {}
            expected = written.get(own.choice, own.choice) if form == "chat" else own.choice
            assert choice == expected
    for asked, choices, said in [
        ("Which goods?", None, "'What is it about?', not 'Which goods?'"),
        (None, ["animal", "trade"], "it has 'money', and it does not have 'trade'"),
        (ASKED, ["animal", "money", "trade"], "does not have 'trade'"),
    ]:
        refused = post(lax, form, asked, choices, "topic", "")
        assert refused.status_code == (422 if form == "typesafe" else 400)
        assert refused.headers["x-refusal"] == "invalid_body" and said in refused.text
    assert "known: topic" in post(lax, form, None, None, "other", "").text
    unknown = post(lax, form, ASKED, CHOICES, None, ":other")
    assert unknown.status_code == 404 and "topic" in unknown.text


@pytest.mark.parametrize("form", FORMS)
def test_strict_refuses_what_is_almost_a_served_question(decider, form):
    with running(decider, strict=True) as served:
        for asked, choices, differs in NEAR:
            refused = post(served, form, asked, choices, None, "")
            assert refused.status_code == (422 if form == "typesafe" else 400)
            assert refused.headers["x-refusal"] == "near_miss"
            assert f"{differs} differ" in refused.headers["x-lastword-warning"]
        for asked, choices in [*OTHER, (ASKED, CHOICES)]:
            told(form, post(served, form, asked, choices, None, ""))


def test_a_questions_file_names_its_questions(decider, tmp_path):
    path = tmp_path / "questions.yaml"
    goods = Choice("Which goods?", ["lamps", Option("combs", "of wool")])
    write_questions(path, {"about": Choice(ASKED, CHOICES), "goods": goods})
    with running(Decider(decider.tracer, probes=decider.probes), questions=path) as served:
        (listed,) = served.client.get("/v1/models").json()["models"]
        assert listed["correction"] == "model" and "by model" in listed["description"]
        own = listed["questions"]
        assert own["about"]["method"] == decider.probes[0].name
        assert own["goods"]["method"] == "model" and own["goods"]["choices"][0] == "lamps"
        bare = told("openai", post(served, "openai", None, None, "goods", ""))
        whole: dict[str, Any] = {"type": "choice", "instructions": "Which goods?"}
        whole["choices"] = ["lamps", {"value": "combs", "description": "of wool"}]
        body = {"model": served.service.name, "input": TEXT, "questions": [whole]}
        full = told("openai", served.client.post("/v1/decisions", json=body))
        assert bare[0] == full[0]
        assert bare[1]["confidence"] == pytest.approx(full[1]["confidence"], abs=1e-5)
        (asked,) = [whole | {"choices": ["lamps", "combs"]}]
        near = served.client.post("/v1/decisions", json=body | {"questions": [asked]})
        assert "descriptions differ" in near.headers["x-lastword-warning"]
        two = served.client.post(
            "/v1/decisions",
            json=body | {"model": f"{body['model']}:about", "questions": [whole, whole]},
        )
        assert two.status_code == 400 and "name each" in two.text


NAMED = """
from openai import OpenAI
from typesafe_sdk import Choice, TypeSafeClient
client = OpenAI(base_url=URL + "/v1", api_key="none")
asked = [{"type": "choice", "question": "topic"}]
told = [client.decisions.create(model=MODEL, input=TEXT, questions=asked).answers[0].choice]
messages = [{"role": "user", "content": TEXT}]
answer = client.chat.completions.create(model=MODEL + ":topic", messages=messages)
told.append(answer.choices[0].message.content)
with TypeSafeClient(api_key="none", base_url=URL) as client:
    about = Choice(criteria={"Animal": None, "Money": None})
    answer = client.system_one(state=TEXT, questions={"a": about}, model="jev-latest:topic")
    told.append(answer.choices["a"].choice)
print(json.dumps(told))
"""


@needs_clients
def test_clients_ask_by_name(lax, decider, topic):
    own = decider.decide(TEXT, {"topic": topic.question})["topic"]
    assert json.loads(run(NAMED, lax)) == [own.choice] * 3
