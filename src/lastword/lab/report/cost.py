"""The cost of TRACE relative to plain scoring, from `lastword bench --out` (method, section 10).

A file has one object per cell, with `model`, `benchmark`, `depth` (L), `items`, `same_decisions`
and `seconds`: the median seconds of each contender over all items, end to end, after a warm-up.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lastword.errors import RecordError
from lastword.lab.report import draw
from lastword.lab.report.draw import Figure, styled
from lastword.lab.report.figures import model_name
from lastword.lab.report.table import ReportTable, Value
from lastword.records.cells import mean_defined
from lastword.records.marks import Role

# Names of the bench's contenders.
PLAIN, PACKED, STAGED = "plain base", "ours, base only", "ours, staged"
PLAIN_TRACE = "plain trace"


class Cost(NamedTuple):
    """The seconds per item of a cell, end to end after a warm-up, and their ratios.

    Attributes:
        depth: L.
        plain: Seconds of plain scoring with one pass per candidate.
        packed: Seconds of scoring without correction on the code path of TRACE.
        trace: Seconds of TRACE, with only the readings that the decision needs.
        packed_ratio: TRACE over the base, both packed.
        plain_ratio: TRACE with one pass per candidate and every depth read, over plain scoring;
            nan if not timed.
        unlike_ratio: Packed TRACE over plain scoring.
    """

    model: str
    benchmark: str
    depth: int
    plain: float
    packed: float
    trace: float
    packed_ratio: float
    plain_ratio: float
    unlike_ratio: float


def cost_table(costs: Sequence[Cost]) -> ReportTable:
    """Return the table of seconds per item and ratios by cell, and their means."""
    heads = (
        "Model | Benchmark | L | Plain base s/item .4 | Packed base s/item .4 | TRACE s/item .4"
        " | Packed TRACE / packed base .2 | Plain TRACE / plain base .2"
        " | Packed TRACE / plain base .2"
    )
    means = map(mean_defined, np.array([cost[3:] for cost in costs]).T)
    rows: list[tuple[Value, ...]] = [*costs, ("Mean", "", math.nan, *means)]
    notes = (
        "End to end, warm; in the order of depth. Plain: one pass a candidate.",
        "Packed: shared text computed once. The cost of correction is the ratio of like to "
        "like: packed to packed, and plain to plain, which is the paper's 2.27x. The last column "
        "compares unlike things: what TRACE takes here with what plain scoring takes.",
    )
    return ReportTable.of("cost", "Cost", heads, rows, notes)


@styled
def cost_figure(costs: Sequence[Cost]) -> Figure:
    """Return the figure of seconds per item by cell: packed base and packed TRACE."""
    canvas, (axes,) = draw.canvas(0, wide=[draw.bars_inches(len(costs), groups=2)])
    draw.label(axes, "", "seconds an item")
    groups: dict[str, tuple[Role, list[float]]] = {
        "packed base": ("base", [cost.packed for cost in costs]),
        "packed TRACE": ("corrected", [cost.trace for cost in costs]),
    }
    names = [f"{model_name(c.model)} (L = {c.depth})\n{c.benchmark}" for c in costs]
    draw.bars(axes, names, groups, horizontal=True)
    draw.at_ends(axes, 1, [f"{cost.packed_ratio:.2f}×" for cost in costs])
    caption = (
        "Seconds an item, end to end and warm; cells by depth of the model. Beside each pair:"
        " TRACE over base, both packed."
    )
    return Figure("cost", "Cost an item", caption, canvas)


def read_costs(path: Path) -> list[Cost]:
    """Return the costs in a file of `lastword bench --out`, or in every `*.json` of a folder.

    They are in the order of the models' depth.

    Raises:
        RecordError: Nothing was found, a file is of another kind or lacks a contender, a bench's
            staged and complete decisions differ, or it timed another correction than TRACE.
    """
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths:
        raise RecordError(f"no *.json in {path}; expected files of `lastword bench --out`")
    return sorted(map(_cost, paths), key=lambda cost: (cost.depth, cost.model))


def _cost(path: Path) -> Cost:
    try:
        line = json.loads(path.read_text(encoding="utf-8"))
        plain, packed, trace, slow = (
            float(line["seconds"].get(name, math.nan)) / int(line["items"])
            for name in (PLAIN, PACKED, STAGED, PLAIN_TRACE)
        )
        same, cell = bool(line["same_decisions"]), (str(line["model"]), str(line["benchmark"]))
        depth = int(line["depth"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise RecordError(
            f"cannot read {path} ({type(error).__name__}: {error}); expected a file of "
            "`lastword bench --out`"
        ) from error
    if (name := line.get("correction")) is not None:
        raise RecordError(f"{path} has the times of {name}, and this table is for TRACE")
    if not all(seconds > 0 for seconds in (plain, packed, trace)):
        raise RecordError(
            f"{path} lacks a time above 0 of {PLAIN}, {PACKED} or {STAGED}; measure again"
        )
    if not same:
        raise RecordError(f"{path}: staged and complete decisions differ, so its times say nothing")
    ratios = trace / packed, slow / plain, trace / plain
    return Cost(*cell, depth, plain, packed, trace, *ratios)
