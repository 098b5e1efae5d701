"""The paper's numbers as data, and comparisons of a run with them.

`paper_grid.csv` is its Table 1. `paper_models.csv` has checkpoints of its fifteen models, chosen by
us, because the paper names no repositories. Rows are matched by a model's name in the paper, or by
the name of its checkpoint.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from lastword.lab.report.table import EN_DASH, ReportTable, Value, points
from lastword.records.cells import Summary, benchmark_of

SOURCE = "T. S. Ranade, TRACE: Trajectory Correction from Cross-layer Evidence"


class PaperCell(NamedTuple):
    """The paper's numbers for one cell, in points, and I(M)."""

    model: str
    invariant: float
    mc1_base: float
    mc1_delta: float
    mc2_base: float
    mc2_delta: float


def against_paper(summaries: Sequence[Summary]) -> ReportTable:
    """Return the table of cells and published ones (Table 1); en dashes for missing values."""
    heads = (
        "Model | Benchmark | Paper's model | I(M) .2 | I(M) paper .2"
        " | MC1 base .2 | MC1 base paper .2 | ΔMC1 +.2 | ΔMC1 paper +.2"
        " | MC2 base .2 | MC2 base paper .2 | ΔMC2 +.2 | ΔMC2 paper +.2"
    )
    rows: list[tuple[Value, ...]] = []
    for s in summaries:
        ours = points(s.mc1_base, s.delta_mc1, s.mc2_base, s.delta_mc2)
        name, invariant, *theirs = _published(s) or PaperCell(EN_DASH, *[math.nan] * 5)
        pairs = chain(*zip(ours, theirs, strict=True))
        rows.append((s.model, s.benchmark, name, s.invariant, invariant, *pairs))
    notes = (
        f"Paper: {SOURCE}, Table 1. Models are paired by the name of the paper or of the "
        "checkpoint in the built-in list; the paper names no checkpoint revision, no prompt "
        "template and not every precision, so levels may differ for those reasons alone.",
    )
    return ReportTable.of(
        "against-paper", "Table 1 of the paper beside this run", heads, rows, notes
    )


def invariants_against_paper(invariants: Mapping[str, Mapping[str, Any]]) -> ReportTable:
    """Return the table of models' I(M) and the published values (Table 1)."""
    theirs = {cell.model: cell.invariant for cell in read_published()["truthfulqa"]}
    rows = []
    for name, values in invariants.items():
        paper = theirs.get(paper_model(name) or "", math.nan)
        factors = [values[f"phi_{letter}"] for letter in "NOKV"]
        others = [value for value in values["readings"].values() if value is not None]
        ends = min(others, default=math.nan), max(others, default=math.nan)
        rows.append(
            (name, values["model"], values["invariant"], paper, values["branch"], *ends, *factors)
        )
    heads = (
        "Model | Checkpoint | I(M) .2 | I(M) paper .2 | Branch"
        " | Least reading .2 | Largest reading .2"
        " | phi_N .3 | phi_O .3 | phi_K .3 | phi_V .3"
    )
    notes = (
        f"Paper: {SOURCE}, Table 1. Ours are read from the checkpoints' tensors.",
        "Least and largest are over the eight readings of I(M). The branch depends on the reading "
        "where 1 lies between them.",
    )
    return ReportTable.of("invariants", "I(M) against the published", heads, rows, notes)


def read_published() -> dict[str, list[PaperCell]]:
    """Return the paper's master grid by benchmark: 15 models each."""
    # A row has the model, I(M), its branch, then four numbers per benchmark.
    rows = list(csv.reader(_lines("paper_grid.csv")))[1:]
    return {
        name: [PaperCell(row[0], *map(float, (row[1], *row[at : at + 4]))) for row in rows]
        for at, name in ((3, "truthfulqa"), (7, "halueval-qa"), (11, "halueval-sum"))
    }


@cache
def checkpoints() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of `paper_models.csv` by the paper's name of the model."""
    rows = csv.DictReader(_lines("paper_models.csv"))
    return MappingProxyType({row["paper"]: row for row in rows})


def paper_model(name: str) -> str | None:
    """Return the paper's name of a model, given that name or its checkpoint; None for others."""
    for paper, row in checkpoints().items():
        if name.casefold() in (paper.casefold(), row["model"].casefold()):
            return paper
    return None


def _lines(file: str) -> list[str]:
    return files("lastword.lab.report").joinpath(file).read_text(encoding="utf-8").splitlines()


def _published(s: Summary) -> PaperCell | None:
    rows = read_published().get(benchmark_of(s.benchmark), ())
    return next((row for row in rows if row.model == paper_model(s.model)), None)
