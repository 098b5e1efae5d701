"""Synthetic records of a cell: seeded random trajectories, decided by the rule itself.

Truth rises at middle depths and is partly lost at the last one, scores are compressed at the end,
and one candidate in four is confident. So every operator and both sides of every gate occur. One
question and one candidate of each cell contain text that must be escaped.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lastword.records import cells as stored
from lastword.records.cells import Cell
from lastword.records.columns import COLUMNS, row_of, to_frame, to_table
from lastword.records.decision import Decision
from lastword.records.info import SCHEMA, cell_folder
from lastword.records.store import Run
from lastword.rule import geometry, router
from lastword.rule.operators import Ruling
from lastword.rule.theta import Theta
from lastword.text.prompt_template import Blind

WORDS = (
    "the moon is made of rock and old light that no clock ever sold twice to a quiet river".split()
)


FAILURE = "700 prompt tokens do not fit the context of 512"


@dataclass(frozen=True)
class Shape:
    """The form of a benchmark's item: its number of candidates, and its metric."""

    name: str
    candidates: int
    truths: int
    kind: str | None = None


def synthetic_cell(
    model: str = "org/model-a",
    benchmark: str = "truthfulqa",
    items: int = 60,
    seed: int = 0,
    depth: int = 12,
    *,
    invariant: float = 2.0,
    failed: int = 0,
    blind: Blind = "base",
    theta: Theta | None = None,
) -> pd.DataFrame:
    """Return records of `items` items; of `truthfulqa` half are `k/mc1` and half `k/mc2`.

    Args:
        invariant: I(M): above 1 the scalar arm mixes, otherwise it falls back to depth 0.
        failed: Number of first items that failed (with only `error` set).
        blind: As in `lastword eval --blind`; with "all" it lacks the rise of the truth.
    """
    rng = np.random.default_rng([seed, *model.encode(), *benchmark.encode()])
    rows = []
    for place, shape in enumerate(_shapes(benchmark, items, rng)):
        text = _text(shape, place, rng) | {"benchmark": benchmark, "kind": shape.kind}
        text |= {"place": place}
        if place < failed:
            rows.append(text | {"error": FAILURE, "seconds": 0.0})
            continue
        read = _read(text["truthful"], depth, blind, rng)
        trajectory = geometry.Trajectory(read.pop("trajectory"), read.pop("t_scores"))
        ruling = router.next_step(trajectory, invariant, theta or Theta())
        assert isinstance(ruling, Ruling)
        decision = Decision.of(ruling, trajectory, invariant=invariant, **text, **read)
        rows.append(row_of(decision) | {"error": None})
    # The same form as `load_records` returns.
    return to_frame(to_table(rows), {"model": model, "template": {"name": "synthetic"}})


def synthetic_grid(
    models: int = 3, items: int = 60, seed: int = 0, depth: int = 12, **options: Any
) -> pd.DataFrame:
    """Return records on three benchmarks of `models` models that alternately mix and fall back."""
    cells = [
        synthetic_cell(
            f"org/model-{chr(ord('a') + m)}",
            benchmark,
            items,
            seed,
            depth + m % 3,
            invariant=(2.0 + m) if m % 2 == 0 else 1 / (1 + m),
            **options,
        )
        for m in range(models)
        for benchmark in ("truthfulqa", "halueval-qa", "halueval-sum")
    ]
    return pd.concat(cells, ignore_index=True)


def cell_of(records: pd.DataFrame, model: str = "m", benchmark: str = "b") -> Cell:
    """Return the cell of records in memory; tests may drop or change columns."""
    info = {"model": model, "benchmark": benchmark, "template": {"name": "synthetic"}}
    places = np.arange(len(records))
    return stored.cell_of(
        [_as_written(row) for row in records.assign(place=places).to_dict("records")], info
    )


def every_record(cell: Cell) -> pd.DataFrame:
    """Return all columns of a cell's records."""
    return cell.whole(np.arange(len(cell.records)))


def answered(cell: Cell) -> pd.DataFrame:
    """Return all columns of a cell's answered items."""
    return cell.whole(cell.answer_places)


def whole(cell: Cell) -> pd.DataFrame:
    """Return all columns of a cell's items that count for MC1."""
    return cell.whole(cell.answer_places[cell.mc1_places])


def cells(records: pd.DataFrame) -> list[Cell]:
    """Return one cell per model and benchmark, in the order of first records."""
    groups = records.groupby(["model", "benchmark"], sort=False)
    return [
        cell_of(part.reset_index(drop=True), str(model), str(benchmark))
        for (model, benchmark), part in groups
    ]


def write_cells(records: pd.DataFrame, out: Path, theta: Theta | None = None) -> None:
    """Write the records as `lastword eval` does, one folder per cell."""
    for (model, benchmark), cell in records.groupby(["model", "benchmark"], sort=False):
        rows = [_as_written(row) for row in cell.to_dict("records")]
        info = {
            "schema": SCHEMA,
            "model": model,
            "benchmark": benchmark,
            "template": {"name": "synthetic", "version": "1", "sha256": "0" * 64},
            "invariant": float(cell["invariant"].dropna().iloc[0]),
            "depth": next((len(S[0]) - 1 for S in cell["trajectory"].dropna()), 12),
            "items": len(cell),
            "dataset": {
                "fingerprint": f"of {benchmark}",
                "questions": len(cell),
                "limit": None,
            },
            "packages": {"lastword": "test", "transformers": "test"},
            "dtype": "float32",
            "theta": json.loads(json.dumps((theta or Theta()).to_dict())),
        }
        with Run(cell_folder(out, str(model), str(benchmark)), info) as run:
            for first in range(0, len(rows), 8):
                run.keep(to_table(rows[first : first + 8]))


def _shapes(benchmark: str, items: int, rng: np.random.Generator) -> list[Shape]:
    if benchmark != "truthfulqa":
        return [Shape(str(k), 2, 1) for k in range(items)]
    shapes = []
    for k in range(items // 2):
        n, wide = int(rng.integers(2, 9)), int(rng.integers(3, 13))
        shapes.append(Shape(f"{k}/mc1", n, 1, "mc1"))
        shapes.append(Shape(f"{k}/mc2", wide, max(1, wide // 2), "mc2"))
    return shapes


def _text(shape: Shape, place: int, rng: np.random.Generator) -> dict[str, Any]:
    question = " ".join(rng.choice(WORDS, 7)) + f" {place}?"
    candidates = [
        " ".join(rng.choice(WORDS, int(rng.integers(1, 9)))) + f" {i}"
        for i in range(shape.candidates)
    ]
    if place == 1:
        question = f'</script><b>"{question}"</b> & 100% $x_1$ | ümlaut'
        candidates[0] = f"=SUM(A1) {candidates[0]}"
    order = rng.permutation(shape.candidates)
    return {
        "id": shape.name,
        "prompt": f"Q: {question}\nA:",
        "question": question,
        "prompt_tokens": len(question.split()) + 4,
        "candidates": tuple(candidates),
        "candidate_tokens": tuple(len(c.split()) for c in candidates),
        "truthful": tuple(bool(order[i] < shape.truths) for i in range(shape.candidates)),
    }


def _read(
    truthful: Sequence[bool], depth: int, blind: Blind, rng: np.random.Generator
) -> dict[str, Any]:
    truth = np.array(truthful, dtype=float)[:, None]
    at = np.linspace(0, 1, depth + 1)
    level = rng.choice([-0.6, -3.0, -3.0, -3.0])
    wording = rng.normal(0, 1.2, (len(truth), 1))
    bump = np.exp(-(((at - rng.uniform(0.4, 0.9)) / 0.15) ** 2))
    walk = np.cumsum(rng.normal(0, 0.35, (len(truth), depth + 1)), axis=1)
    spread = 1 - 0.75 * at**6
    slope = 6 * (at - 1) + level
    S = slope + spread * ((1 - at) * wording + walk + rng.normal(2, 2) * bump * truth)
    S = np.minimum(S, -0.01)
    read = {
        "trajectory": S,
        "t_scores": S[:, -1] + rng.normal(0.2, 0.5, len(S)) + 0.5 * truth[:, 0],
        "blind_scores": S[:, 0] + rng.normal(0, 0.5, len(S)) if blind == "base" else None,
        "seconds": float(rng.uniform(0.01, 0.1)),
    }
    if blind != "all":
        return read
    # Without the rise of the truth; at depth 0 both readings are equal.
    B = slope + spread * (1 - at) * wording + np.cumsum(rng.normal(0, 0.35, S.shape), axis=1)
    B = np.minimum(B, -0.01)
    B[:, 0] = S[:, 0]
    t = B[:, -1] + rng.normal(0.2, 0.5, len(B))
    return read | {"blind_scores": B[:, -1], "blind_trajectory": B, "blind_t_scores": t}


def _as_written(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(row.get(name), name) for name in COLUMNS.names}


def _value(value: Any, name: str) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        pairs = [{"key": key, "value": _value(u, "")} for key, u in value.items()]
        return pairs if name in ("methods", "t_readings") else json.dumps(value)
    return None if not isinstance(value, list) and pd.isna(value) else value
