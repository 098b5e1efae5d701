"""Tasks of lm-evaluation-harness as benchmarks: its texts, its truths, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from families import build, random_items, tokenizer
from harness_tasks import write_tasks
from lm_eval.api.instance import Instance
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.tasks import TaskManager
from tiers import by_night

from lastword import Item, Tracer
from lastword.benchmarks import find
from lastword.errors import InputError
from lastword.records.metrics import mc1

pytestmark = pytest.mark.usefixtures("own_datasets")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def changed(folder: Path, task: str, **config: object) -> str:
    """The name of a benchmark: a task of the folder with other settings."""
    text = (folder / f"{task}.yaml").read_text()
    name = f"{task}_{'_'.join(config)}"
    settings = yaml.safe_load(text) | {"task": name} | config
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    return f"lm-eval:{folder / name}.yaml"


def items_of(name: str) -> list[Item]:
    benchmark = find(name)
    return benchmark.load().items(benchmark.template())


def requests_of(path: Path, shots: int = 0) -> list[list[Instance]]:
    """What the harness itself asks for, by document."""
    (task,) = TaskManager(include_defaults=False).load(str(path))["tasks"].values()
    task.set_fewshot_seed(DEFAULT_OTHER_SEED)
    task.set_config("num_fewshot", shots)
    task.build_all_requests()
    documents: dict[int, list[Instance]] = {}
    for request in task.instances:
        documents.setdefault(request.doc_id, []).append(request)
    return list(documents.values())


def test_documents_choices_and_truths_are_the_tasks(folder):
    loaded = find(f"lm-eval:{folder}/made_choice.yaml").load()
    made = random_items(51, 8)  # as the task files have them
    assert loaded.benchmark.name == "lm-eval:made_choice" and loaded.version == "8 documents"
    assert loaded.source.startswith("made_choice.yaml") and "0 shots, by lm_eval " in loaded.source
    for i, (example, item) in enumerate(zip(loaded.examples, made, strict=True)):
        assert example.id == str(i) and example.fields["prompt"] == item.prompt
        assert example.candidates == item.candidates
        assert np.flatnonzero(example.truthful) == [i % len(item.candidates)]
        assert example.blind_fields is None


@pytest.mark.parametrize("delimiter", [" ", "", "\n"])
@pytest.mark.parametrize("shots", [0, 2])
def test_the_texts_are_those_that_the_harness_asks_for(folder, delimiter, shots):
    name = changed(
        folder,
        "made_choice",
        num_fewshot=shots,
        fewshot_split="test",
        fewshot_delimiter="###",
        target_delimiter=delimiter,
        doc_to_text="{{question}} \n",
        description="Say which.",
    )
    documents = requests_of(Path(name.removeprefix("lm-eval:")), shots)
    for item, requests in zip(items_of(name), documents, strict=True):
        ours = [item.prompt + item.separator + c for c in item.candidates]
        assert ours == ["".join(request.args) for request in requests]
        assert item.prompt.startswith("Say which.") and item.prompt.count("###") == shots
        assert item.question is not None and item.prompt.endswith(item.question)


def test_truths_come_from_the_tasks_own_processing(folder):
    by_label, by_mass = (items_of(f"lm-eval:{folder}/made_{n}.yaml") for n in ("choice", "mass"))
    assert [i.truthful for i in by_mass] == [i.truthful for i in by_label]
    metrics = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    alone = items_of(changed(folder, "made_choice", metric_list=metrics))
    assert [i.truthful for i in alone] == [i.truthful for i in by_label]
    several = items_of(changed(folder, "made_choice", doc_to_target="{{[0, 1]}}"))
    assert {i.truthful[:2] for i in several} == {(True, True)}
    assert not any(any(i.truthful[2:]) for i in several)


def test_the_corrected_accuracy_is_the_one_of_the_integration(folder):
    import lm_eval

    from lastword.integrations.lm_eval import CorrectedLM

    tracer = Tracer(build("llama"), tokenizer(), invariant=2.0)
    items = items_of(f"lm-eval:{folder}/made_choice.yaml")
    decisions = list(tracer.correct_many(items))
    rights = [mc1(d.scores, i.truthful) for d, i in zip(decisions, items, strict=True)]
    results = lm_eval.simple_evaluate(
        model=CorrectedLM(tracer),
        tasks=["made_choice"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    assert results["results"]["made_choice"]["acc,none"] == np.mean(rights)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("made_blank", "different contexts"),
        ("made_alone", r"no choices \(loglikelihood\)"),
        ("made_rolling", r"no choices \(loglikelihood_rolling\)"),
        ("made_text", r"no choices \(generate_until\)"),
        ("made_none", "cannot load the task"),
    ],
)
def test_what_is_no_candidate_set_is_refused_by_name(folder, task, message):
    with pytest.raises(InputError, match=f"{task}.*{message}|{message}.*{task}"):
        find(f"lm-eval:{folder}/{task}.yaml").load()


def test_a_task_that_does_not_say_what_is_right_is_refused(folder):
    metrics = [{"metric": "brier_score", "higher_is_better": False}]
    with pytest.raises(InputError, match="does not say whether an answer is right"):
        find(changed(folder, "made_choice", metric_list=metrics)).load()


@pytest.mark.slow
@pytest.mark.parametrize("group", by_night(["made", "mmlu"], ["made"]))
def test_names_of_the_harness_are_known_and_groups_are_refused(folder, monkeypatch, group):
    if group == "made":  # a task's file of ours; the harness reads 14,000 of its own
        (folder / "made.yaml").write_text("group: made\ntask: [made_choice]\n")
        start, few = TaskManager.__init__, {"include_path": str(folder), "include_defaults": False}
        monkeypatch.setattr(TaskManager, "__init__", lambda self, **_: start(self, **few))
    with pytest.raises(InputError, match="no task made_nowhere"):
        find("lm-eval:made_nowhere").load()
    with pytest.raises(InputError, match=f"{group} is a group of tasks"):
        find(f"lm-eval:{group}").load()
