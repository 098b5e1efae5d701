"""A multiple-choice task of the installed lm-evaluation-harness, by name or by its YAML file.

Documents, prompt with as many shots as the task has (drawn as `lm_eval` draws them), choices and
truths are the task's own: a choice is true where the task calls an answer right that is sure of it.
There is no blind prompt: tasks do not tell their question from the rest of their prompt.
"""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lastword.benchmarks.benchmark import Benchmark, Example
from lastword.benchmarks.source import Row, Rows
from lastword.benchmarks.template import Template
from lastword.errors import InputError

# Of one answer, in [0, 1], as tasks name them; the first that a task has decides.
_ACCURACIES = ("acc", "acc_norm", "acc_bytes", "exact_match")
_IMPOSSIBLE = -1e9  # log-likelihood of every choice but the one that an answer is sure of


def lm_eval(task: str) -> Benchmark:
    """The benchmark `lm-eval:TASK` of a task that the harness knows, or of a task file."""
    name = Path(task).stem if _is_file(task) else task
    return Benchmark(
        name=f"lm-eval:{name}",
        read=partial(_read, task),
        parse=_parse,
        verify=_verify,
        templates={"prompt": partial(Template, "lm-eval/prompt", "1", "{{ prompt }}")},
        licence="the task's own",
        citation="the task's own",
    )


def _read(name: str, data: Path | None) -> Rows:
    # --data names the folder of the published sets; a task knows where its documents are.
    task = _load(name)
    _refuse(name, task)
    rows = [_row(name, task, place, doc) for place, doc in enumerate(task.eval_docs)]
    shots = task.config.num_fewshot or 0
    source = f"{Path(name).name} {task.VERSION}, {shots} shots, by lm_eval {version('lm_eval')}"
    return Rows(rows, source)


def _is_file(task: str) -> bool:
    return task.endswith((".yaml", ".yml"))


def _load(name: str) -> Any:
    try:
        from lm_eval.defaults import DEFAULT_OTHER_SEED
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise InputError(
            f"lm-eval:{name} is a task of lm-evaluation-harness: pip install 'lastword[eval]'"
        ) from error
    manager = TaskManager(include_defaults=not _is_file(name))
    if name in (*manager.all_groups, *manager.all_tags):
        raise InputError(f"lm-eval:{name} is a group of tasks; name one (`lm_eval ls subtasks`)")
    if not _is_file(name) and name not in manager.all_tasks:
        raise InputError(f"lm_eval has no task {name}; `lm_eval ls subtasks` lists them")
    try:
        (task,) = manager.load(name)["tasks"].values()
    # A task's file and its data set are programs: loading them raises whatever they raise.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"lm_eval cannot load the task {name}: {reason}") from error
    task.set_fewshot_seed(DEFAULT_OTHER_SEED)
    return task


def _refuse(name: str, task: Any) -> None:
    """Raise where a task's documents are no candidate sets under one text."""
    if task.OUTPUT_TYPE != "multiple_choice":
        raise InputError(
            f"lm-eval:{name} has no choices ({task.OUTPUT_TYPE}): use `lastword lm-eval`"
        )
    if task.multiple_input:
        raise InputError(
            f"lm-eval:{name} sets its choices into different contexts: they are no candidate set; "
            "use `lastword lm-eval`"
        )
    if task.config.doc_to_image or task.config.doc_to_audio:
        raise InputError(f"lm-eval:{name} has more than text; lastword reads text alone")


def _row(name: str, task: Any, place: int, doc: Any) -> Row:
    """Read one document; the context's last whitespace and the delimiter part it from a choice."""
    context = task.fewshot_context(
        doc, task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(doc)
    )
    choices = tuple(task.doc_to_choice(doc))
    requests = task.construct_requests(doc=doc, ctx=context)
    prompt = context.rstrip()
    return {
        "id": str(place),
        "prompt": prompt,
        "question": task.doc_to_text(doc).strip(),
        "separator": context[len(prompt) :] + task.config.target_delimiter,
        "choices": choices,
        "truthful": tuple(
            _is_true(name, task, doc, choice, len(requests)) for choice in range(len(choices))
        ),
    }


def _is_true(name: str, task: Any, doc: Any, choice: int, requests: int) -> bool:
    sure = [(0.0, True) if i == choice else (_IMPOSSIBLE, False) for i in range(requests)]
    values = task.process_results(doc, sure)
    accuracy = next((values[metric] for metric in _ACCURACIES if metric in values), None)
    if accuracy is None:
        raise InputError(
            f"lm-eval:{name} does not say whether an answer is right: none of its metrics is "
            f"{', '.join(_ACCURACIES)}"
        )
    return bool(accuracy > 0.5)


def _parse(place: int, row: Row) -> tuple[Example, ...]:
    return (
        Example(
            id=row["id"],
            fields={"prompt": row["prompt"], "question": row["question"]},
            blind_fields=None,
            candidates=row["choices"],
            truthful=row["truthful"],
            separator=row["separator"],
        ),
    )


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    if not questions:
        raise InputError("the task has no documents")
    return f"{len(questions)} documents"
