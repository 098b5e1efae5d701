"""Questions: valid ones, their prompts, and their file."""

import json

import pytest

from lastword.decide.item import item_of, text_of
from lastword.decide.questions_file import named_probes, read_questions, write_questions
from lastword.decide.templates import TEMPLATES, template_of
from lastword.errors import InputError
from lastword.probes.probe import Probe
from lastword.text.prompt_template import Template
from lastword.text.question import Choice, Multi, Option, Predicate, Score

PLAIN, LISTED, CHAT = (TEMPLATES[f"decide/{name}"] for name in ("plain", "listed", "chat"))
TEAM = Choice("Which team?", ["billing", Option("shipping", "parcels on their way")])
LATE, WEEKS = Predicate("Is the parcel late?"), Predicate(yes="two weeks or more")
URGENT = Score("How urgent?", ["can wait", "this week", "today"])
SHIPPING = "- shipping: parcels on their way\n"
INPUT = "{{ instructions }} {% x %}"  # a text is no template


@pytest.mark.parametrize(
    ("question", "template", "prompt", "candidates"),
    [
        (TEAM, PLAIN, f"Question: Which team?\n{SHIPPING}Answer:", ("billing", "shipping")),
        (
            TEAM,
            LISTED,
            f"Question: Which team?\nOptions:\n- billing\n{SHIPPING}Answer:",
            ("billing", "shipping"),
        ),
        (LATE, PLAIN, "Question: Is the parcel late?\nYes or no?\nAnswer:", ("yes", "no")),
        (WEEKS, PLAIN, "Yes or no?\n- yes: two weeks or more\nAnswer:", ("yes", "no")),
        (
            URGENT,
            CHAT,
            "How urgent?\nAnswer with one of these, and with nothing else:\n- can wait\n"
            "- this week\n- today\n",
            ("can wait", "this week", "today"),
        ),
    ],
)
def test_prompts_show_the_text_and_the_question(question, template, prompt, candidates):
    item = item_of(INPUT, question, template, blind=True)
    text = f"{INPUT}\n\n" if template is CHAT else f"Text: {INPUT}\n"
    assert (item.prompt, item.blind_prompt) == (text + prompt, prompt)
    assert item.candidates == candidates  # descriptions are never scored
    assert item_of("", question, template).prompt == prompt


def test_a_user_defined_template(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text("{{ kind }}: {{ input }} {{ options[0].text }}")
    template = template_of(str(path))
    assert template.name == "user/mine"
    assert item_of("Hm.", TEAM, template).prompt == "choice: Hm. billing"
    with pytest.raises(InputError, match="no template 'decide/nothing'; known: decide/plain"):
        template_of("decide/nothing")
    path.write_text("{% if kind == 'score' %}{{ input }}{% endif %} {{ instructions }}")
    assert template_of(str(path)).name == "user/mine"
    path.write_text("{{ instructions }} {{ kind }}")
    with pytest.raises(InputError, match="one prompt for all texts"):
        template_of(str(path))
    with pytest.raises(InputError, match="does not render"):
        item_of("Hm.", TEAM, Template("user/x", "1", "{{ nothing }}"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice("?", ["a"]), "1 choice, expected 2 to 255"),
        (lambda: Choice("?", [f"o{i}" for i in range(256)]), "256 choices, expected 2 to 255"),
        (lambda: Choice("?", ["a", "b", "a"]), "'a' occurs twice in choices"),
        (lambda: Choice("?", [True, True]), "True occurs twice in"),
        (lambda: Choice("?", ["a", " "]), "an option is blank"),
        (lambda: Score("?", ["low", "low"]), "'low' occurs twice in levels"),
        (lambda: Score("?", [str(i) for i in range(256)]), "256 levels, expected 2 to 255"),
        (lambda: Predicate(), "a predicate needs instructions"),
        (lambda: Choice("\ud800", ["a", "b"]), "lone surrogate"),
        (lambda: Option("a\0b"), "NUL"),
    ],
)
def test_invalid_questions_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", ["questions.yaml", "questions.json", "questions.JSON"])
def test_written_questions_are_read_back(tmp_path, name):
    questions = {
        "team": TEAM,
        "topics": Multi("", ["lamps", Option("chairs", "and stools")]),
        "sure": Choice("?", ["a", "b"], abstain=True),
        "yes": Choice("", [True, "true", "yes", "2024-01-01", "7", 7, 10, 2]),
        "late": Predicate("Läte?", yes="two weeks: or more", no="less"),
        "urgent": Score("How urgent?", ["no", Option("yes", "now")]),
    }
    write_questions(tmp_path / name, questions, {"team": "team.probe.safetensors"})
    back = read_questions(tmp_path / name)
    assert back == questions and list(back) == list(questions)
    written = (tmp_path / name).read_text(encoding="utf-8")
    assert written.startswith("{") == name.lower().endswith("json") and "Läte" in written
    assert written.count("probe") == 2  # one key and its file


def test_yaml_words_are_strings_except_true_and_false(tmp_path):
    path = tmp_path / "q.yaml"
    path.write_text("on:\n  type: choice\n  choices: [yes, no, true, 2024-01-01]\n")
    (question,) = read_questions(path).values()
    assert [o.value for o in question.options] == ["yes", "no", True, "2024-01-01"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- type: choice", "expected an object of questions by name, not list"),
        ("{}", "there is none"),
        (
            "a: {choices: [b, c]}",
            "question 'a' has no type; expected one of choice",
        ),
        ("a: {type: guess}", "question 'a' has the type 'guess'; expected one of choice"),
        ("a: {type: choice}", "question 'a': choices is missing"),
        ("a: {type: choice, choices: [1.5, 2]}", "question 'a': an option is a text, a boolean"),
        ("a: {type: score, levels: [true, false]}", "a level is a text, not True"),
        (
            "a: {type: predicate, statement: x}",
            "statement is an unknown name; known: instr",
        ),
        ("a: {type: choice, choices: [{label: x}, y]}", "an option: value is missing"),
        ("a: {type: choice, choices: [{value: a, description: 3}, b]}", "description"),
        ("a: 1\na: 2", "the key 'a' occurs twice"),
        ("b: {type: predicate, instructions: x}\na: 1\nb: 2", "the key 'b' occurs twice"),
        ("a: [", "not valid YAML"),
        (None, "cannot read the questions"),
        ("7: {type: predicate, instructions: x}", "a question's name is a text, not 7"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path, text, message):
    path = tmp_path / "q.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_questions(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [["x"], {"a": 1}, 3, "a\0b", "../../etc/passwd", "\ud800"])
def test_an_invalid_probe_path_is_refused(tmp_path, name):
    question = {"type": "predicate", "instructions": "x", "probe": name}
    (path := tmp_path / "q.json").write_text(json.dumps({"a": question}))
    with pytest.raises(InputError, match="a probe") as caught:
        [Probe.read(file) for file in named_probes(path)]
    assert "\n" not in str(caught.value)


def test_an_input_is_text_messages_or_json():
    assert text_of("as it stands ") == "as it stands "
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    assert text_of(messages) == "user: Hi\nassistant: Yes?"
    assert json.loads(text_of({"subject": "Ü", "n": [1, None]})) == {"subject": "Ü", "n": [1, None]}
    assert "Ü" in text_of({"subject": "Ü"})
    with pytest.raises(InputError, match="this is neither"):
        text_of([object()])
