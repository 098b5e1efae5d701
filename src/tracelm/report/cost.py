"""What TRACE costs beside plain scoring: from what `tracelm bench --out` leaves (SPEC 10).

A file is a JSON list of objects, or an object whose `cells` is that list; each object is a cell:

    {"model": "org/name", "benchmark": "truthfulqa", "depth": 28,
     "base_seconds_per_item": 0.21, "trace_seconds_per_item": 0.34}

Seconds are end to end and warm; `depth` is L, so that L + 1 depths can be read. Other fields are
left alone.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tracelm.errors import RecordError
from tracelm.evaluation.cells import mean
from tracelm.report.table import Column, Table, Value


@dataclass(frozen=True)
class Cost:
    """A cell timed end to end, warm.

    Attributes:
        model: The model's name.
        benchmark: The benchmark's name.
        base_seconds_per_item: Scoring the candidates alone.
        trace_seconds_per_item: TRACE, reading what the decision needs.
        depth: L; L + 1 depths can be read.
    """

    model: str
    benchmark: str
    base_seconds_per_item: float
    trace_seconds_per_item: float
    depth: int

    @property
    def ratio(self) -> float:
        """TRACE over base."""
        return self.trace_seconds_per_item / self.base_seconds_per_item


def cost(costs: Sequence[Cost]) -> Table:
    """Seconds an item and TRACE over base: a model's ratio is the mean of its cells' ratios."""
    columns = (
        Column("Model"),
        Column("L"),
        Column("Benchmarks"),
        Column("Base s/item", 4),
        Column("TRACE s/item", 4),
        Column("Added s/item", 4, signed=True),
        Column("TRACE / base", 2),
    )
    rows: list[tuple[Value, ...]] = []
    for model, group in groupby(sorted(costs, key=lambda c: (c.depth, c.model)), _named):
        own = list(group)
        base = mean([c.base_seconds_per_item for c in own])
        trace = mean([c.trace_seconds_per_item for c in own])
        ratio = mean([c.ratio for c in own])
        rows.append((model, own[0].depth, len(own), base, trace, trace - base, ratio))
    means = [_column_mean(rows, place) for place in range(3, len(columns))]
    rows.append(("Mean over models", math.nan, len(costs), *means))
    notes = ("End to end, warm. Models in the order of their depth.",)
    return Table("cost", "Cost", columns, tuple(rows), notes)


def read_costs(path: Path) -> list[Cost]:
    """What `tracelm bench --out` left in a file, or in every `*.json` of a folder.

    Raises:
        RecordError: Nothing there, not JSON, a field missing, or a time that is not above 0.
    """
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths:
        raise RecordError(f"no *.json in {path}; expected what `tracelm bench --out` leaves")
    return [line for file in paths for line in _costs(file)]


def _costs(path: Path) -> list[Cost]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        lines = content["cells"] if isinstance(content, dict) else content
        costs = [
            Cost(
                str(line["model"]),
                str(line["benchmark"]),
                float(line["base_seconds_per_item"]),
                float(line["trace_seconds_per_item"]),
                int(line["depth"]),
            )
            for line in lines
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"cannot read {path} ({type(error).__name__}: {error}); expected what "
            "`tracelm bench --out` leaves"
        ) from error
    if not all(c.base_seconds_per_item > 0 and c.trace_seconds_per_item > 0 for c in costs):
        raise RecordError(f"{path} has a time that is not above 0; measure again")
    return costs


def _named(cost: Cost) -> str:
    return cost.model


def _column_mean(rows: Sequence[tuple[Value, ...]], place: int) -> float:
    return mean([float(v) for row in rows if isinstance(v := row[place], int | float)])
