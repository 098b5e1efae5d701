"""Evaluate with lm-evaluation-harness on a task of your own: base and corrected side by side.

    python examples/harness.py                     # the embedded model
    python examples/harness.py Qwen/Qwen3-0.6B     # pip install "lastword[lab]"

Writes a multiple-choice task with its data into a temporary folder, so that nothing is fetched, and
runs it through the harness once with the model's own sums and once corrected.
"""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

from lastword import Tracer
from lastword.integrations.lm_eval import CorrectedLM
from lastword.lab.demo import items

TASK = """task: goods_and_places
dataset_path: json
dataset_kwargs:
  data_files: {{test: "{data}"}}
test_split: test
output_type: multiple_choice
num_fewshot: 0
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{candidates}}}}"
doc_to_target: label
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def write_task(folder: Path) -> None:
    """Write a task file and its data: questions of the demo with one true answer each."""
    rows = [
        {"prompt": i.prompt, "candidates": list(i.candidates), "label": i.truthful.index(True)}
        for i in items()[:40]
        if i.truthful is not None
    ]
    data = folder / "rows.json"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "goods_and_places.yaml").write_text(TASK.format(data=data), encoding="utf-8")


def main(*names: str) -> None:
    """Run the task by two methods."""
    tracer = Tracer.from_pretrained(names[0]) if names else Tracer.demo()
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name))
        manager = TaskManager(include_path=name, include_defaults=False)
        for method in ("base-sum", "base-mean", "trace"):
            results = lm_eval.simple_evaluate(
                model=CorrectedLM(tracer, method),
                tasks=["goods_and_places"],
                task_manager=manager,
                bootstrap_iters=0,
            )
            accuracy = results["results"]["goods_and_places"]["acc,none"]
            print(f"{method:<10} acc {accuracy:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
