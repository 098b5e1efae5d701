"""The paper's master grid as data (`paper_grid.csv`, facts only), and a run's cells beside it."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import chain
from typing import NamedTuple

from lastword.lab.report.table import EN_DASH, Table, Value, columns
from lastword.records.cells import Summary, benchmark_of


class PaperCell(NamedTuple):
    """The paper's numbers for one cell, in points, but for I(M) as it is printed."""

    model: str
    invariant: float
    mc1_base: float
    mc1_delta: float
    mc2_base: float
    mc2_delta: float


def against_paper(summaries: Sequence[Summary]) -> Table:
    """Cells beside the published ones; en dashes where the paper has none."""
    heads = columns(
        "Model | Benchmark | Paper's model | I(M) .2 | I(M) paper .2"
        " | MC1 base .2 | MC1 base paper .2 | ΔMC1 +.2 | ΔMC1 paper +.2"
        " | MC2 base .2 | MC2 base paper .2 | ΔMC2 +.2 | ΔMC2 paper +.2"
    )
    published = read_published()
    rows = tuple(_beside(s, _published(s, published)) for s in summaries)
    notes = (
        "Models are paired by name; the paper names no checkpoint revision, no prompt template and "
        "not every precision, so levels may differ for those reasons alone.",
    )
    return Table("against-paper", "Against the published grid", heads, rows, notes)


def read_published() -> dict[str, list[PaperCell]]:
    """Return the paper's master grid by benchmark, with 15 models each."""
    text = files("lastword.lab.report").joinpath("paper_grid.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(text.splitlines())
    # A row is the model, I(M), its branch, then four numbers of each benchmark.
    return {
        name: [PaperCell(row[0], *map(float, (row[1], *row[at : at + 4]))) for row in rows]
        for at, name in ((3, "truthfulqa"), (7, "halueval-qa"), (11, "halueval-sum"))
    }


def _beside(s: Summary, paper: PaperCell | None) -> tuple[Value, ...]:
    measured = [100 * v for v in (s.mc1_base, s.delta_mc1, s.mc2_base, s.delta_mc2)]
    name, invariant, *theirs = paper or PaperCell(EN_DASH, *[math.nan] * 5)
    pairs = chain(*zip(measured, theirs, strict=True))
    return (s.model, s.benchmark, name, s.invariant, invariant, *pairs)


def _published(s: Summary, grids: Mapping[str, Sequence[PaperCell]]) -> PaperCell | None:
    """Return the paper's row with the longest name whose parts begin this model's name."""
    parts = _parts(s.model.rsplit("/", 1)[-1])
    rows = grids.get(benchmark_of(s.benchmark), ())
    matches = [row for row in rows if parts[: len(_parts(row.model))] == _parts(row.model)]
    return max(matches, key=lambda row: len(_parts(row.model)), default=None)


def _parts(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
