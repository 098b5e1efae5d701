"""Files in the published form of the benchmarks, with generated text."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def truthfulqa_rows(pairs: int = 43, count: int = 817) -> Rows:
    rows = []
    for i in range(count):
        wrong = {f" wrong {i}.{j} ": 0 for j in range(1 if i < pairs else 2 + i % 4)}
        first = {f"right {i}\n": 1} | wrong
        second = first | {f"also right {i}": 1}
        rows.append({"question": f" Question {i}? ", "mc1_targets": first, "mc2_targets": second})
    return rows


def as_on_the_hub(rows: Rows) -> Rows:
    def columns(targets: dict[str, int]) -> dict[str, Any]:
        return {"choices": list(targets), "labels": list(targets.values())}

    return [{k: columns(v) if isinstance(v, dict) else v for k, v in r.items()} for r in rows]


def qa_rows(count: int = 500) -> Rows:
    return [
        {"knowledge": f"\nFact {i}. ", "question": f"Question {i}?\n"}
        | {"right_answer": f" right {i}", "hallucinated_answer": f"wrong {i}\n"}
        for i in range(count)
    ]


def sum_rows(count: int = 500) -> Rows:
    return [
        {"document": f"Text {i}.", "right_summary": f"so {i}\n", "hallucinated_summary": f"no {i}"}
        for i in range(count)
    ]


def factor_rows(count: int = 1036) -> Rows:
    return [
        {"": i, "full_prefix": f"Before.\nText {i}.\n", "completion": f"So it is {i}."}
        | {f"contradiction_{j}": f" So it is not {i}, {j}." for j in range(3)}
        | {"turncated_prefixes": f"Text {i}." + ("\n" if i % 2 else " ")}
        for i in range(count)
    ]


def write(path: Path, rows: Rows, lines: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        return path
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8")
    return path


PUBLISHED: dict[str, tuple[str, Callable[[], Rows]]] = {
    "truthfulqa": ("truthfulqa/mc_task.v0.json", truthfulqa_rows),
    "halueval-qa": ("halueval/qa_data.json", qa_rows),
    "halueval-qa-closed": ("halueval/qa_data.json", qa_rows),
    "halueval-sum": ("halueval/summarization_data.json", sum_rows),
    "fib": ("fib/summarization_data.json", sum_rows),
    "factor": ("factor/news_factor.csv", factor_rows),
}


def write_all(folder: Path) -> None:
    """Write every set into a folder with the layout that --data expects."""
    for name, rows in PUBLISHED.values():
        write(folder / name, rows(), lines="halueval" in name)
