"""lm-evaluation-harness: base scores equal those of its model, and documents are corrected."""

import json
import logging
import math
import sys
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pytest
from families import build, random_items, text_of, tokenizer
from harness_tasks import write_tasks
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lastword import Item, Tracer
from lastword.decide.decider import Decider
from lastword.errors import InputError, ItemError
from lastword.integrations.lm_eval import CorrectedLM
from lastword.lab.demo import items as demo_items
from lastword.methods import resolve

pytestmark = pytest.mark.usefixtures("temporary_datasets")
CHOICES = ["made_choice", "made_mass"]
TASKS = [*CHOICES, "made_blank", "made_alone", "made_rolling", "made_text"]


@cache
def tracer(family: str = "llama", invariant: float = 2.0) -> Tracer:
    return Tracer(build(family), tokenizer(), invariant=invariant)


def harness(family: str = "llama", **options: Any) -> HFLM:
    return HFLM(pretrained=build(family), tokenizer=tokenizer(), batch_size=4, **options)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> TaskManager:
    folder = write_tasks(tmp_path_factory.mktemp("tasks"))
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(model: Any, names: list[str], tasks: TaskManager, **options: Any) -> dict[str, Any]:
    return lm_eval.simple_evaluate(
        model=model, tasks=names, task_manager=tasks, bootstrap_iters=0, **options
    )


def numbers(results: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (task, name): float(value)
        for task, values in results["results"].items()
        for name, value in values.items()
        if name.endswith(",none") and isinstance(value, int | float | np.floating)
    }


def requests_of(items: list[Item], task: str = "made") -> list[Instance]:
    return [
        Instance("loglikelihood", {}, (item.prompt, f" {candidate}"), i, (task, doc, 1))
        for doc, item in enumerate(items)
        for i, candidate in enumerate(item.candidates)
    ]


def split(answers: list[tuple[float, bool]], items: list[Item]) -> list[np.ndarray]:
    bounds = np.cumsum([len(item.candidates) for item in items])[:-1]
    return np.split(np.array([score for score, _ in answers]), bounds)


# --- base scores ---


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_base_sums_equal_those_of_hf_on_every_kind_of_task(family, tasks):
    ours = evaluate(CorrectedLM(tracer(family), "base-sum"), TASKS, tasks)
    theirs = evaluate(harness(family), TASKS, tasks)
    assert numbers(ours).keys() == numbers(theirs).keys() and len(numbers(ours)) == 10
    for name, value in numbers(theirs).items():
        assert numbers(ours)[name] == pytest.approx(value, rel=1e-4), name
    for task, samples in theirs["samples"].items():
        for mine, other in zip(ours["samples"][task], samples, strict=True):
            if task not in ("made_rolling", "made_text"):
                sums = [float(r[0][0]) for r in mine["resps"]]
                assert sums == pytest.approx([float(r[0][0]) for r in other["resps"]], abs=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"add_bos_token": False}, {"prefix_token_id": 9}, {"max_length": 9}], ids=str
)
def test_base_sums_equal_those_of_hf_in_edge_cases(options):
    ids = tokenizer()("w5 w6 w7", return_tensors="pt", return_token_type_ids=False)
    model: Any = build("llama")
    generated = model.generate(**ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
    greedy = text_of(generated[0, 4:].tolist())
    pairs = [
        ("w5 w6 w7", " " + greedy),
        ("w5 w6 w7  ", "w8 w9"),  # spaces move to the continuation
        ("", "w8 w9"),
        ("", text_of([9, 10])),  # the continuation begins with the prefix token of one case
        ("<s> w5", " w6"),  # a context that carries its BOS
        ("w5 w6 w7", " w8 w9"),
        (text_of(range(5, 25)), " w8 w9"),  # longer than one case's context
        (text_of(range(5, 25)), " w8 w9 w10"),
    ]
    requests = [
        Instance("loglikelihood", {}, p, 0, ("made", i // 2, 1)) for i, p in enumerate(pairs)
    ]
    ours = CorrectedLM(tracer(), "base-sum", **options).loglikelihood(requests)
    theirs = harness(**options).loglikelihood(requests)
    assert [g for _, g in ours] == [g for _, g in theirs]
    assert [s for s, _ in ours] == pytest.approx([s for s, _ in theirs], abs=1e-4)
    assert ours[0][1] or options.get("add_bos_token") is False


# --- corrected scores ---


@pytest.mark.parametrize("method", ["trace", "base-mean", "base-bytes", "dola", "early-exit@0.5"])
@pytest.mark.parametrize("invariant", [0.5, 2.0])
def test_scores_are_those_of_the_named_method(method, invariant):
    model, items = tracer(invariant=invariant), random_items(61, 10)
    answers = CorrectedLM(model, method).loglikelihood(requests_of(items))
    methods = {} if method == "trace" else resolve([method], model.facts)
    for scores, decision in zip(
        split(answers, items), model.correct_many(items, methods=methods), strict=True
    ):
        expected = decision.methods[method] if methods else decision.scores
        assert scores == pytest.approx(expected, abs=1e-4)


def test_documents_may_come_in_any_order_repeat_and_belong_to_two_tasks():
    items = random_items(62, 5, candidates=(4, 5))
    fewer = [Item(item.prompt, item.candidates[:3]) for item in items]
    requests, model = requests_of(items, "one") + requests_of(fewer, "two"), CorrectedLM(tracer())
    expected = [score for d in tracer().correct_many([*items, *fewer]) for score in d.scores]
    order = [i for i in np.random.default_rng(0).permutation(len(requests)) for _ in range(2)]
    answers = model.loglikelihood([requests[i] for i in order])
    assert answers[::2] == answers[1::2]
    assert [score for score, _ in answers] == pytest.approx([expected[i] for i in order], abs=1e-4)


def test_accuracy_and_mass_of_a_task_are_those_of_the_decisions(tasks):
    results = evaluate(CorrectedLM(tracer()), CHOICES, tasks)
    items = random_items(51, 8)  # the items of the task files
    labelled = [(d, i % len(d.scores)) for i, d in enumerate(tracer().correct_many(items))]
    right = [d.index == label for d, label in labelled]
    mass = [d.probabilities[label] for d, label in labelled]
    assert numbers(results)["made_choice", "acc,none"] == np.mean(right)
    assert numbers(results)["made_mass", "acc,none"] == pytest.approx(np.mean(mass), abs=1e-5)
    json.dumps(results["config"]["lastword"], allow_nan=False)
    assert results["config"]["lastword"]["method"] == "trace"


def test_choices_under_different_contexts_get_base_scores_and_a_warning(tasks, caplog):
    model = CorrectedLM(tracer())
    bare = [Instance("loglikelihood", {}, r.args, 0) for r in requests_of(random_items(65, 1))]
    alone = harness().loglikelihood(bare)  # a request without a document
    np.testing.assert_allclose(model.loglikelihood(bare), alone, rtol=0, atol=1e-4)
    model.uncorrected.clear()
    with caplog.at_level(logging.WARNING, "lastword"):
        ours = evaluate(model, ["made_blank", "made_alone", "made_choice"], tasks)
    theirs = evaluate(harness(), ["made_blank", "made_alone"], tasks)
    for name, value in numbers(theirs).items():
        assert numbers(ours)[name] == pytest.approx(value, rel=1e-4)
    assert dict(model.uncorrected) == {
        ("made_blank", "choices under different contexts"): 5,
        ("made_alone", "one request"): 8,
    }
    assert "made_blank: 5 of 5 documents are no candidate set" in caplog.text
    assert "made_choice" not in caplog.text
    uncorrected = ours["config"]["lastword"]["uncorrected"]
    assert uncorrected["made_blank: choices under different contexts"] == 5


def test_a_long_document_loses_the_same_tokens_for_every_choice(caplog):
    item = Item(text_of(range(5, 30)), ("w40", "w41 w42 w43", "w44 w45"))
    model = CorrectedLM(tracer(), max_length=12)
    with caplog.at_level(logging.WARNING, "lastword"):
        answers = model.loglikelihood(requests_of([item]))
    assert model.truncated == 1 and "lost prompt tokens" in caplog.text
    # <s>, the last 9 words of the prompt, and the longest choice but for its last token: 12
    expected = tracer().correct(text_of(range(21, 30)), item.candidates)
    assert [s for s, _ in answers] == pytest.approx(list(expected.scores), abs=1e-4)


# --- refusals ---


def test_a_cache_per_choice_is_refused_if_choices_are_scored_together(tasks, tmp_path):
    cache_file = str(tmp_path / "answers")
    with pytest.raises(InputError, match="leave it out"):
        evaluate(CorrectedLM(tracer()), CHOICES, tasks, use_cache=cache_file)
    model = CorrectedLM(tracer(), "base-sum")
    first = evaluate(model, CHOICES, tasks, use_cache=cache_file)
    assert numbers(evaluate(model, CHOICES, tasks, use_cache=cache_file)) == numbers(first)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("method", "guess", "no method guess"), ("dtype", "float32", "leave out")],
)
def test_invalid_options_are_refused(name, value, message):
    with pytest.raises(InputError, match=message):
        CorrectedLM(tracer(), **{name: value})


@pytest.mark.parametrize(
    ("context", "continuation", "options"),
    [("  ", "", {}), ("w5 w6", "", {}), ("w5", " " + text_of(range(9, 30)), {"max_length": 8})],
)
def test_requests_that_cannot_be_scored_are_refused(context, continuation, options):
    requests = [Instance("loglikelihood", {}, (context, continuation), 0, ("made", 3, 1))]
    with pytest.raises(ItemError, match="made/3"):
        CorrectedLM(tracer(), **options).loglikelihood(requests)


# --- the name of the model, and the command line ---


def test_the_harness_opens_the_model_by_name(tasks):
    results = evaluate("lastword", CHOICES, tasks, model_args="pretrained=lastword/demo-organism")
    assert results["config"]["lastword"]["model"] == "lastword/demo-organism"
    with pytest.raises(InputError, match="CPU"):
        evaluate("lastword", CHOICES, tasks, model_args="pretrained=lastword/demo-mix,device=cuda")


@pytest.fixture
def local_tasks(monkeypatch):
    """Leave out the 14,000 task files of the harness: it takes 10 s to read them."""
    without = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", without)


@pytest.mark.usefixtures("local_tasks")
def test_the_command_line(run, tmp_path):
    items = [i for i in demo_items() if i.id.startswith("multi/overwritten")][:6]
    write_tasks(tmp_path, items)
    args = (
        "--model_args pretrained=lastword/demo-organism,method=trace --tasks made_choice,made_mass "
        f"--include_path {tmp_path} --output_path {tmp_path}/out"
    )
    code, out, err = run("lm-eval", *args.split())
    assert code == 0, err
    assert "lastword (" in out and "|made_choice|" in out
    code, _, err = run("lm-eval", "--tasks", "made_choice", "--include_path", tmp_path)
    assert code == 1 and "--model_args pretrained=NAME" in err.splitlines()[-1]
    (written,) = Path(tmp_path, "out").rglob("results_*.json")
    results = json.loads(written.read_text())
    decisions = list(Tracer.demo().correct_many(items))
    right = np.mean([d.index == i % len(d.candidates) for i, d in enumerate(decisions)])
    assert results["results"]["made_choice"]["acc,none"] == pytest.approx(right)
    assert math.isfinite(results["results"]["made_mass"]["acc,none"])


@pytest.mark.usefixtures("local_tasks")
def test_tasks_that_cannot_be_downloaded_are_an_error_in_one_line(run, tmp_path):
    task = {"task": "far", "dataset_path": "org/far", "doc_to_text": "q", "doc_to_target": "a"}
    (tmp_path / "far.yaml").write_text(json.dumps(task | {"test_split": "test"}))
    args = ("--tasks", "far", "--include_path", tmp_path, "--limit", "1")
    code, _, err = run("lm-eval", "--model_args", "pretrained=lastword/demo-organism", *args)
    assert code == 1 and "harness cannot download" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        ("--tasks made", "run --model lastword --tasks made --device auto"),
        ("run --device cpu", "run --model lastword --device cpu"),
        ("ls tasks", "ls tasks"),
        ("--model hf --tasks made", "run --model hf --tasks made"),
        ("--config made.yaml", "run --config made.yaml"),
    ],
)
def test_options_are_passed_to_the_harness(run, typed, passed, monkeypatch):
    argv = []
    command_line = "lm_eval._cli.HarnessCLI"
    monkeypatch.setattr(f"{command_line}.parse_args", lambda _: argv.extend(sys.argv))
    monkeypatch.setattr(f"{command_line}.execute", lambda *_: None)
    assert run("lm-eval", *typed.split())[0] == 0
    assert argv == ["lastword lm-eval", *passed.split()]


@pytest.mark.parametrize("name", ["pmi@0.5", "contextual", "trace-gated"])
def test_a_correction_that_needs_more_than_a_task_is_refused(name):
    """The correction is named as a method, or belongs to the decider."""
    correcting = Decider(Tracer(build("llama"), tokenizer(), invariant=0.5), correction=name)
    for args in ((tracer(), name), (correcting,)):
        with pytest.raises(InputError, match=f"{name} needs more than a task has"):
            CorrectedLM(*args)
    with pytest.raises(InputError, match=f"corrects by {name}: .*method=dola"):
        CorrectedLM(correcting, "dola")
    with pytest.raises(InputError, match="batch-calibrated needs more than a task has"):
        CorrectedLM(tracer(), "batch-calibrated")
