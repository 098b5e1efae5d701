"""lm-evaluation-harness: our numbers against its own model's, documents as candidate sets."""

import json
import logging
import math
import sys
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import gguf_files
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

pytestmark = pytest.mark.usefixtures("own_datasets")
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


# --- the base is hf ---


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_base_sums_are_hfs_on_every_kind_of_task(family, tasks):
    ours = evaluate(CorrectedLM(tracer(family), "base-sum"), TASKS, tasks)
    theirs = evaluate(harness(family), TASKS, tasks)
    assert numbers(ours).keys() == numbers(theirs).keys() and len(numbers(ours)) == 10
    for name, value in numbers(theirs).items():
        assert numbers(ours)[name] == pytest.approx(value, rel=1e-4), name
    for task, samples in theirs["samples"].items():
        for mine, other in zip(ours["samples"][task], samples, strict=True):
            if task not in ("made_rolling", "made_text"):
                got = [float(r[0][0]) for r in mine["resps"]]
                assert got == pytest.approx([float(r[0][0]) for r in other["resps"]], abs=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"add_bos_token": False}, {"prefix_token_id": 9}, {"max_length": 9}], ids=str
)
def test_base_sums_are_hfs_at_the_edges(options):
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
    made = [Instance("loglikelihood", {}, p, 0, ("made", i // 2, 1)) for i, p in enumerate(pairs)]
    ours = CorrectedLM(tracer(), "base-sum", **options).loglikelihood(made)
    theirs = harness(**options).loglikelihood(made)
    assert [g for _, g in ours] == [g for _, g in theirs]
    assert [s for s, _ in ours] == pytest.approx([s for s, _ in theirs], abs=1e-4)
    assert ours[0][1] or options.get("add_bos_token") is False


@pytest.mark.parametrize("method", ["trace", "base-sum"])
def test_whether_greedy_decoding_would_say_it(method):
    made = requests_of([Item("w5 w6", tuple(f"w{i}" for i in range(3, 331)))])
    answers = CorrectedLM(tracer(), method).loglikelihood(made)
    assert [g for _, g in answers] == [g for _, g in harness().loglikelihood(made)]
    assert sum(g for _, g in answers) <= 1


# --- a document is a candidate set ---


@pytest.mark.parametrize("invariant", [0.5, 2.0])
def test_corrected_scores_are_the_tracers_decisions(invariant):
    items = random_items(61, 10)
    made = requests_of(items)
    found = CorrectedLM(tracer(invariant=invariant)).loglikelihood(made)
    known = list(tracer(invariant=invariant).correct_many(items))
    assert {d.operator for d in known} > {"base"}
    for scores, decision in zip(split(found, items), known, strict=True):
        assert scores == pytest.approx(decision.scores, abs=1e-4)


def test_documents_may_come_in_any_order_and_repeat():
    items = random_items(62, 5)
    made = requests_of(items)
    model = CorrectedLM(tracer())
    known = np.array(model.loglikelihood(made))[:, 0]
    order = np.random.default_rng(0).permutation(len(made))
    shuffled = model.loglikelihood([made[i] for i in order])
    assert [score for score, _ in shuffled] == pytest.approx(known[order], abs=1e-5)
    twice = model.loglikelihood([r for r in made for _ in range(2)])
    assert twice[::2] == twice[1::2]
    assert [score for score, _ in twice[::2]] == pytest.approx(known, abs=1e-5)


def test_the_same_document_of_two_tasks_is_two_sets():
    (item,) = random_items(63, 1, candidates=(5, 5))
    fewer = Item(item.prompt, item.candidates[:3])
    made = requests_of([item], "one") + requests_of([fewer], "two")
    found = CorrectedLM(tracer(invariant=0.5)).loglikelihood(made)
    for scores, known in zip(split(found, [item, fewer]), (item, fewer), strict=True):
        decision = tracer(invariant=0.5).correct(known.prompt, known.candidates)
        assert scores == pytest.approx(decision.scores, abs=1e-5)


@pytest.mark.parametrize("method", ["base-mean", "base-bytes", "dola", "early-exit@0.5", "delta"])
def test_any_method_scores_by_name(method):
    from lastword.methods import resolve

    items = random_items(64, 4)
    found = CorrectedLM(tracer(), method).loglikelihood(requests_of(items))
    methods = resolve([method], tracer().facts)
    known = tracer().compare(tracer().encode(items), methods)
    for scores, by_name in zip(split(found, items), known, strict=True):
        assert scores == pytest.approx(by_name[method], abs=1e-4)


def test_accuracy_and_mass_of_a_task_are_those_of_the_decisions(tasks):
    results = evaluate(CorrectedLM(tracer()), CHOICES, tasks)
    items = random_items(51, 8)  # as the task files have them
    labelled = [(d, i % len(d.scores)) for i, d in enumerate(tracer().correct_many(items))]
    right = [d.index == label for d, label in labelled]
    mass = [d.probabilities[label] for d, label in labelled]
    assert numbers(results)["made_choice", "acc,none"] == np.mean(right)
    assert numbers(results)["made_mass", "acc,none"] == pytest.approx(np.mean(mass), abs=1e-5)
    json.dumps(results["config"]["lastword"], allow_nan=False)
    assert results["config"]["lastword"]["method"] == "trace"


def test_choices_under_different_contexts_are_scored_as_the_base_and_said(tasks, caplog):
    model = CorrectedLM(tracer())
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
    known = ours["config"]["lastword"]["uncorrected"]
    assert known["made_blank: choices under different contexts"] == 5


def test_requests_without_a_document_are_scored_alone():
    (item,) = random_items(65, 1, candidates=(3, 3))
    bare = [Instance("loglikelihood", {}, r.args, i) for i, r in enumerate(requests_of([item]))]
    ours = np.array(CorrectedLM(tracer(invariant=0.5)).loglikelihood(bare))
    np.testing.assert_allclose(ours, harness().loglikelihood(bare), rtol=0, atol=1e-4)


def test_a_long_document_loses_the_same_tokens_for_every_choice(caplog):
    item = Item(text_of(range(5, 30)), ("w40", "w41 w42 w43", "w44 w45"))
    model = CorrectedLM(tracer(), max_length=12)
    with caplog.at_level(logging.WARNING, "lastword"):
        found = model.loglikelihood(requests_of([item]))
    assert model.truncated == 1 and "lost prompt tokens" in caplog.text
    # <s>, the last 9 words of the prompt, and the longest choice but for its last token: 12
    kept = tracer().correct(text_of(range(21, 30)), item.candidates)
    assert [s for s, _ in found] == pytest.approx(list(kept.scores), abs=1e-4)


# --- what is refused ---


def test_a_cache_by_choice_is_refused_where_choices_are_scored_together(tasks, tmp_path):
    cache_file = str(tmp_path / "answers")
    with pytest.raises(InputError, match="leave it out"):
        evaluate(CorrectedLM(tracer()), CHOICES, tasks, use_cache=cache_file)
    model = CorrectedLM(tracer(), "base-sum")
    first = evaluate(model, CHOICES, tasks, use_cache=cache_file)
    assert numbers(evaluate(model, CHOICES, tasks, use_cache=cache_file)) == numbers(first)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("method", "guess", "no method guess"), ("dtype", "float32", "leave out")]
    + [("theta", "theta.toml", "leave out")],
)
def test_options_that_cannot_be_used(name, value, message):
    with pytest.raises(InputError, match=message):
        CorrectedLM(tracer(), **{name: value})


@pytest.mark.parametrize(
    ("context", "continuation", "options"),
    [("  ", "", {}), ("w5 w6", "", {}), ("w5", " " + text_of(range(9, 30)), {"max_length": 8})],
)
def test_requests_that_cannot_be_scored(context, continuation, options):
    made = [Instance("loglikelihood", {}, (context, continuation), 0, ("made", 3, 1))]
    with pytest.raises(ItemError, match="made/3"):
        CorrectedLM(tracer(), **options).loglikelihood(made)


# --- by name, and from the command line ---


def test_the_model_is_known_by_name(tasks, tmp_path):
    theta = tmp_path / "theta.toml"
    theta.write_text("gamma = -0.5\n")
    results = evaluate(
        "lastword", CHOICES, tasks, model_args=f"pretrained=lastword/demo-organism,theta={theta}"
    )
    assert results["config"]["lastword"]["model"] == "lastword/demo-organism"
    assert results["config"]["lastword"]["theta"]["gamma"] == -0.5
    with pytest.raises(InputError, match="CPU"):
        evaluate("lastword", CHOICES, tasks, model_args="pretrained=lastword/demo-mix,device=cuda")


@pytest.fixture
def alone(monkeypatch):
    """Leave out the harness's own 14,000 files of tasks, which it reads in 10 s."""
    without = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", without)


@pytest.mark.usefixtures("alone")
def test_the_command_line(run, tmp_path):
    items = [i for i in demo_items() if i.id.startswith("multi/overwritten")][:6]
    write_tasks(tmp_path, items)
    given = (
        "--model_args pretrained=lastword/demo-organism,method=trace --tasks made_choice,made_mass "
        f"--include_path {tmp_path} --output_path {tmp_path}/out"
    )
    code, out, err = run("lm-eval", *given.split())
    assert code == 0, err
    assert "lastword (" in out and "|made_choice|" in out
    code, _, err = run("lm-eval", "--tasks", "made_choice", "--include_path", tmp_path)
    assert code == 1 and "--model_args pretrained=NAME" in err.splitlines()[-1]
    (written,) = Path(tmp_path, "out").rglob("results_*.json")
    results = json.loads(written.read_text())
    known = list(Tracer.demo().correct_many(items))
    right = np.mean([d.index == i % len(d.candidates) for i, d in enumerate(known)])
    assert results["results"]["made_choice"]["acc,none"] == pytest.approx(right)
    assert math.isfinite(results["results"]["made_mass"]["acc,none"])


@pytest.mark.usefixtures("alone")
def test_tasks_that_cannot_be_fetched_are_said_in_a_line(run, tmp_path):
    task = {"task": "far", "dataset_path": "org/far", "doc_to_text": "q", "doc_to_target": "a"}
    (tmp_path / "far.yaml").write_text(json.dumps(task | {"test_split": "test"}))
    given = ("--tasks", "far", "--include_path", tmp_path, "--limit", "1")
    code, _, err = run("lm-eval", "--model_args", "pretrained=lastword/demo-organism", *given)
    assert code == 1 and "harness cannot download" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (f"{run}--tasks made", "run --model lastword --tasks made --device auto")
        for run in ("", "run ")
    ]
    + [("--device cpu --tasks made", "run --model lastword --device cpu --tasks made")]
    + [("ls tasks", "ls tasks"), ("", "run")]
    + [
        (own, f"run {own}")
        for own in ("--model hf --tasks made", "--model=hf", "--config made.yaml")
    ],
)
def test_the_harness_parses_its_own_options(run, given, passed, monkeypatch):
    seen = []
    harness = "lm_eval._cli.HarnessCLI"
    monkeypatch.setattr(f"{harness}.parse_args", lambda _: seen.extend(sys.argv))
    monkeypatch.setattr(f"{harness}.execute", lambda *_: None)
    assert run("lm-eval", *given.split())[0] == 0
    assert seen == ["lastword lm-eval", *passed.split()]


def test_a_gguf_file_by_name(tmp_path):
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.build("llama"))
    model = CorrectedLM(str(path), device="cpu")
    assert model.decider.describe()["gguf"] == "m.gguf"
    args = [("the tea", " is hot"), ("the tea", " is not")]
    made = [Instance("loglikelihood", {}, pair, i, ("made", 0, 1)) for i, pair in enumerate(args)]
    assert all(score < 0 for score, _ in model.loglikelihood(made))


@pytest.mark.parametrize("name", ["pmi@0.5", "contextual", "trace-gated", "batch-calibrated"])
def test_what_needs_more_than_a_task_has_is_refused(name):
    """As a method, and as the tracer's own correction."""
    correcting = Decider(Tracer(build("llama"), tokenizer(), invariant=0.5), correction=name)
    for given in ((tracer(), name), (correcting,)):
        with pytest.raises(InputError, match=f"{name} needs more than a task has"):
            CorrectedLM(*given)
    with pytest.raises(InputError, match=f"corrects by {name}: .*method=dola"):
        CorrectedLM(correcting, "dola")
