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
from lastword.lab.report.table import Table, Value
from lastword.records.cells import mean_defined
from lastword.records.marks import Role

# Names of the bench's contenders.
PLAIN, PACKED, STAGED = "plain base", "ours, base only", "ours, staged"
PLAIN_TRACE = "plain trace"


class Timing(NamedTuple):
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


class ModelCost(NamedTuple):
    """The mean seconds per item over a model's cells, and their mean ratios."""

    model: str
    depth: int
    cells: int
    plain: float
    packed: float
    trace: float
    packed_ratio: float
    plain_ratio: float
    unlike_ratio: float


def _by_model(timings: Sequence[Timing]) -> list[ModelCost]:
    """Return the costs of each model, in the order of their depth."""
    groups: dict[tuple[int, str], list[Timing]] = {}
    for timing in timings:
        groups.setdefault((timing.depth, timing.model), []).append(timing)
    costs = []
    for (depth, model), group in sorted(groups.items()):
        plain, packed, trace, plain_trace = np.array([timing[3:] for timing in group]).T
        values = (plain, packed, trace, trace / packed, plain_trace / plain, trace / plain)
        costs.append(ModelCost(model, depth, len(group), *map(mean_defined, values)))
    return costs


def cost_table(timings: Sequence[Timing]) -> Table:
    """Return the table of seconds per item and ratios, each the mean over a model's cells."""
    heads = (
        "Model | L | Benchmarks | Plain base s/item .4 | Packed base s/item .4 | TRACE s/item .4"
        " | Packed TRACE / packed base .2 | Plain TRACE / plain base .2"
        " | Packed TRACE / plain base .2"
    )
    models = _by_model(timings)
    means = map(mean_defined, np.array([model[3:] for model in models]).T)
    rows: list[tuple[Value, ...]] = [*models]
    rows.append(("Mean over models", math.nan, len(timings), *means))
    notes = (
        "End to end, warm; models in the order of their depth. Plain: one pass a candidate.",
        "Packed: shared text computed once. The cost of correction is the ratio of like to "
        "like: packed to packed, and plain to plain, which is the paper's 2.27x. The last column "
        "compares unlike things: what TRACE takes here with what plain scoring takes.",
    )
    return Table.of("cost", "Cost", heads, rows, notes)


@styled
def cost_figure(timings: Sequence[Timing]) -> Figure:
    """Return the figure of seconds per item by model: packed base and packed TRACE."""
    models = _by_model(timings)
    plain = ["" if math.isnan(m.plain_ratio) else f" (plain {m.plain_ratio:.2f}×)" for m in models]
    canvas, (axes,) = draw.canvas(0, wide=[draw.bars_inches(len(models), groups=2)])
    draw.label(axes, "", "seconds an item")
    groups: dict[str, tuple[Role, list[float]]] = {
        "packed base": ("base", [m.packed for m in models]),
        "packed TRACE": ("corrected", [m.trace for m in models]),
    }
    names = [f"{model_name(m.model)} (L = {m.depth})" for m in models]
    draw.bars(axes, names, groups, horizontal=True)
    ratios = [f"{m.packed_ratio:.2f}×{other}" for m, other in zip(models, plain, strict=True)]
    draw.at_ends(axes, 1, ratios)
    caption = (
        "Seconds an item, end to end and warm; models by depth. Beside each pair: the mean over"
        " benchmarks of TRACE over base, both packed, and of both plain, as the paper compares."
    )
    return Figure("cost", "Cost an item", caption, canvas)


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
