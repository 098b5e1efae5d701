"""The cost of TRACE relative to plain scoring, from `lastword bench --out` (method, section 10).

A file has one object per cell, with `model`, `benchmark`, `depth` (L), `items`, `same_decisions`
and `seconds`: the median seconds of each contender over all items, end to end, after a warm-up.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lastword.errors import RecordError
from lastword.lab.report.figures import model_name, side_by_side
from lastword.lab.report.table import Table
from lastword.records.cells import mean_defined
from lastword.records.marks import Bars, Figure, Panel

# Names of the bench's contenders.
PLAIN, PACKED, STAGED = "plain base", "ours, base only", "ours, staged"
PLAIN_TRACE = "plain trace"


@dataclass(frozen=True)
class Timing:
    """The timing of a cell, end to end after a warm-up, in seconds per item.

    Attributes:
        plain: Plain scoring with one pass per candidate.
        packed: Scoring without correction on the code path of TRACE.
        trace: TRACE, with only the readings that the decision needs.
        plain_trace: TRACE with one pass per candidate and every depth read; nan if not timed.
    """

    model: str
    benchmark: str
    depth: int
    plain: float
    packed: float
    trace: float
    plain_trace: float = math.nan


def cost_table(timings: Sequence[Timing]) -> Table:
    """Return the table of seconds per item and ratios, each the mean over a model's cells."""
    heads = (
        "Model | L | Benchmarks | Plain base s/item .4 | Packed base s/item .4 | TRACE s/item .4"
        " | Packed TRACE / packed base .2 | Plain TRACE / plain base .2"
        " | Packed TRACE / plain base .2"
    )
    rows: list[tuple[Any, ...]] = []
    for (depth, model), group in groupby(sorted(timings, key=_order), _order):
        times = [(t.plain, t.packed, t.trace, t.plain_trace) for t in group]
        plain, packed, trace, plain_trace = np.array(times).T
        ratios = (trace / packed, plain_trace / plain, trace / plain)
        values = (plain, packed, trace, *ratios)
        rows.append((model, depth, len(plain), *map(mean_defined, values)))
    # The first three columns are the model, its depth and the number of benchmarks.
    means = [mean_defined(column) for column in list(zip(*rows, strict=True))[3:]]
    rows.append(("Mean over models", math.nan, len(timings), *means))
    notes = (
        "End to end, warm; models in the order of their depth. Plain: one pass a candidate.",
        "Packed: shared text computed once. The cost of correction is the ratio of like to "
        "like: packed to packed, and plain to plain, which is the paper's 2.27x. The last column "
        "compares unlike things: what TRACE takes here with what plain scoring takes.",
    )
    return Table.of("cost", "Cost", heads, rows, notes)


def _order(timing: Timing) -> tuple[int, str]:
    return timing.depth, timing.model


def cost_figure(table: Table) -> Figure:
    """Return the figure of seconds per item by model: packed base and packed TRACE."""
    models, depths, _, _, packed, trace, ratios, plain, _ = zip(*table.rows[:-1], strict=True)
    pairs = zip(models, depths, strict=True)
    names = tuple(f"{model_name(name)} (L = {depth})" for name, depth in pairs)
    texts = tuple(
        f"{ratio:.2f}×" + ("" if math.isnan(other) else f" (plain {other:.2f}×)")
        for ratio, other in zip(ratios, plain, strict=True)
    )
    bars = side_by_side(
        Bars(names, packed, "base", "packed base", horizontal=True),
        Bars(names, trace, "corrected", "packed TRACE", texts=texts, horizontal=True),
    )
    caption = (
        "Seconds an item, end to end and warm; models by depth. Beside each pair: the mean over"
        " benchmarks of TRACE over base, both packed, and of both plain, as the paper compares."
    )
    panel = Panel("", bars, "seconds an item")
    return Figure("cost", "Cost an item", caption, (panel,), columns=1)


def read_timings(path: Path) -> list[Timing]:
    """Return the timings of `lastword bench --out` in a file, or in every `*.json` of a folder.

    Raises:
        RecordError: Nothing was found, a file is of another kind or lacks a contender, a bench's
            staged and complete decisions differ, or it timed another correction than TRACE.
    """
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths:
        raise RecordError(f"no *.json in {path}; expected files of `lastword bench --out`")
    return [_timing(file) for file in paths]


def _timing(path: Path) -> Timing:
    try:
        line = json.loads(path.read_text(encoding="utf-8"))
        each = {n: float(line["seconds"][n]) / int(line["items"]) for n in (PLAIN, PACKED, STAGED)}
        same, depth = bool(line["same_decisions"]), int(line["depth"])
        model, benchmark = str(line["model"]), str(line["benchmark"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise RecordError(
            f"cannot read {path} ({type(error).__name__}: {error}); expected a file of "
            f"`lastword bench --out` with the contender {PLAIN}"
        ) from error
    if (name := line.get("correction")) is not None:
        raise RecordError(f"{path} has the times of {name}, and this table is for TRACE")
    if not all(seconds > 0 for seconds in each.values()):
        raise RecordError(f"{path} has a time that is not above 0; measure again")
    if not same:
        raise RecordError(f"{path}: staged and complete decisions differ, so its times say nothing")
    slow = float(line["seconds"].get(PLAIN_TRACE, math.nan)) / int(line["items"])
    return Timing(model, benchmark, depth, each[PLAIN], each[PACKED], each[STAGED], slow)
