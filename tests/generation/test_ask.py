"""Questions without candidates: what is drawn, what becomes of it, and what is refused."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families import build, random_items, tokenizer

from lastword import Chat, Tracer
from lastword.errors import InputError, ItemError
from lastword.generation import ask as asking
from lastword.generation.ask import GumbelNoise, LineEnded, ask, normalise
from lastword.generation.sampling import Sampling
from lastword.text.tokens import encode_prompt

QUESTION = "Which goods come from Baevwick?"


@cache
def demo() -> Tracer:
    return Tracer.demo()


@cache
def tiny() -> Tracer:
    return Tracer(build("llama"), tokenizer(), invariant=2.0)


def plain_greedy(tracer: Tracer, prompt: str) -> str:
    model: Any = tracer.backbone.model
    tokenizer: Any = tracer.tokenizer
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=32, pad_token_id=0)
    new = output[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True).strip().split("\n")[0]


# --- what is drawn ---


def test_noise_makes_argmax_a_sample_of_the_softmax():
    scores, temperature, rows = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf]), 0.7, 6000
    noise = GumbelNoise(rows, temperature, seed=3)
    drawn = noise(torch.zeros(rows, 1, dtype=torch.long), scores.repeat(rows, 1)).argmax(dim=-1)
    shares = np.bincount(drawn.numpy(), minlength=5) / rows
    expected = torch.softmax(scores / temperature, dim=-1).numpy()
    spread = np.sqrt(expected * (1 - expected) / rows)
    assert shares[4] == 0
    assert np.all(np.abs(shares - expected) <= 4 * spread)


def test_the_models_own_greedy_answer_stands_first():
    asked = ask(demo(), QUESTION, Sampling(k=3))
    assert asked.greedy
    assert asked.decision.candidates[0] == plain_greedy(demo(), asked.prompt)


def test_samples_are_those_of_the_seed_and_a_larger_k_adds_to_them():
    few, many = (ask(demo(), QUESTION, Sampling(k=k, seed=5)) for k in (3, 8))
    again, other = (
        ask(demo(), QUESTION, Sampling(k=8, seed=5)),
        ask(demo(), QUESTION, Sampling(k=8, seed=6)),
    )
    assert again.to_dict() == many.to_dict()
    assert set(few.decision.candidates) <= set(many.decision.candidates)
    assert (other.decision.candidates, other.counts) != (many.decision.candidates, many.counts)
    assert sum(many.counts) == 8


def test_sampling_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    ask(demo(), QUESTION, Sampling(k=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_temperature_the_samples_are_the_greedy_answer():
    asked = ask(demo(), QUESTION, Sampling(temperature=0.0))
    assert len(asked.decision.candidates) == 1 and asked.counts == (1,)


@pytest.mark.parametrize("item", random_items(4, 6))
def test_answers_are_drawn_from_the_tokens_that_they_are_scored_after(item):
    (encoded,) = tiny().encode([item])
    prompt = encode_prompt(item.prompt, tiny().tokenizer)
    assert prompt == encoded.sequences[0][: encoded.boundaries[0]]


def test_an_answer_ends_with_the_first_line_that_has_text():
    words = demo().tokenizer
    texts = ("\n clay", "\n clay lamps", "\n clay lamps \n", "\n clay lamps \nQuestion: And")
    for text, ended in zip(texts, (False, False, True, True), strict=True):
        (ids,) = words([text], add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([[1, 2, *ids]])
        stop = LineEnded(words, 2, [words.eos_token_id])
        assert stop(tokens, None).tolist() == [ended]
        assert stop.lines(tokens) == [text.strip().split(" \n")[0]]
        assert stop(torch.tensor([[1, 2, *ids, words.eos_token_id]]), None).tolist() == [True]


def test_a_chat_template_holds_the_question_alone():
    spoken = tokenizer()
    spoken.chat_template = "{% for m in messages %}w5 {{ m.content }} w6{% endfor %}"
    try:
        tracer = Tracer(build("llama"), spoken, invariant=2.0, chat=Chat())
        asked = ask(tracer, "w40 w41", Sampling(k=2))
        assert asked.prompt == "w40 w41"
        ids = encode_prompt(asked.prompt, spoken, tracer.chat)
        assert ids == (5, 40, 41, 6)
    finally:
        spoken.chat_template = None


# --- what becomes of it ---


def drawn(monkeypatch, greedy: str, *samples: str) -> None:
    answers = iter([[greedy], list(samples)])

    def generated(*_, **__):
        return next(answers)

    monkeypatch.setattr(asking, "_generate", generated)


LONG = "horn hats " * 400  # fits no context


@pytest.mark.parametrize(
    ("answers", "candidates", "counts", "dropped"),
    [
        (
            ("clay lamps", "Clay  lamps.", "horn hats", "", "“horn hats", "horn hats"),
            ("clay lamps", "horn hats", "“horn hats"),
            (1, 2, 1),
            0,
        ),
        (("", "horn hats", "clay lamps"), ("horn hats", "clay lamps"), (1, 1), 0),
        ((LONG, "clay lamps", "clay lamps", LONG + "and"), ("clay lamps",), (2,), 2),
    ],
)
def test_answers_of_one_form_are_one_and_blank_or_long_ones_none(
    monkeypatch, answers, candidates, counts, dropped
):
    drawn(monkeypatch, *answers)
    asked = ask(demo(), QUESTION, Sampling(k=len(answers) - 1))
    assert (asked.decision.candidates, asked.counts) == (candidates, counts)
    assert asked.greedy == (answers[0] == candidates[0])
    assert asked.dropped == asked.to_dict()["dropped"] == dropped
    assert asked.to_dict()["candidates"] == list(candidates)


@pytest.mark.parametrize(
    ("answers", "message"), [(("", "", ""), "only blank answers"), ((LONG, LONG + "a"), "context")]
)
def test_no_answer_that_is_left_says_why(monkeypatch, answers, message):
    drawn(monkeypatch, *answers)
    with pytest.raises((InputError, ItemError), match=message):
        ask(demo(), QUESTION, Sampling(k=len(answers) - 1))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Paris.", " paris", True),
        ("ｐａｒｉｓ", "Paris!", True),
        ("C++", "C", True),  # punctuation at the edges is form, for good or ill
        ("3.5", "35", False),
        ("?", "!", False),
    ],
)
def test_normal_form(one, other, same):
    assert (normalise(one) == normalise(other)) is same


def test_the_decision_is_the_one_among_those_candidates():
    asked = ask(demo(), QUESTION, read="all")
    known = demo().correct(asked.prompt, asked.decision.candidates, read="all")
    assert asked.decision.to_dict(full=True) == known.to_dict(full=True)
    assert asked.answer == known.answer
    assert sorted([asked.answer, *asked.alternatives]) == sorted(known.candidates)
    scores = dict(zip(known.candidates, known.scores, strict=True))
    ranked = [scores[text] for text in asked.alternatives]
    assert ranked == sorted(ranked, reverse=True)
    assert asked._repr_html_() == known._repr_html_()


# --- what is refused ---


@pytest.mark.parametrize(
    ("question", "options", "message"),
    [
        ("  ", {}, "blank"),
        (QUESTION, {"k": 0}, "at least 1"),
        (QUESTION, {"max_new_tokens": 0}, "at least 1"),
        (QUESTION, {"temperature": -1.0}, "temperature"),
        (QUESTION, {"temperature": float("nan")}, "temperature"),
        (QUESTION, {"seed": -1}, "seed"),
        (QUESTION, {"template": "Q: {q}"}, "{question}"),
        ("why " * 400, {}, "context"),
        ("wh\0y", {}, "NUL"),
    ],
)
def test_what_cannot_be_asked(question, options, message):
    with pytest.raises((InputError, ItemError), match=message):
        template = options.pop("template", None)
        ask(demo(), question, Sampling(**options), template=template)


# --- the command ---


def test_the_command_answers_people_and_programs(run):
    given = ("ask", "--model", "lastword/demo-organism", QUESTION, "-k", "4", "--seed", "2")
    known = ask(demo(), QUESTION, Sampling(k=4, seed=2))
    code, out, err = run(*given)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == known.answer and "(greedy)" in out
    code, out, err = run(*given, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(known.to_dict()))
    assert run(*given[:3])[0] == 2
    code, out, err = run(*given[:3], " ")
    assert (code, out) == (1, "") and err.startswith("lastword: the question is blank")
