"""Accuracy by depth, of the model's head and of a probe (method, section 19).

It needs cells with stored states (`lastword eval --states`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lastword.errors import RecordError
from lastword.lab.evaluation.probed import FOLDS, LAST, MOST, PROBE, WORDS, probed
from lastword.lab.evaluation.statistics import Interval, bootstrap_mean
from lastword.lab.report.dependence import by_depth
from lastword.lab.report.figures import MOST_DRAWN, left_to_the_table, model_name
from lastword.lab.report.table import Table, Value, points
from lastword.records.cells import Cell, column, mean
from lastword.records.marks import Figure, Line, Panel, Role, Rule
from lastword.trust.paired import folded

MODEL = "the model"
NAME, TITLE = "depths", "What each depth knows"
_ROLES: Mapping[str, Role] = {
    "bag of words": "mix",
    "depth 0": "early",
    MODEL: "base",
    "chance": "other",
}


@dataclass(frozen=True)
class Depths:
    """One cell, over the texts that were fitted. Shares lie in [0, 1].

    Attributes:
        head: Accuracy of the model's head at each depth [depths]; nan if it was not read.
        probe: Accuracy of a cross-fitted probe at each depth [depths].
        chosen: Accuracy of a probe whose fit chooses the depth.
        references: Accuracies that the curves are compared with, by name.
        interval: Bootstrap interval, over groups, of `chosen` minus the probe of the last depth.
    """

    model: str
    benchmark: str
    texts: int
    head: tuple[float, ...]
    probe: tuple[float, ...]
    chosen: float
    references: Mapping[str, float]
    interval: Interval


def depths(cell: Cell) -> Depths | str | None:
    """Return the accuracies of a cell, the reason if no probe can be fitted, or None."""
    if not cell.info.get("states"):
        return None
    try:
        fit = probed(cell)
    except RecordError as error:
        return f"{cell.model} on {cell.benchmark} is left out: {error}."
    right = {name: mean(values.astype(float)) for name, values in fit.right.items()}
    probe = tuple(fit.by_depth.mean(axis=0).tolist())
    gain = fit.right[PROBE].astype(float) - fit.right[LAST]
    model = mean(column(cell.items, "mc1_base")[fit.places])
    shares = (right[WORDS], probe[0], model, cell.chance)
    return Depths(
        cell.model,
        cell.benchmark,
        len(fit.places),
        head=tuple(by_depth(cell, "trajectory", fit.places).tolist()),
        probe=probe,
        chosen=right[PROBE],
        references=dict(zip(_ROLES, shares, strict=True)),
        interval=bootstrap_mean(folded(gain, np.unique(fit.groups, return_inverse=True)[1])),
    )


def depths_table(cells: Sequence[Depths | str]) -> Table:
    """Return the table of the gain from middle depths, one row per cell, and of skipped cells."""
    heads = (
        "Model | Benchmark | Texts | Chance .2 | The model .2 | Bag of words .2 | Depth 0 .2"
        " | Last depth .2 | Its depth .2 | The middle adds +.2 | 95% low +.2 | 95% high +.2"
        " | Best depth of the head | There .2"
    )
    notes: tuple[str, ...] = (
        f"Probes and words are cross-fitted: {FOLDS} folds by group, at most {MOST:,} texts a "
        f"cell. Its depth: of `{PROBE}`, whose fits choose the depth; last depth: `{LAST}`. The "
        "middle adds what the first has more, with a bootstrap interval over groups. The best "
        "depth of the head is picked on these same texts.",
    )
    rows: list[tuple[Value, ...]] = []
    for entry in cells:
        if isinstance(entry, str):
            notes += (entry,)
            continue
        words, first, model, chance = entry.references.values()
        last, interval = entry.probe[-1], entry.interval
        shares = points(chance, model, words, first, last, entry.chosen)
        gains = points(entry.chosen - last, interval.low, interval.high)
        head = np.array(entry.head)
        best: tuple[Value, ...] = (int(head.argmax()), *points(head.max()))
        if np.isnan(head).any():  # the run did not read every depth
            best = (np.nan, np.nan)
        rows.append((entry.model, entry.benchmark, entry.texts, *shares, *gains, *best))
    return Table.of(NAME, TITLE, heads, rows, notes)


def depths_figure(curves: Sequence[Depths | str]) -> Figure | None:
    """Return a figure with one panel per cell; None without cells."""
    cells = [entry for entry in curves if isinstance(entry, Depths)]
    if not cells:
        return None
    caption = (
        "Share right by depth: through the model's head (grey) and by a probe of that depth "
        f"(blue). Probes and words are cross-fitted.{left_to_the_table(len(cells))}"
    )
    return Figure(NAME, TITLE, caption, tuple(map(_panel, cells[:MOST_DRAWN])), columns=2)


def _panel(entry: Depths) -> Panel:
    x = tuple(map(float, range(len(entry.probe))))
    rules = [
        Rule(share, _ROLES[name], "" if name == MODEL else name, axis="y")  # a curve has that name
        for name, share in entry.references.items()
    ]
    above = entry.probe[-1] >= entry.head[-1]
    lines = (
        Line(x, entry.head, "base", MODEL, above=not above),
        Line(x, entry.probe, "corrected", "a probe", above=above),
    )
    title = f"{model_name(entry.model)}\n{entry.benchmark}"
    return Panel(title, (*rules, *lines), "depth", "share right", y_range=(0.0, 1.0))
