"""Predictions as evaluation tools write them: promptfoo's JSON, lm-evaluation-harness's samples."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.files.rows import Row


def promptfoo_rows(path: Path) -> list[Row] | None:
    """Return a row per test of promptfoo's `-o FILE.json`, or None if the file is another.

    A row has the test's variables and the output as `prediction`. If each test was run twice, by
    two providers or prompts, the second output is the `rival`.

    Raises:
        InputError: A test has no output, or was run more than twice.
    """
    if path.suffix.lower() != ".json":
        return None
    try:
        results = [*json.loads(path.read_bytes())["results"]["results"]]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    tests: dict[Any, list[tuple[Mapping[str, Any], Any]]] = {}
    try:
        for place, result in enumerate(results):
            run = dict(result["vars"] or {}), (result.get("response") or {}).get("output")
            tests.setdefault(result.get("testIdx", place), []).append(run)
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path}: result {place + 1} is not a test of promptfoo; expected an object with vars "
            "and response"
        ) from error
    rows = []
    for number, runs in enumerate(tests.values(), start=1):
        (values, _), outputs = runs[0], [output for _, output in runs]
        if None in outputs or len(outputs) > 2:
            fault = "no output" if None in outputs else f"{len(outputs)} runs, expected 1 or 2"
            raise InputError(f"{path}, test {number}: {fault}")
        names = ("prediction", "rival")[: len(outputs)]
        rows.append(Row(f"test {number}", {**values, **dict(zip(names, outputs, strict=True))}))
    return rows


def harness_rows(rows: Sequence[Row]) -> list[Row]:
    """Return samples of lm-evaluation-harness as predictions; other rows as they are.

    For choices, the prediction is the index of the highest log-likelihood, and the confidence is
    its distance from the second.
    """
    return [_sample(row) for row in rows]


def _sample(row: Row) -> Row:
    keys = {"doc_id", "target", "filtered_resps"}
    if not isinstance(row.value, Mapping) or not keys <= row.value.keys():
        return row
    columns = {"truth": row.value["target"], "group": row.value["doc_id"]}
    answers = row.value["filtered_resps"]
    try:
        if not isinstance(answers[0], list):
            return Row(row.place, columns | {"prediction": answers[0]})
        scores = [float(score) for score, *_ in answers]
        best, second = sorted(scores, reverse=True)[:2]
    except (TypeError, LookupError, ValueError):
        return Row(row.place, error="filtered_resps holds neither a text nor scores of choices")
    columns |= {"prediction": scores.index(best), "confidence": best - second}
    return Row(row.place, columns)
