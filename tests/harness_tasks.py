"""Task files for lm-evaluation-harness that need no hub, one per kind of request."""

import json
from pathlib import Path
from typing import Any

import yaml
from families import random_items

from lastword import Item

_METRICS = [
    {"metric": name, "aggregation": "mean", "higher_is_better": True}
    for name in ("acc", "acc_norm", "acc_bytes", "exact_match")
]


def write_tasks(folder: Path, items: list[Item] | None = None) -> Path:
    """Write the tasks `made_choice`, `made_mass` (MC2), `made_blank`, and three others.

    Args:
        folder: Folder of the files.
        items: Items of `made_choice` and `made_mass`; by default the double's words.
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
    blank = [{"first": f"w{9 + i} w5", "second": f"w{40 + i} w6", "label": i % 2} for i in range(5)]
    data, blanks = (_write_rows(folder / f"{n}.json", r) for n, r in (("rows", rows), ("b", blank)))
    choice: Any = {"doc_to_text": "{{question}}", "doc_to_target": "label", "metric_list": _METRICS}
    choice |= {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}"}
    single = {"doc_to_text": "{{question}}", "doc_to_target": " {{choices[0]}}"}
    alone = {"metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]}
    rolling: Any = {"doc_to_text": "", "doc_to_target": "{{question}}"}
    rolling |= {"metric_list": [{"metric": "word_perplexity"}]}
    text: Any = {"generation_kwargs": {"until": ["w3"], "max_gen_toks": 4}}
    text |= {"metric_list": [{"metric": "exact_match"}]}
    apart: Any = {"doc_to_text": "label", "doc_to_target": "w7 w8"}
    apart |= {"doc_to_choice": "{{[first, second]}}", "metric_list": _METRICS[:1]}
    mass = "!function mass.process_results"
    _write(folder, "made_choice", data, choice)
    _write(folder, "made_mass", data, choice | {"metric_list": _METRICS[:1]}, mass)
    _write(folder, "made_alone", data, {"output_type": "loglikelihood"} | single | alone)
    _write(folder, "made_rolling", data, {"output_type": "loglikelihood_rolling"} | rolling)
    _write(folder, "made_text", data, {"output_type": "generate_until"} | single | text)
    _write(folder, "made_blank", blanks, choice | apart)
    (folder / "mass.py").write_text(_MASS)
    return folder


# Like TruthfulQA's task: the softmax mass of the true choices.
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
