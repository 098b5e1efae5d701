"""Corrections that read the question, against their formulas in float64."""

import json
from functools import cache
from typing import Any

import families
import numpy as np
import pytest
from typer.testing import CliRunner

from lastword import Decider, Item, Tracer, load_records
from lastword.cli import app
from lastword.decide.batch import Scope
from lastword.errors import CertificateError, ItemError
from lastword.lab.benchmarks import find
from lastword.methods import correction_of, resolve
from lastword.methods.batch_calibrated import Running, batch_calibrated, label_set, means_of
from lastword.methods.contract import Evidence, Facts
from lastword.methods.gated import trace_gated
from lastword.methods.pmi import pmi
from lastword.records.decision import Decision
from lastword.records.explanation import explain
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Ruling
from lastword.rule.theta import Theta

OPEN = Theta(tau_logr=-100.0, tau_H=0.0)  # gates that allow nearly every override
FACTS = Facts(4, 10, 1.0)
ORGANISM = ["--model", "lastword/demo-organism", "--correction"]


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


def evidence(base: Any, blind: Any = None, t: Any = None, **more: Any) -> Evidence:
    """Return evidence whose candidates have one token each by default."""
    one = np.ones(len(base), int)
    other = None if blind is None else trajectory(blind)
    fields: dict[str, Any] = {"candidates": tuple("abc"[: len(base)]), "tokens": one} | more
    return Evidence(trajectory=trajectory(base, t), blind=other, **fields)


@pytest.mark.parametrize(
    ("name", "weight"), [("pmi@0", 0), ("pmi@0.5", 0.5), ("pmi@1", 1), ("pmi@2", 2), ("dcpmi", 1)]
)
def test_pmi_agrees_with_its_formula_as_a_method_and_as_a_correction(name, weight):
    engine, correcting = decider(2.0), decider(2.0, name)
    encoded: Any = engine.encode(items())
    methods = resolve([name], engine.tracer.facts)
    decisions = engine.decide_group(encoded, Scope("all", "all"))
    alone = engine.tracer.decide_group(encoded, Scope("base", methods=methods))
    compared = [decision.methods for decision in alone]
    carried = engine.decide_group(encoded, Scope(methods=methods))
    changed = 0
    for e, whole, lone, beside, by in zip(
        encoded, decisions, compared, carried, correcting.correct_many(items()), strict=True
    ):
        assert whole.blind_trajectory is not None
        b, q = whole.trajectory[:, -1], whole.blind_trajectory[:, -1]
        expected = (b - weight * q) * (
            np.array(e.prompt.candidate_tokens) if name == "dcpmi" else 1
        )
        for scores in (lone[name], beside.methods[name], by.scores):
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        assert (by.method, by.operator, by.index) == (name, name, int(by.scores.argmax()))
        assert by.base_index == whole.base_index
        assert np.isnan(by.trajectory[:, :-1]).all()  # only depth L is read
        changed += by.corrected
    assert changed > 0 or name == "pmi@0"


def test_sums_use_the_token_counts_of_each_prompt():
    tokens, blind = np.array([2, 1]), np.array([3, 1])
    given = evidence([-1, -1], [-2, -2], candidates=("né", "b"), tokens=tokens, blind_tokens=blind)
    assert pmi(FACTS, 1.0, "sum").scores(given).tolist() == [4, 1]
    np.testing.assert_allclose(pmi(FACTS, 1.0, "bytes").scores(given), [4 / 3, 1])
    assert pmi(FACTS).scores(evidence([-1, -2])) is None


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


@pytest.mark.parametrize(("blind", "held"), [(-2.3, True), (-2.1, False), (-2.0, False)])
def test_a_mix_is_gated_at_the_last_depth(blind, held):
    t = np.array([-1.9, -0.5])  # sharper, and prefers the other candidate
    # The last depth moves it by -2.1 - blind, which must exceed 1e-4.
    verdict = trace_gated(Facts(4, 10, 2.0)).next(evidence([-2.0, -2.1], [-2.0, blind], t))
    assert isinstance(verdict, Ruling)
    assert verdict.operator == ("mix" if held else "base")
    assert verdict.mixing == (1.0 if held else 0.0)
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
    assert "corrects by pmi@0.5" in repr(decider(2.0, "pmi@0.5"))
    assert decider(2.0, "pmi@0.5").describe()["correction"] == "pmi@0.5"
    assert "correction" not in decider(2.0).describe()


def test_the_command_and_python_apply_a_correction():
    candidates = ["grey wool boats.", "silver glass boats."]
    item = Item("Question: Which craft? Answer:", candidates, blind_prompt="Answer:")
    options = ["--prompt", item.prompt, "--blind-prompt", "Answer:"]
    options += [x for c in candidates for x in ("--candidate", c)]
    command = ["correct", *ORGANISM[:2], "--correction", "pmi@0.5", *options]
    decision = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    (expected,) = Decider.demo(correction="pmi@0.5").correct_many([item])
    assert decision["method"] == decision["operator"] == "pmi@0.5"
    assert decision["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-5)
    assert "The scores of pmi@0.5 decide." in CliRunner().invoke(app, command).stdout


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_a_correction_records_it_and_cannot_be_certified_as_trace(tmp_path):
    """Check the records, their summary and the page of a run with `--correction`."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    options = ["--benchmark", "demo", "--limit", "12", "--out", str(runs), "--blind", "none"]
    command = ["eval", *ORGANISM, "contextual", *options, "--json"]
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
    assert summary["fired"]["contextual"] == 1 and summary["gain_mc1"][
        "contextual"
    ] == pytest.approx(summary["mc1"] - summary["mc1_base"])
    assert json.loads(CliRunner().invoke(app, command).stdout) == [summary]
    for other in (["eval", *ORGANISM[:2], *options], ["certify", str(runs)]):
        assert "contextual" in str(CliRunner().invoke(app, other).exception)
    page = CliRunner().invoke(app, ["report", str(runs), "--out", str(out)])
    assert page.exit_code == 0, page.output
    assert "that of contextual" in (out / "index.html").read_text()


FREE = ("w7 w3", "w7", "w7 w9 w3")


def test_contextual_divides_by_the_content_free_distribution():
    engine, correcting = decider(2.0), decider(2.0, "contextual")
    with_free = [Item(i.prompt, i.candidates, content_free=FREE) for i in items()[:12]]
    encoded: Any = engine.encode(with_free)
    methods = resolve(["contextual"], engine.tracer.facts)
    alone = engine.tracer.decide_group(encoded, Scope("base", methods=methods))
    compared = [decision.methods for decision in alone]
    carried = engine.decide_group(encoded, Scope(methods=methods))
    changed = 0
    for item, lone, beside, by in zip(
        with_free, compared, carried, correcting.correct_many(with_free), strict=True
    ):
        free_scores = [engine.correct(prompt, item.candidates).base_scores for prompt in FREE]
        free_probs = [np.exp(b) / sum(np.exp(b)) for b in free_scores]
        b = engine.correct(item.prompt, item.candidates).base_scores
        p = np.exp(b) / np.exp(b).sum()
        expected = np.log(p) - np.log(sum(free_probs) / len(free_probs))
        for scores in (lone["contextual"], beside.methods["contextual"], by.scores):
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        assert beside.content_free_scores is not None
        np.testing.assert_allclose(beside.content_free_scores, free_scores, rtol=1e-5, atol=1e-5)
        assert by.blind_scores is None and np.isnan(by.trajectory[:, :-1]).all()
        changed += by.corrected
    assert changed


def calls(answer: Any, labels: list[str]) -> Evidence:
    return evidence(np.log(answer), candidates=tuple(labels))


LABELS = ["red", "blue", "green"]


def random_answers(count: int) -> list[Evidence]:
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
    small, counts = Running(frozenset([4]), most=2), []
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
    from lastword.methods import certified

    pmi, trace = (correction_of(name, FACTS) for name in ("pmi@1", "trace"))
    assert certified("pmi@1", {}, pmi, FACTS) is pmi
    assert certified("pmi@1", {}, trace, FACTS).name == "pmi@1"
    for name, means, correction in (("trace", {}, pmi), ("pmi@1", {"set": (0.5, 0.5)}, trace)):
        with pytest.raises(CertificateError, match=r"pmi@1"):
            certified(name, means, correction, FACTS)
