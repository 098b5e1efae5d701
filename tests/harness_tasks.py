"""Task files for lm-evaluation-harness that need no hub: one of each kind of request."""

import json
from pathlib import Path

import yaml
from families import random_items

from lastword import Item

_METRICS = [
    {"metric": name, "aggregation": "mean", "higher_is_better": True}
    for name in ("acc", "acc_norm", "acc_bytes", "exact_match")
]

# The harness reads 14,000 files of tasks of its own in 10 s, unless it is told of ours alone.
OURS_ALONE = """
from functools import partialmethod
from lm_eval.tasks import TaskManager
TaskManager.__init__ = partialmethod(TaskManager.__init__, include_defaults=False)
"""


def write_tasks(folder: Path, items: list[Item] | None = None) -> Path:
    """`made_choice`, `made_mass` (MC2), `made_blank`, `made_alone`, `made_rolling`, `made_text`.

    Args:
        folder: Where they go.
        items: Of `made_choice` and `made_mass`; the double's words if not given.
    """
    items = random_items(51, 8) if items is None else items
    rows = [
        {
            "question": item.prompt,
            "choices": list(item.candidates),
            "label": i % len(item.candidates),
            "labels": [int(j == i % len(item.candidates)) for j in range(len(item.candidates))],
        }
        for i, item in enumerate(items)
    ]
    data = _write_rows(folder / "rows.json", rows)
    choice = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "label",
        "doc_to_choice": "{{choices}}",
        "metric_list": _METRICS,
    }
    mass = "!function mass.process_results"
    single = {"doc_to_text": "{{question}}", "doc_to_target": " {{choices[0]}}"}
    _write(folder, "made_choice", data, choice)
    _write(folder, "made_mass", data, {**choice, "metric_list": _METRICS[:1]}, mass)
    _write(
        folder,
        "made_alone",
        data,
        {
            "output_type": "loglikelihood",
            **single,
            "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
        },
    )
    _write(
        folder,
        "made_rolling",
        data,
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{question}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    )
    _write(
        folder,
        "made_text",
        data,
        {
            "output_type": "generate_until",
            **single,
            "generation_kwargs": {"until": ["w3"], "max_gen_toks": 4},
            "metric_list": [{"metric": "exact_match"}],
        },
    )
    blank = [{"first": f"w{9 + i} w5", "second": f"w{40 + i} w6", "label": i % 2} for i in range(5)]
    blanks = _write_rows(folder / "blank.json", blank)
    _write(
        folder,
        "made_blank",
        blanks,
        {
            "output_type": "multiple_choice",
            "doc_to_text": "label",
            "doc_to_target": "w7 w8",
            "doc_to_choice": "{{[first, second]}}",
            "metric_list": _METRICS[:1],
        },
    )
    (folder / "mass.py").write_text(_MASS)
    return folder


# As TruthfulQA's task has it: the softmax mass of the true choices.
_MASS = """import numpy as np


def process_results(doc, results):
    mass = np.exp([score for score, _ in results])
    return {"acc": float(mass[np.array(doc["labels"]) == 1].sum() / mass.sum())}
"""


def _write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def _write(folder: Path, name: str, data: Path, config: dict, process: str = "") -> None:
    whole = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "num_fewshot": 0,
        **config,
    }
    text = yaml.safe_dump(whole, sort_keys=False)
    if process:
        text += f"process_results: {process}\n"
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
