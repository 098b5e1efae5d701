"""Corrections that read the question, against their formulas in float64."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import families
import numpy as np
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

from lastword import Decider, Item, Tracer, load_records
from lastword.cli import app
from lastword.decide.batch import Scope
from lastword.errors import CertificateError, ItemError
from lastword.lab.benchmarks import find
from lastword.methods import certified, correction_of, resolve
from lastword.methods.batch_calibrated import RunningMeans, batch_calibrated, label_set, means_of
from lastword.methods.contract import Facts, ItemReadings
from lastword.methods.gated import trace_gated
from lastword.methods.pmi import pmi
from lastword.records.decision import Decision
from lastword.records.explanation import explain
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Ruling
from lastword.rule.theta import Theta

OPEN = Theta(tau_logr=-100.0, tau_H=0.0)  # gates that allow nearly every override
FACTS = Facts(4, 10, 1.0)


@cache
def decider(invariant: float, correction: str = "trace") -> Decider:
    model, theta = families.build("llama"), OPEN
    tokens = families.tokenizer()
    tracer = Tracer(model, tokens, invariant=invariant, theta=theta)
    return Decider(tracer, correction=correction)


@cache
def items() -> list[Item]:
    full = families.random_items(5, 40, candidates=(2, 4))
    prompts = [item.prompt.split() for item in full]
    # The blind prompt omits the question, but has the same last word, so `early` sees no change.
    return [
        Item(i.prompt, i.candidates, blind_prompt=" ".join([*w[: len(w) // 2], w[-1]]))
        for i, w in zip(full, prompts, strict=True)
    ]


def trajectory(scores: Any, t: Any = None) -> Trajectory:
    """Return a trajectory of four depths, from all of its columns or only the last."""
    S = np.array(scores, float)
    return Trajectory(S if S.ndim == 2 else np.c_[np.full((len(S), 4), np.nan), S], t)


def evidence(base: Any, blind: Any = None, t: Any = None, **more: Any) -> ItemReadings:
    """Return evidence whose candidates have one token each by default."""
    one = np.ones(len(base), int)
    other = None if blind is None else trajectory(blind)
    fields: dict[str, Any] = {"candidates": tuple("abc"[: len(base)]), "tokens": one} | more
    return ItemReadings(trajectory=trajectory(base, t), blind=other, **fields)


FREE = ("w7 w3", "w7", "w7 w9 w3")


def by_formula(name: str, item: Item, encoded: Any) -> np.ndarray:
    """Return the scores of a correction by its formula, from readings of other prompts."""

    def read(prompt: str) -> np.ndarray:
        return decider(2.0).correct(prompt, item.candidates).base_scores

    b = read(item.prompt)
    if name == "contextual":
        free = [softmax(read(prompt)) for prompt in FREE]
        return np.log(softmax(b)) - np.log(sum(free) / len(FREE))
    assert item.blind_prompt is not None
    if name == "dcpmi":
        return (b - read(item.blind_prompt)) * np.array(encoded.prompt.candidate_tokens)
    return b - float(name.partition("@")[2]) * read(item.blind_prompt)


@pytest.mark.parametrize("name", ["pmi@0", "pmi@0.5", "pmi@1", "pmi@2", "dcpmi", "contextual"])
def test_a_correction_agrees_with_its_formula_alone_and_beside_others(name):
    engine, some = decider(2.0), [replace(item, content_free=FREE) for item in items()[:12]]
    encoded: Any = engine.encode(some)
    methods = resolve([name], engine.tracer.facts)
    alone = engine.tracer.decide_group(encoded, Scope("base", methods=methods))
    carried = engine.decide_group(encoded, Scope(methods=methods))
    corrected = [*decider(2.0, name).correct_many(some)]
    for e, lone, beside, by in zip(encoded, alone, carried, corrected, strict=True):
        expected = by_formula(name, e.item, e)
        for scores in (lone.methods[name], beside.methods[name], by.scores):
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        assert (by.method, by.operator, by.index) == (name, name, int(by.scores.argmax()))
        assert by.base_index == beside.base_index
        assert np.isnan(by.trajectory[:, :-1]).all()  # only depth L is read
        assert (by.content_free_scores is None) == (name != "contextual")
    assert any(by.corrected for by in corrected) or name == "pmi@0"


def test_sums_use_the_token_counts_of_each_prompt():
    tokens, blind = np.array([2, 1]), np.array([3, 1])
    given = evidence([-1, -1], [-2, -2], candidates=("né", "b"), tokens=tokens, blind_tokens=blind)
    assert pmi(FACTS, 1.0, "sum").scores(given).tolist() == [4, 1]
    np.testing.assert_allclose(pmi(FACTS, 1.0, "bytes").scores(given), [4 / 3, 1])
    assert pmi(FACTS, 1.0).scores(evidence([-1, -2])) is None


def passes_gate(decision: Decision, blind: np.ndarray) -> bool:
    """Apply SPEC 16's gate to TRACE's decision, term by term."""
    e, o = decision.index, decision.base_index
    last = decision.trajectory.shape[1] - 1
    at = {"early": 0, "mix": last}.get(decision.operator, decision.decisive_layer)
    assert at is not None
    S = decision.trajectory
    moved = (S[e, at] - blind[e, at]) - (S[o, at] - blind[o, at])
    half = (S[e, at] - S[o, at]) / 2
    return bool(moved > max(1e-4, half if half > 0 else 0.0))


@pytest.mark.parametrize("invariant", [0.5, 2.0])
def test_an_override_passes_the_gate_only_if_the_question_moved_it(invariant):
    plain, gated = decider(invariant), decider(invariant, "trace-gated")
    encoded: Any = plain.encode(items())
    decisions = plain.decide_group(encoded, Scope("all", "all"))
    methods = resolve(["trace-gated"], plain.tracer.facts)
    alone = plain.tracer.decide_group(encoded, Scope("base", methods=methods))
    scores = [decision.methods for decision in alone]
    outcomes = set()
    for trace, decided, method in zip(decisions, gated.correct_many(items()), scores, strict=True):
        assert trace.blind_trajectory is not None
        held = trace.corrected and passes_gate(trace, trace.blind_trajectory)
        assert decided.corrected == held and decided.method == "trace-gated"
        np.testing.assert_allclose(decided.scores, method["trace-gated"], rtol=1e-5, atol=1e-5)
        if trace.corrected:
            outcomes.add((trace.operator, held))
            assert ("The answer stays" in explain(decided)) != held
            assert decided.gates["question"].holds == held
            assert decided.operator == (trace.operator if held else "base")
        else:
            assert "question" not in decided.gates
            assert (decided.operator, decided.index) == (trace.operator, trace.index)
    assert {("decisive", True), ("decisive", False)} <= outcomes
    # The prompts end with the same word: depth 0 is equal.
    assert [held for name, held in outcomes if name == "early"] == [False] * (invariant < 1)


def test_the_gate_must_exceed_half_the_margin_and_the_minimum():
    theta = Theta(tau_dim=100.0)
    facts = Facts(4, 10, 0.5, theta)  # early: S[:, 0] if max b < gamma = -1

    def gate(first: float, blind: float) -> Any:
        S, other = ([[0, *[-2] * 4], [score, *[-3] * 4]] for score in (first, blind))
        verdict = trace_gated(facts).next(evidence(S, other))
        assert isinstance(verdict, Ruling)
        return verdict.gates["question"], verdict.operator

    held, operator = gate(1.0, 0.4)  # moved by 0.6, half of the margin is 0.5
    assert (held.value, held.threshold, operator) == (pytest.approx(0.6), 0.5, "early")
    failed, operator = gate(1.0, 0.5)  # moved by exactly half of the margin
    assert (failed.value, failed.holds, operator) == (0.5, False, "base")
    small, _ = gate(1e-6, -1.0)
    assert small.threshold == 1e-4 and small.holds
    t = np.array([-1.9, -0.5])  # a mix is gated at the last depth, which moves by -2.1 - blind
    for blind, mixed in ((-2.3, ("mix", 1.0)), (-2.1, ("base", 0.0)), (-2.0, ("base", 0.0))):
        verdict = trace_gated(Facts(4, 10, 2.0)).next(evidence([-2.0, -2.1], [-2.0, blind], t))
        assert isinstance(verdict, Ruling) and (verdict.operator, verdict.mixing) == mixed
        assert verdict.gates["question"].value == pytest.approx(-2.1 - blind)


def test_a_missing_blind_prompt_is_an_error_or_keeps_the_models_answer():
    bare = [Item(i.prompt, i.candidates) for i in items()[:6]]
    with pytest.raises(ItemError, match=r"^item 0: pmi@0.5 .*blind_prompt"):
        list(decider(2.0, "pmi@0.5").correct_many(bare))
    with pytest.raises(ItemError, match="needs a blind_prompt"):
        decider(2.0, "question-blind").correct("w5 w6", ["w7", "w8"])
    for decision in decider(2.0, "trace-gated").correct_many(bare):
        assert not decision.corrected
    one = decider(2.0, "pmi@0.5").correct("w5 w6", ["w7", "w8"], blind_prompt="w6")
    assert one.method == "pmi@0.5"
    assert decider(2.0, "pmi@0.5").describe()["correction"] == "pmi@0.5"
    assert "correction" not in decider(2.0).describe()


def test_the_command_and_python_apply_a_correction(run):
    item = Item("Question: Which craft? Answer:", ["wool boats", "glass"], blind_prompt="Answer:")
    texts = ["--prompt", item.prompt, "--blind-prompt", "Answer:"]
    texts += [x for c in item.candidates for x in ("--candidate", c)]
    model = ("--model", "lastword/demo-organism", "--correction", "pmi@0.5")
    decision = json.loads(run("correct", *model, *texts, "--json")[1])
    (expected,) = Decider.demo(correction="pmi@0.5").correct_many([item])
    assert decision["method"] == "pmi@0.5"
    assert decision["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-5)


def test_a_run_with_a_correction_records_it_and_cannot_be_certified_as_trace(tmp_path):
    runs, organism = tmp_path / "runs", ["--model", "lastword/demo-organism"]
    options = ["--benchmark", "demo", "--limit", "12", "--out", str(runs), "--blind", "none"]
    command = ["eval", *organism, "--correction", "contextual", *options, "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (summary,) = json.loads(done.stdout)
    (info,) = (json.loads(path.read_text()) for path in runs.rglob("run.json"))
    assert info["correction"] == "contextual"
    records = load_records(runs)
    benchmark = find("demo")
    loaded = benchmark.load(None, limit=12).items(benchmark.template(), content_free=True)
    engine = Decider.demo(correction="contextual")
    expected = [*engine.correct_many(loaded)]
    assert list(records["index"]) == [decision.index for decision in expected]
    assert set(records["operator"]) == {"contextual"} and not records["scores"].isna().any()
    right = [i.truthful[d.index] for i, d in zip(loaded, expected, strict=True) if i.truthful]
    assert summary["mc1"] == pytest.approx(np.mean(right))
    assert summary["fired"]["contextual"] == 1
    assert json.loads(CliRunner().invoke(app, command).stdout) == [summary]
    for other in (["eval", *organism, *options], ["certify", str(runs)]):
        assert "contextual" in str(CliRunner().invoke(app, other).exception)


def calls(answer: Any, labels: list[str]) -> ItemReadings:
    return evidence(np.log(answer), candidates=tuple(labels))


LABELS = ["red", "blue", "green"]


def random_answers(count: int) -> list[ItemReadings]:
    """Return answers that favour one label, with the labels in random order."""
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(count):
        p, order = rng.dirichlet([4, 1, 1]), rng.permutation(3)
        answers.append(calls(p[order], [LABELS[i] for i in order]))
    return answers


def test_a_batch_is_calibrated_by_the_mean_of_its_label_set():
    answers, rng = random_answers(60), np.random.default_rng(1)
    others = [calls(rng.dirichlet([1, 9]), ["yes", "no"]) for _ in range(30)]
    means = means_of([*answers, *others])
    assert set(means) == {label_set(LABELS), label_set(["no", "yes"])}
    unfitted = batch_calibrated(FACTS)
    assert unfitted.fit is not None and unfitted.scores(answers[0]) is None
    method = unfitted.fit([*answers, *others])
    places = [[e.candidates.index(label) for label in LABELS] for e in answers]
    table = np.exp([e.trajectory.base[at] for e, at in zip(answers, places, strict=True)])
    mean = table.sum(axis=0) / len(table)
    assert not means_of(answers[:19])  # below the minimum of 20
    for wanted, at, answer in zip(table - mean, places, answers, strict=True):
        np.testing.assert_allclose(method.scores(answer)[at], wanted, atol=1e-12)
    assert method.scores(calls([0.5, 0.5], ["yes", "maybe"])) is None
    # The fitted means do not change: scores do not depend on the order of items.
    verdict = method.next(answers[5])
    assert isinstance(verdict, Ruling)
    np.testing.assert_array_equal(verdict.scores, method.scores(answers[5]))


def test_a_running_mean_corrects_only_after_twenty_answers():
    answers = random_answers(40)
    running = correction_of("batch-calibrated", FACTS)
    for i, answer in enumerate(answers):
        ruling = running.next(answer)
        assert isinstance(ruling, Ruling)
        gate = ruling.gates["seen"]
        assert (gate.value, gate.threshold, gate.holds) == (i + 1, 20, i >= 19)
        method = batch_calibrated(FACTS, means_of(answers[: i + 1]))
        expected = answer.trajectory.base if i < 19 else method.scores(answer)
        np.testing.assert_allclose(ruling.scores, expected)


def test_running_means_of_rare_label_sets_are_dropped():
    small, counts = RunningMeans(most=2), []
    for labels in (["a", "b"], ["c", "d"], ["a", "b"], ["e", "f"], ["a", "b"], ["c", "d"]):
        ruling = small.next(calls([0.5, 0.5], labels))
        assert isinstance(ruling, Ruling)
        counts.append(ruling.gates["seen"].value)
    assert counts == [1, 1, 2, 1, 3, 1]


def test_content_free_prompts_are_read_only_if_the_correction_needs_them():
    with_free = [Item(i.prompt, i.candidates, content_free=FREE) for i in items()[:3]]
    for decision in decider(2.0).correct_many(with_free):
        assert decision.content_free_scores is None
    with pytest.raises(ItemError, match="content_free"):
        list(decider(2.0, "contextual").correct_many(items()[:2]))
    with pytest.raises(ItemError, match="content_free"):
        talk = [{"role": "user", "content": "x"}]
        Item.from_dict({"messages": talk, "candidates": ["a"], "content_free": ["y"]})
    item = Item.from_dict({"prompt": "a", "candidates": ["b"], "content_free": ["c", ""]})
    assert item.content_free == ("c", "")


def test_a_certificate_applies_only_to_its_correction():
    pmi, trace = (correction_of(name, FACTS) for name in ("pmi@1", "trace"))
    assert certified("pmi@1", {}, pmi, FACTS) is pmi
    assert certified("pmi@1", {}, trace, FACTS).name == "pmi@1"
    for name, means, correction in (("trace", {}, pmi), ("pmi@1", {"set": (0.5, 0.5)}, trace)):
        with pytest.raises(CertificateError, match=r"pmi@1"):
            certified(name, means, correction, FACTS)
