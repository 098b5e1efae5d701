"""The paper's numbers as data, and comparisons of a run with them.

`paper_grid.csv` is its Table 1, `paper_ablation.csv` Table 3 and `paper_per_model.csv` Table 4.
`paper_models.csv` has checkpoints of its fifteen models, chosen by us, because the paper names no
repositories. Rows are matched by a model's name in the paper, or by the name of its checkpoint.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from lastword.lab.report.ablation import Effect
from lastword.lab.report.table import EN_DASH, Marked, Table, Value, points
from lastword.lab.report.tables import ModelMeans
from lastword.records.cells import Summary, benchmark_of

SOURCE = "T. S. Ranade, TRACE: Trajectory Correction from Cross-layer Evidence"
# Rows of Table 3 that are inconsistent with the others (method, section 12).
_DOES_NOT_ADD_UP = ("Drop multi-directional arm", "Force fallback on every model")


class PaperCell(NamedTuple):
    """The paper's numbers for one cell, in points, and I(M)."""

    model: str
    invariant: float
    mc1_base: float
    mc1_delta: float
    mc2_base: float
    mc2_delta: float


def against_paper(summaries: Sequence[Summary]) -> Table:
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
    return Table.of("against-paper", "Table 1 of the paper beside this run", heads, rows, notes)


def invariants_against_paper(invariants: Mapping[str, Mapping[str, Any]]) -> Table:
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
    return Table.of("invariants", "I(M) against the published", heads, rows, notes)


def ablation_against_paper(effects: Sequence[Effect]) -> Table:
    """Return the table of the ablation's rows and the published ones (Table 3)."""
    heads = (
        "Variant | ΔMC1 +.2 | ΔMC1 paper +.2 | ΔMC2 +.2 | ΔMC2 paper +.2"
        " | Negative MC1 cells | Negative MC1 cells, paper"
        " | Negative MC2 cells | Negative MC2 cells, paper"
    )
    by_label = {effect.label.removesuffix(" (as run)"): effect for effect in effects}
    rows: list[tuple[Value, ...]] = []
    for name, *printed in _rows("paper_ablation.csv"):
        numbers_of = [float(value) for value in printed]
        theirs: list[Value] = [*numbers_of[:2], *map(int, numbers_of[2:])]
        if name in _DOES_NOT_ADD_UP:
            theirs[:2] = [Marked(value) for value in numbers_of[:2]]
        effect = by_label.get(name)
        ours = [math.nan] * 4 if effect is None else [*effect.points, *effect.negative]
        rows.append((name, *chain(*zip(ours, theirs, strict=True))))
    notes = (
        f"Paper: {SOURCE}, Table 3, over its 45 cells.",
        "†: rows that do not add up. Dropping the multi-directional arm is printed with the "
        "published MC2 gain itself, although that arm alone adds +1.52; forcing the fallback is "
        "printed as dropping signed mixing, which would need the fallback to change nothing on "
        "nine models.",
    )
    return Table.of(
        "ablation-against-paper", "Table 3 of the paper beside this run", heads, rows, notes
    )


def per_model_against_paper(means: Sequence[ModelMeans]) -> Table:
    """Return the table of per-model rows and the published ones (Table 4)."""
    compared = ("I(M)", "% scalar", "% decisive", "% mix", "% early", "ΔMC1", "ΔMC2")
    heads = "Model | Paper's model | " + " | ".join(f"{n} .1 | {n} paper .1" for n in compared)
    # The third column of the paper's table is text: the scalar operator.
    theirs = {row[0]: [float(v) for v in (row[1], *row[3:])] for row in _rows(_PER_MODEL)}
    rows: list[tuple[Value, ...]] = []
    for m in means:
        key = paper_model(m.model)
        ours = (m.invariant, m.scalar, *m.fired, m.delta_mc1, m.delta_mc2)
        printed = theirs[key] if key else [math.nan] * len(compared)
        rows.append((m.model, key or EN_DASH, *chain(*zip(ours, printed, strict=True))))
    notes = (f"Paper: {SOURCE}, Table 4.",)
    title = "Table 4 of the paper beside this run"
    return Table.of("per-model-against-paper", title, heads, rows, notes)


def read_published() -> dict[str, list[PaperCell]]:
    """Return the paper's master grid by benchmark: 15 models each."""
    # A row has the model, I(M), its branch, then four numbers per benchmark.
    rows = _rows("paper_grid.csv")
    return {
        name: [PaperCell(row[0], *map(float, (row[1], *row[at : at + 4]))) for row in rows]
        for at, name in ((3, "truthfulqa"), (7, "halueval-qa"), (11, "halueval-sum"))
    }


@cache
def checkpoints() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of `paper_models.csv` by the paper's name of the model."""
    text = _text("paper_models.csv").splitlines()
    return MappingProxyType({row["paper"]: row for row in csv.DictReader(text)})


def paper_model(name: str) -> str | None:
    """Return the paper's name of a model, given that name or its checkpoint; None for others."""
    for paper, row in checkpoints().items():
        if name.casefold() in (paper.casefold(), row["model"].casefold()):
            return paper
    return None


_PER_MODEL = "paper_per_model.csv"


def _rows(file: str) -> list[list[str]]:
    return list(csv.reader(_text(file).splitlines()))[1:]


def _text(file: str) -> str:
    return files("lastword.lab.report").joinpath(file).read_text(encoding="utf-8")


def _published(s: Summary) -> PaperCell | None:
    rows = read_published().get(benchmark_of(s.benchmark), ())
    return next((row for row in rows if row.model == paper_model(s.model)), None)
