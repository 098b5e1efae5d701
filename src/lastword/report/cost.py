"""The cost of TRACE beside plain scoring, from `lastword bench --out` (method, section 10).

A file holds one object a cell, with `model`, `benchmark`, `depth` (L), `items`, `same_decisions`
and `seconds`, the median seconds of each contender over all items, end to end and warm.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from lastword.errors import RecordError
from lastword.records.cells import mean
from lastword.report.table import Table, columns

# Contenders of the bench, as it names them.
PLAIN, PACKED, STAGED = "plain base", "ours, base only", "ours, staged"


@dataclass(frozen=True)
class Timing:
    """A cell timed end to end, warm.

    Attributes:
        model: The model's name.
        benchmark: The benchmark's name.
        base_seconds_per_item: Plain scoring of the candidates, a pass a candidate.
        trace_seconds_per_item: TRACE, reading what the decision needs.
        depth: L; L + 1 depths can be read.
        packed_seconds_per_item: Scoring alone on the road that TRACE takes.
    """

    model: str
    benchmark: str
    base_seconds_per_item: float
    trace_seconds_per_item: float
    depth: int
    packed_seconds_per_item: float = math.nan

    @property
    def ratio(self) -> float:
        """TRACE over plain scoring."""
        return self.trace_seconds_per_item / self.base_seconds_per_item

    @property
    def packed_ratio(self) -> float:
        """TRACE over scoring alone on the same road: what correction adds, like for like."""
        return self.trace_seconds_per_item / self.packed_seconds_per_item


def cost_table(timings: Sequence[Timing]) -> Table:
    """Seconds an item and ratios: a model's ratio is the mean of its cells' ratios."""
    heads = columns(
        "Model | L | Benchmarks | Plain base s/item .4 | Packed base s/item .4 | TRACE s/item .4"
        " | TRACE / plain base .2 | TRACE / packed base .2"
    )
    rows: list[tuple[Any, ...]] = []
    ordered = sorted(timings, key=lambda c: (c.depth, c.model))
    for model, group in groupby(ordered, attrgetter("model")):
        own = list(group)
        seconds = (
            mean([c.base_seconds_per_item for c in own]),
            mean([c.packed_seconds_per_item for c in own]),
            mean([c.trace_seconds_per_item for c in own]),
        )
        ratios = mean([c.ratio for c in own]), mean([c.packed_ratio for c in own])
        rows.append((model, own[0].depth, len(own), *seconds, *ratios))
    means = [mean(column) for column in list(zip(*rows, strict=True))[3:]]
    rows.append(("Mean over models", math.nan, len(timings), *means))
    notes = (
        "End to end, warm; models in the order of their depth. Plain: one pass a candidate.",
        "Packed: shared text computed once, as TRACE does; the last column is what correction "
        "costs on that road.",
    )
    return Table("cost", "Cost", heads, tuple(rows), notes)


def read_timings(path: Path) -> list[Timing]:
    """Read what `lastword bench --out` left in a file, or in every `*.json` of a folder.

    Raises:
        RecordError: Nothing there, another kind of file, a contender missing, a bench whose
            staged and complete decisions differ, or one of another correction than TRACE.
    """
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths:
        raise RecordError(f"no *.json in {path}; expected what `lastword bench --out` leaves")
    return [_timing(file) for file in paths]


def _timing(path: Path) -> Timing:
    try:
        line = json.loads(path.read_text(encoding="utf-8"))
        each = {n: float(line["seconds"][n]) / int(line["items"]) for n in (PLAIN, PACKED, STAGED)}
        same, depth = bool(line["same_decisions"]), int(line["depth"])
        model, benchmark = str(line["model"]), str(line["benchmark"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise RecordError(
            f"cannot read {path} ({type(error).__name__}: {error}); expected what "
            f"`lastword bench --out` leaves, with the contender {PLAIN}"
        ) from error
    if (name := line.get("correction")) is not None:
        raise RecordError(f"{path} times {name}, and the table is of what TRACE costs")
    if not all(seconds > 0 for seconds in each.values()):
        raise RecordError(f"{path} has a time that is not above 0; measure again")
    if not same:
        raise RecordError(f"{path}: staged and complete decisions differ, so its times say nothing")
    return Timing(model, benchmark, each[PLAIN], each[STAGED], depth, each[PACKED])
