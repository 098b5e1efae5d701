"""The decision pipeline of transformers and lastword give the same probabilities."""

import json
from pathlib import Path

import pytest
from families import build, save
from numpy.testing import assert_allclose
from scipy.special import softmax
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast, pipeline

from lastword import Choice, Decider, Multi, Predicate, Score, Tracer
from lastword.decide.decision_prompt import DecisionPrompt, request_of
from lastword.decide.templates import TEMPLATES
from lastword.errors import InputError
from lastword.integrations.decision_model import export_decision_model
from lastword.tryout.labels import read_labels
from lastword.tryout.prompts import race

pytest.importorskip("transformers.decision", reason="transformers before 5.23")

WORDS = ["Answer: yes no cat dog low mid high"] * 9 + ["A B C"] * 9
QUESTIONS = {
    "animal": Choice("Which animal?", ["cat", "dog"]),
    "loud": Predicate("Is it loud?", no="one cannot hear it"),
    "size": Score("How tall?", ["low", "mid", "high"]),
}
TEXTS = ["It barks.", "one </s> two\n  three <|mark|>", "{% if x %} {{ y }}"]
THEIRS = (
    "{{ bos_token }}{{ state }}\n{% for option in question.options %}"
    "{{ question.labels[loop.index0] }}. {{ option }}\n{% endfor %}"
    "{{ question.instructions }} Answer:<|mark|>"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer of bytes, in which each option is one token."""
    raw = ByteLevelBPETokenizer()
    raw.train_from_iterator(WORDS, vocab_size=330, special_tokens=["<s>", "</s>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw._tokenizer, bos_token="<s>", eos_token="</s>"
    )
    path = tmp_path_factory.mktemp("model")
    build("llama", max_position_embeddings=512).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def decision_folder(folder, tmp_path):
    """The model with a decision template that has letters, temperatures and another order."""
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    settings = {
        "temperature": {"choice": 0.7, "noul": 2},
        "noul_options": ["false", "true"],
        "labels": {"noul": ["B", "A"]},
    }
    (tmp_path / "decision.json").write_text(json.dumps(settings))
    (tmp_path / "decision_template.jinja").write_text(THEIRS)
    return tmp_path


def answers(path, text, questions):
    """Return the probabilities of the pipeline, in the order of lastword's options."""
    decide = pipeline("decision", str(path), dtype="float32")
    requests = {name: dict(request_of(question)) for name, question in questions.items()}
    response = decide({"state": text, "questions": requests})
    return [
        [a["noul"], 1 - a["noul"]] if "noul" in a else [*a["probabilities"].values()]
        for a in response.values()
    ]


def probabilities_of(prompt: DecisionPrompt, tracer: Tracer, text: str, question):
    (decision,) = prompt.decide(tracer, [(text, question)])
    temperature = prompt.config.temperature.get(request_of(question)["type"], 1.0)
    return softmax(decision.base_scores / temperature)


@pytest.mark.parametrize("text", TEXTS)
def test_lastword_and_the_pipeline_read_a_folder_the_same(decision_folder, text):
    tracer = Tracer.from_pretrained(decision_folder)
    prompt = DecisionPrompt.of(tracer)
    expected = answers(decision_folder, text, QUESTIONS)
    for question, probabilities in zip(QUESTIONS.values(), expected, strict=True):
        assert_allclose(probabilities_of(prompt, tracer, text, question), probabilities, atol=1e-5)


@pytest.mark.parametrize("template", [None, "decide/listed", "file"])
def test_lastword_and_the_pipeline_read_an_exported_folder_the_same(folder, tmp_path, template):
    if template == "file":  # a blank at the end, and blanks around blocks
        template = str(tmp_path / "mine.jinja")
        Path(template).write_text("{% if input %}\n  {% set x = 1 %}\n{{ input }}{% endif %} = ")
    tracer, out = Tracer.from_pretrained(folder), tmp_path / "out"
    export_decision_model(tracer, QUESTIONS, out, template=template)
    for text in (TEXTS[0], "one\n  two"):  # control tokens are split in another way
        ours = Decider(tracer).decide(text, QUESTIONS, template=template)
        for answer, probabilities in zip(ours.values(), answers(out, text, QUESTIONS), strict=True):
            assert_allclose(answer.probabilities, probabilities, atol=1e-5)
    again = Tracer.from_pretrained(out)
    question, expected = QUESTIONS["animal"], answers(out, "It barks.", QUESTIONS)[0]
    read = probabilities_of(DecisionPrompt.of(again), again, "It barks.", question)
    assert_allclose(read, expected, atol=1e-5)
    other = {"animal": Choice("Which animal?", ["dog", "cat"])}
    with pytest.raises(Exception, match=r"expected the options \['cat', 'dog'\]"):
        answers(out, "It barks.", other)


def test_a_bos_that_the_tokenizer_adds_is_in_the_template(tmp_path):
    tracer, question = (
        Tracer.from_pretrained(save(tmp_path / "in")),
        Choice("w7 w8", ["w11", "w12"]),
    )
    export_decision_model(tracer, {"q": question}, tmp_path / "out")
    ours = Decider(tracer).decide("w3 w4", {"q": question})["q"].probabilities
    assert_allclose([ours], answers(tmp_path / "out", "w3 w4", {"q": question}), atol=1e-5)


@pytest.mark.parametrize(
    "questions, reason",
    [
        ({"q": Choice("?", ["cat", "a long option"])}, "has .* tokens, and transformers reads one"),
        ({"q": Multi("?", ["cat", "dog"])}, "ask a predicate per option"),
        ({"a": Predicate("?"), "b": Predicate("??")}, "'b' is the second predicate"),
    ],
)
def test_questions_that_the_format_cannot_hold_are_refused(folder, tmp_path, questions, reason):
    with pytest.raises(InputError, match=reason):
        export_decision_model(Tracer.from_pretrained(folder), questions, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_try_compares_the_prompt_of_the_folder(decision_folder):
    rows = [
        {"text": f"{'clay' if i % 3 else 'wool'} {i}", "label": "cat" if i % 3 else "dog"}
        for i in range(48)
    ]
    tracer, labels = Tracer.from_pretrained(decision_folder), read_labels(rows)
    prompts, _ = race(tracer, labels, TEMPLATES["decide/plain"], 60.0)
    (entry,) = [prompt for prompt in prompts if prompt.name == "transformers decision"]
    prompt, rows_by_id = DecisionPrompt.of(tracer), {row[3]: row for row in labels.rows}
    for id, right in list(zip(entry.ids, entry.right, strict=True))[:6]:
        text, question, truth, *_ = rows_by_id[id]
        best = probabilities_of(prompt, tracer, text, question).argmax()
        assert right == (question.options[best].text == truth)


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("decision_template.jinja", "{{ state }}<|mark|>{{ state }}<|mark|>", "several marks"),
        ("decision_template.jinja", "{{ state.nothing.at_all }}", "refuses the question"),
        ("decision.json", '{"adapter": "adapter"}', "cannot read the adapter in 'adapter'"),
        ("head.safetensors", "", "cannot read the trained head"),
    ],
)
def test_a_folder_that_lastword_cannot_read_is_refused(decision_folder, file, content, message):
    (decision_folder / file).write_text(content)
    tracer = Tracer.from_pretrained(decision_folder)
    with pytest.raises(InputError, match=message):
        DecisionPrompt.of(tracer).encode(TEXTS[0], QUESTIONS["animal"])


def test_the_command_writes_the_folder(folder, tmp_path, run):
    (tmp_path / "q.yaml").write_text("q: {type: choice, instructions: '?', choices: [cat, dog]}")
    out = tmp_path / "out"
    code, stdout, _ = run("export", out, "--model", folder, "--questions", tmp_path / "q.yaml")
    assert code == 0 and 'pipeline("decision"' in stdout
    assert json.loads((out / "decision.json").read_text())["labels"] == {"choice": [" cat", " dog"]}
    code, _, stderr = run("export", out, "--model", folder, "--questions", tmp_path / "q.yaml")
    assert code == 1 and stderr.endswith("is not empty: name a new folder\n")
