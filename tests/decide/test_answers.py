"""Answers: formulas on doubles, and invariance on the embedded organism."""

import math
import random
from dataclasses import replace
from functools import partial
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from decided import decided
from scipy.special import softmax

from lastword import Choice, Decider, Item, Multi, Predicate, Score
from lastword.decide.answer import answer_of, concentration, order_concentration, row_of
from lastword.decide.item import candidates_of, item_of
from lastword.decide.questionnaire import prepare
from lastword.errors import InputError, ItemError
from lastword.lab.benchmarks import find
from lastword.text.question import Option
from lastword.trust.calibration import Calibration

TEXT = "The folk of Baevwick send clay lamps over the lake."
GOODS = ["green wool combs", "pale cedar boats", "clay lamps", "clay lamps and oil"]
WHICH = "Which goods come from Baevwick?"
QUESTIONS = {
    "goods": Choice(WHICH, GOODS),
    "there": Predicate("Baevwick lies on a lake."),
    "right": Choice("Is it so?", [True, "true", False]),
    "far": Score("How far is it?", ["near", "far", "very far"]),
}
CORRECTIONS = ["trace", "pmi@1", "contextual"]


@pytest.fixture(scope="module", params=CORRECTIONS)
def tracer(request) -> Decider:
    return Decider.demo(correction=request.param)


@pytest.fixture(scope="module")
def plain() -> Decider:
    return Decider.demo()


def scored(question, scores: list[float], temperature: float | None = None):
    decision = decided(scores, scores, candidates=candidates_of(question))
    return answer_of(question, decision, temperature)


def certificate_with(**facts):
    """Return a certificate that changes no decision, with the given fields."""
    defaults: dict = {"templates": (), "questions": (), "threshold": None, "calibration": None}
    defaults |= {"probe": None}
    defaults |= {"obey": lambda decision: decision, "check_template": lambda template: None}
    return SimpleNamespace(**defaults | facts)


def near(a, b, most: float = 1e-5) -> None:
    for name in a:
        np.testing.assert_allclose(a[name].probabilities, b[name].probabilities, atol=most, rtol=0)


# Formulas


def test_answers_agree_with_their_formulas():
    log = math.log
    choice = scored(Choice("?", ["a", "b", "c"]), [log(5), log(3), log(2)])
    np.testing.assert_allclose(choice.probabilities, [0.5, 0.3, 0.2], atol=1e-12)
    assert choice.choice == "a" and choice.probability == pytest.approx(0.5)
    assert choice.confidence == pytest.approx((0.5 - 1 / 3) / (1 - 1 / 3))
    warm = scored(Choice("?", ["a", "b"]), [log(9), 0.0], temperature=2.0)
    np.testing.assert_allclose(warm.probabilities, [0.75, 0.25], atol=1e-12)
    assert warm.calibrated and not choice.calibrated
    score = scored(Score("?", ["low", "mid", "high"]), [log(1), log(2), log(7)])
    assert score.score == pytest.approx(0.2 + 1.4) and score.level == 2
    assert score.confidence == pytest.approx(1 - (0.1 * 2 + 0.2 * 1) / (2 / 3))
    predicate = scored(Predicate("?"), [log(3), log(1)])
    assert predicate.probability == pytest.approx(0.75)
    assert predicate.confidence == pytest.approx(0.5)


@pytest.mark.parametrize("n", [2, 3, 10, 255])
def test_confidence_is_0_if_uniform_and_1_if_certain(n):
    even, sure = np.full(n, 1 / n), np.eye(n)[0]
    assert concentration(even) == pytest.approx(0, abs=1e-12)
    assert order_concentration(even) == pytest.approx(0, abs=0.34)  # the mode is at one end
    assert concentration(sure) == order_concentration(sure) == 1


def test_options_with_equal_text_share_its_probability():
    answer = scored(Choice("?", ["true", True, False]), [math.log(3), math.log(1)])
    np.testing.assert_allclose(answer.probabilities, [0.375, 0.375, 0.25], atol=1e-12)
    assert answer.choice == "true" and isinstance(answer.choice, str)


def test_the_choice_among_ties_does_not_depend_on_order():
    for order in permutations(["beta", "alpha", "gamma"]):
        assert scored(Choice("?", list(order)), [0.5, 0.5, 0.5]).choice == "alpha"


# On a model


def test_probabilities_are_the_softmax_of_the_corrected_scores(tracer):
    answer = tracer.decide(TEXT, QUESTIONS)["goods"]
    blind = f"Question: {WHICH}\nAnswer:"
    free = tuple(f"Text: {text}\n{blind}" if text else blind for text in ("N/A", "", "[MASK]"))
    item = Item(f"Text: {TEXT}\n{blind}", tuple(GOODS), blind_prompt=blind, content_free=free)
    (decision,) = tracer.correct_many([item])
    np.testing.assert_allclose(answer.probabilities, decision.probabilities, atol=1e-5, rtol=0)
    assert answer.choice == decision.answer
    assert answer.method == ("model" if decision.operator == "base" else tracer.correction.name)
    for other in tracer.decide(TEXT, QUESTIONS).values():
        assert abs(other.probabilities.sum() - 1) < 1e-9


def test_other_questions_texts_and_orders_do_not_change_answers(tracer):
    whole = tracer.decide(TEXT, QUESTIONS)
    near(tracer.decide(TEXT, dict(reversed(QUESTIONS.items()))), whole)
    for name, question in QUESTIONS.items():
        near(tracer.decide(TEXT, {"another name": question}), {"another name": whole[name]})
    for seed in range(6):
        order = random.Random(seed).sample(GOODS, len(GOODS))
        answer = tracer.decide(TEXT, {"goods": Choice(WHICH, order)})["goods"]
        by_option = dict(zip(order, answer.probabilities, strict=True))
        expected = whole["goods"].probabilities
        np.testing.assert_allclose([by_option[g] for g in GOODS], expected, atol=1e-5, rtol=0)
        assert answer.choice == whole["goods"].choice
    texts = [TEXT, "", "Oru has a lake in the north.", TEXT + " Nothing else is known."]
    for text, answers in zip(texts, tracer.decide_many(iter(texts), QUESTIONS), strict=True):
        near(tracer.decide(text, QUESTIONS), answers)


def test_pmi_without_a_text_is_uniform():
    answer = Decider.demo(correction="pmi@1").decide("", QUESTIONS)["goods"]
    np.testing.assert_allclose(answer.probabilities, 1 / len(GOODS), atol=1e-6)
    assert answer.confidence == pytest.approx(0, abs=1e-5)


def test_a_prepared_questionnaire_is_accepted(plain):
    ready = plain.prepare(QUESTIONS, template="decide/listed")
    near(plain.decide(TEXT, ready), plain.decide(TEXT, QUESTIONS, template="decide/listed"))


@pytest.mark.parametrize(
    ("text", "questions", "options", "message"),
    [
        (TEXT, {}, {}, "expected questions by name"),
        (TEXT, QUESTIONS, {"template": "decide/chat"}, "decide/chat goes into the model's chat"),
        ({"a": object()}, QUESTIONS, {}, "an input is text or JSON"),
        (["x", "y"], QUESTIONS, {}, "2 texts: use decide_many"),
        (TEXT * 41, QUESTIONS, {}, r"goods: candidate \d .*needs \d+ tokens"),
    ],
)
def test_invalid_questions_templates_and_inputs_are_refused(
    plain, text, questions, options, message
):
    with pytest.raises(InputError, match=message):
        plain.decide(text, questions, **options)


def test_an_error_names_its_text(plain):
    with pytest.raises(ItemError, match="item 1: goods: "):
        list(plain.decide_many([TEXT, TEXT * 40], QUESTIONS))


def test_answers_are_the_models_unless_a_correction_is_named(plain):
    """SPEC 18: without a certificate or a named correction, answers are the model's."""
    texts = [e for e in find("demo").load().examples if len(e.candidates) > 2][:60]
    named, by_trace = Decider.demo(correction="trace"), 0
    for example in texts:
        question = {"fact": Choice("", example.candidates)}
        answer = plain.decide(example.fields["question"], question)["fact"]
        trace = named.decide(example.fields["question"], question)["fact"]
        assert not answer.corrected and answer.method == "model"
        assert trace.method == ("model" if trace.decision.operator == "base" else "trace")
        base = answer.decision.base_scores
        np.testing.assert_allclose(answer.probabilities, softmax(base), atol=1e-12)
        np.testing.assert_allclose(base, trace.decision.base_scores, atol=1e-5)
        by_trace += trace.corrected
    assert by_trace > 0  # the named correction does override
    item = item_of(example.fields["question"], question["fact"], prepare(question).template)
    assert next(plain.correct_many([item])).method == "trace"  # `correct` stays TRACE


def test_answers_as_json_and_as_a_row(plain):
    answers = plain.decide(TEXT, QUESTIONS)
    values = answers.to_dict()
    assert [entry["value"] for entry in values["right"]["probabilities"]] == [True, "true", False]
    there, flags = answers["there"], {"calibrated": False, "deferred": False}
    numbers = {n: getattr(there, n) for n in ("probability", "confidence", "corrected")}
    assert values["there"] == {"type": "predicate", "method": "model"} | numbers | flags
    cells = row_of(answers)
    assert cells["goods"] == answers["goods"].choice and not cells["far.deferred"]
    assert cells["far.confidence"] == answers["far"].confidence


def test_a_certificates_temperature_is_applied(plain, monkeypatch):
    goods = {"goods": QUESTIONS["goods"]}
    bare = Decider.demo(correction="trace").decide(TEXT, goods)["goods"]
    warm = Calibration(2.0, 50, 0.2, 0.1, 0.5, 0.4)
    for part in (plain, plain.by_model):
        monkeypatch.setattr(part, "certificate", certificate_with(calibration=warm))
    answer = plain.decide(TEXT, goods)["goods"]
    expected = softmax(np.log(bare.probabilities) / 2.0)
    np.testing.assert_allclose(answer.probabilities, expected, atol=1e-5, rtol=0)
    assert answer.calibrated and not bare.calibrated


# Several options, or none of these


def test_multi_asks_one_predicate_per_option(plain):
    options = [Option("lakes", "water"), "goods", True]
    questions = {"about": Multi("What is it about?", options), "goods": QUESTIONS["goods"]}
    answers = plain.decide(TEXT, questions)
    about = answers["about"]
    alone = {
        value: plain.decide(TEXT, {"x": Predicate(f"What is it about?\nDoes this apply: {text}?")})
        for value, text in (("lakes", "lakes (water)"), ("goods", "goods"), (True, "true"))
    }
    assert about.values == tuple(alone)
    expected = [answer["x"].probability for answer in alone.values()]
    np.testing.assert_allclose(about.probabilities, expected, atol=1e-5, rtol=0)
    assert about.choices == tuple(v for v, p in zip(alone, expected, strict=True) if p > 0.5)
    assert about.probability == pytest.approx(min(max(p, 1 - p) for p in expected), abs=1e-5)
    near({"goods": answers["goods"]}, plain.decide(TEXT, {"goods": QUESTIONS["goods"]}))
    about_json = answers.to_dict()["about"]
    assert about_json["choices"] == list(about.choices) and about_json["method"] == "model"
    assert [entry["value"] for entry in about_json["probabilities"]] == ["lakes", "goods", True]
    assert (row_of(answers)["about"] or "") == "|".join(map(str, about.choices))


def test_a_deferred_answer_is_none_of_these_if_the_question_may_abstain(monkeypatch):
    tracer = Decider.demo()
    questions = {name: Choice(WHICH, GOODS, abstain=name == "may") for name in ("may", "must")}
    with pytest.raises(InputError, match="'may' may abstain, but no threshold is set"):
        tracer.decide(TEXT, questions)
    for deferred, choices in ((True, (None, GOODS)), (False, (GOODS, GOODS))):
        obey = partial(replace, deferred=deferred)
        certificate = certificate_with(threshold=0.5, obey=obey)
        for part in (tracer, tracer.by_model):
            monkeypatch.setattr(part, "certificate", certificate)
        answers = tracer.decide(TEXT, questions)
        for name, may in zip(questions, choices, strict=True):
            answer = answers[name]
            allowed: list[Any] = may or [None]
            assert answer.choice in allowed
            assert answer.probability == pytest.approx(answer.probabilities.max())
            assert answer.words == (answer.choice or "none of these")
            assert answer.to_dict()["choice"] == answer.choice


def test_decide_many_takes_columns_but_not_tables(plain):
    texts, question = [TEXT, "clay"], {"goods": QUESTIONS["goods"]}
    expected = [row_of(each) for each in plain.decide_many(texts, question)]
    column, arrow = pd.Series(texts, index=[7, 7]), pa.array(texts)
    columns = [column, column.astype("category"), np.array(texts), np.array(texts, dtype=object)]
    columns += [arrow, pa.chunked_array([arrow]), arrow.dictionary_encode(), (t for t in texts)]
    for one in columns:
        assert [row_of(each) for each in plain.decide_many(one, question)] == expected
    table = pa.table({"text": texts})
    tables = [pd.DataFrame({"text": texts}), table, table.to_batches()[0], np.array([texts])]
    for one in [*tables, {"text": texts}, TEXT, TEXT.encode()]:
        with pytest.raises(InputError, match="^expected many inputs.*: pass (the|a) "):
            next(plain.decide_many(one, question))
