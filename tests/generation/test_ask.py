"""Questions without candidates: what is drawn, what becomes of it, and what is refused."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families import build, random_items, text_of, tokenizer
from transformers import LogitsProcessor

import lastword.cli
from lastword import Chat, Tracer
from lastword.errors import InputError, ItemError
from lastword.generation import ask as asking
from lastword.generation.ask import GumbelNoise, ask, normalise
from lastword.generation.decoding import decoding
from lastword.generation.sampling import Sampling
from lastword.text.tokens import encode_prompt

QUESTION = "Which goods come from Baevwick?"


@cache
def demo() -> Tracer:
    return Tracer.demo()


@cache
def tiny() -> Tracer:
    return Tracer(build("llama"), tokenizer(), invariant=2.0)


class Forced(LogitsProcessor):
    """Makes the model say a text, whatever it would have said."""

    def __init__(self, tracer: Tracer, prompt: str, text: str) -> None:
        self.start = len(encode_prompt(prompt, tracer.tokenizer))
        (self.ids,) = tracer.tokenizer([text], add_special_tokens=False)["input_ids"]
        self.ids.append(tracer.tokenizer.eos_token_id)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.ids[input_ids.shape[1] - self.start]] = 0.0
        return forced


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
    prompt = "Question: Why? Answer:"
    text = "\n clay lamps \nQuestion: And then?\nMore"
    asked = ask(
        demo(),
        "Why?",
        Sampling(temperature=0.0, max_new_tokens=40),
        processors=[Forced(demo(), prompt, text)],
    )
    assert asked.prompt == prompt
    assert asked.decision.candidates[1:] == ("clay lamps",)


@pytest.mark.parametrize("decode", ["trace", "dola", "sled"])
def test_ways_of_decoding_draw_beside_the_models_own_answer(decode):
    with decoding(demo(), decode) as processors:
        asked = ask(demo(), QUESTION, Sampling(k=2), processors=processors)
    assert asked.decision.candidates[0] == plain_greedy(demo(), asked.prompt)
    assert sum(asked.counts) == 2


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
        yield 0
        return next(answers)

    monkeypatch.setattr(asking, "_generate", generated)


def test_answers_that_differ_in_form_alone_are_one(monkeypatch):
    drawn(monkeypatch, "clay lamps", "Clay  lamps.", "horn hats", "", "“horn hats", "horn hats")
    asked = ask(demo(), QUESTION, Sampling(k=5))
    assert asked.decision.candidates == ("clay lamps", "horn hats", "“horn hats")
    assert asked.counts == (1, 2, 1)
    assert asked.to_dict()["candidates"] == ["clay lamps", "horn hats", "“horn hats"]


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


def test_a_blank_greedy_answer_is_left_out_and_said(monkeypatch):
    drawn(monkeypatch, "", "horn hats", "clay lamps")
    asked = ask(demo(), QUESTION, Sampling(k=2))
    assert asked.decision.candidates == ("horn hats", "clay lamps") and not asked.greedy


def test_nothing_but_blank_answers_is_an_error(monkeypatch):
    drawn(monkeypatch, "", "", "")
    with pytest.raises(InputError, match="only blank answers"):
        ask(demo(), QUESTION, Sampling(k=2))


@pytest.mark.parametrize("step", [1, 3, 100])
def test_the_length_of_a_step_changes_nothing(monkeypatch, step):
    known = ask(demo(), QUESTION, Sampling(k=6, seed=3)).to_dict()
    monkeypatch.setattr(asking, "STEP", step)
    assert ask(demo(), QUESTION, Sampling(k=6, seed=3)).to_dict() == known


@pytest.mark.parametrize(
    "family",
    ["llama", "gemma2", "mistral", "phi3-longrope", "bloom", "gpt_oss", "llama4_text", "lfm2"],
)
def test_steps_draw_what_one_run_of_the_model_draws(monkeypatch, family):
    tracer = Tracer(build(family), tokenizer(), invariant=2.0)
    prompt = encode_prompt(text_of([7, 8, 9]), tracer.tokenizer)
    drawn = []
    for step in (2, 40):
        monkeypatch.setattr(asking, "STEP", step)
        steps = asking._generate(tracer, prompt, [GumbelNoise(5, 1.0, 3)], 20, 5)
        drawn.append(finished(steps))
    assert drawn[0] == drawn[1] and len(set(drawn[0])) > 1


def finished(steps):
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        return ended.value


def test_the_model_is_free_between_steps_and_the_first_takes_none():
    steps = asking.ask_in_steps(demo(), QUESTION, Sampling(k=2, max_new_tokens=8))
    passes: list[int] = []
    hook = demo().backbone.model.register_forward_hook(lambda *_: passes.append(1))
    try:
        tokens = len(encode_prompt("Question: " + QUESTION + " Answer:", demo().tokenizer))
        assert next(steps) == 2 * (tokens + 8) and passes == []
        while next(steps, None) is not None:
            assert 0 < len(passes) <= asking.STEP
            with ThreadPoolExecutor(1) as other:
                assert other.submit(demo().backbone.lock.acquire, timeout=1).result()
                other.submit(demo().backbone.lock.release).result()
            passes.clear()
    finally:
        hook.remove()


def test_answers_that_do_not_fit_are_dropped_and_counted(monkeypatch):
    long = "horn hats " * 400
    drawn(monkeypatch, long, "clay lamps", "clay lamps", long + "and more")
    asked = ask(demo(), QUESTION, Sampling(k=3))
    assert asked.decision.candidates == ("clay lamps",) and asked.counts == (2,)
    assert asked.dropped == asked.to_dict()["dropped"] == 2 and not asked.greedy


def test_no_answer_that_fits_says_why(monkeypatch):
    long = "horn hats " * 400
    drawn(monkeypatch, long, long + "and more")
    with pytest.raises(ItemError, match="context"):
        ask(demo(), QUESTION, Sampling(k=1))


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
        ("why " * 400, {}, "more than the model's context"),
        ("wh\0y", {}, "NUL"),
    ],
)
def test_what_cannot_be_asked(question, options, message):
    with pytest.raises((InputError, ItemError), match=message):
        template = options.pop("template", None)
        ask(demo(), question, Sampling(**options), template=template)


# --- the command ---


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lastword", "ask", *arguments])
        with pytest.raises(SystemExit) as stop:
            lastword.cli.main()
            sys.exit(0)
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call


def test_the_command_answers_people_and_programs(run):
    given = ("--model", "lastword/demo-organism", QUESTION, "-k", "4", "--seed", "2")
    known = ask(demo(), QUESTION, Sampling(k=4, seed=2))
    code, out, err = run(*given)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == known.answer and "(greedy)" in out
    code, out, err = run(*given, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(known.to_dict()))


def test_the_command_decodes_by_the_rule(run):
    code, out, _ = run("--model", "lastword/demo-mix", QUESTION, "--decode", "trace", "-k", "2")
    assert code == 0 and out


def test_bad_usage(run):
    assert run("--model", "lastword/demo-organism")[0] == 2
    code, out, err = run("--model", "lastword/demo-organism", " ")
    assert (code, out) == (1, "") and err.startswith("lastword: the question is blank")


def test_words_of_the_double_come_back():
    asked = ask(tiny(), text_of([7, 8]), Sampling(k=2, max_new_tokens=3), template="{question}")
    assert all(word.startswith("w") for c in asked.decision.candidates for word in c.split())
