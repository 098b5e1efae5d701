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

    `items` are those of `made_choice` and `made_mass`; by default the double's words.
    """
    rows = []
    for i, item in enumerate(random_items(51, 8) if items is None else items):
        right = i % len(item.candidates)
        labels = [int(j == right) for j in range(len(item.candidates))]
        texts = {"question": item.prompt, "choices": list(item.candidates)}
        rows.append(texts | {"label": right, "labels": labels})
    blank = [{"first": f"w{9 + i} w5", "second": f"w{40 + i} w6", "label": i % 2} for i in range(5)]
    question = {"doc_to_text": "{{question}}"}
    choice: Any = {"doc_to_target": "label", "metric_list": _METRICS} | question
    choice |= {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}"}
    single = question | {"doc_to_target": " {{choices[0]}}"}
    apart = {"doc_to_text": "label", "doc_to_target": "w7 w8", "metric_list": _METRICS[:1]}
    apart["doc_to_choice"] = "{{[first, second]}}"
    mass = {"metric_list": _METRICS[:1], "process_results": "!function mass.process_results"}
    rolling: Any = {"doc_to_text": "", "doc_to_target": "{{question}}"}
    text: Any = {"generation_kwargs": {"until": ["w3"], "max_gen_toks": 4}} | single
    _write(folder, "choice", rows, choice)
    _write(folder, "mass", rows, choice | mass)
    _write(folder, "blank", blank, choice | apart)
    _write(folder, "alone", rows, _scored("loglikelihood", "perplexity", "acc") | single)
    _write(folder, "rolling", rows, _scored("loglikelihood_rolling", "word_perplexity") | rolling)
    _write(folder, "text", rows, _scored("generate_until", "exact_match") | text)
    (folder / "mass.py").write_text(_MASS)
    return folder


def _scored(kind: str, *metrics: str) -> dict[str, Any]:
    return {"output_type": kind, "metric_list": [{"metric": name} for name in metrics]}


# Like TruthfulQA's task: the softmax mass of the true choices.
_MASS = """import numpy as np


def process_results(doc, results):
    mass = np.exp([score for score, _ in results])
    return {"acc": float(mass[np.array(doc["labels"]) == 1].sum() / mass.sum())}
"""


def _write(folder: Path, name: str, rows: list[dict], config: dict) -> None:
    data = folder / f"{name}.json"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    whole = {"task": f"made_{name}", "test_split": "test", "num_fewshot": 0} | files | config
    text = yaml.safe_dump(whole, sort_keys=False).replace("'!function", "!function")
    text = text.replace("process_results'", "process_results")
    (folder / f"made_{name}.yaml").write_text(text, encoding="utf-8")
