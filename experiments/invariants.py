"""I(M) in its eight variants beside the published values, and what each variant decides.

    python experiments/invariants.py [--models grid.csv]

It reads five tensors of each of the paper's models, from the hub or from the local copies in a
table as `lastword paper --models` takes it. A model that cannot be fetched has empty cells. The
gains by variant are those of the stored records of the evidence. The result is
`results/invariants.md`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lastword import Theta, TraceError
from lastword.cli.invariant import read_factors
from lastword.lab.paper import read_grid
from lastword.lab.report.ablation import deltas
from lastword.lab.report.published import paper_model, read_published
from lastword.lab.report.table import number
from lastword.records.cells import mean_defined, read_cells
from lastword.records.readings import AblatedRule, Readings, read

RESULTS = Path(__file__).parent / "results"
RECORDS = [RESULTS / "evidence" / name for name in ("own", "jobs")]
VARIANTS = [
    f"{rows}/{block}/{norm}"
    for norm in ("stored", "effective")
    for block in ("zero", "depth")
    for rows in ("stored", "input")
]
THETA = Theta()


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="table of local copies")
    models = parser.parse_args().models
    sections = [
        "# I(M) and T in their variants",
        "`python experiments/invariants.py` writes this page. Variants of I(M): rows of the "
        "weights, block, norm. An empty cell: the model could not be fetched.",
        "## I(M) of the paper's models",
        table(["model", "published", *VARIANTS], published_rows(models)),
        "## The branch of the measured models, and its gain",
        "Gains in MC1 and MC2, in points: means over the datasets whose stored records have every "
        "variant, if all scalar items are decided by `mix`, and if all by `early`.",
        table(
            ["model", "datasets", "variants that choose mix", "variants that choose early"]
            + ["gain by mix", "gain by early"],
            branch_rows(measured := dict(measured_models())),
        ),
        "## T in its variants",
        "The same gains with every variant of T, if all scalar items are decided by `mix`.",
        table(["model", *next(iter(measured.values()))[0].t_readings], scorer_rows(measured)),
    ]
    (RESULTS / "invariants.md").write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text."""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def published_rows(models: Path | None) -> Iterator[list[str]]:
    """Yield the published I(M) of each of the paper's models, and I(M) in each variant."""
    options = {paper_model(str(one.alias)): one for one in read_grid(models)}
    for cell in read_published()["truthfulqa"]:
        values: Mapping[str, float] = {}
        if (one := options.get(cell.model)) is not None:
            try:
                values = read_factors(str(one.model), one.revision).readings
            except (TraceError, OSError) as error:
                print(f"{cell.model}: {error}")
        ours = [f"{values[name]:.2f}" if name in values else "" for name in VARIANTS]
        yield [cell.model, f"{cell.invariant:.2f}", *ours]


def measured_models() -> Iterator[tuple[str, list[Readings]]]:
    """Yield the stored datasets of each model whose records have every variant."""
    readings: dict[str, list[Readings]] = {}
    for cell in (cell for folder in RECORDS for cell in read_cells(folder)):
        try:
            found = read(cell, THETA)
        except TraceError as error:  # records of an earlier version
            print(error)
            continue
        if found.t_readings and found.invariant_readings:
            readings.setdefault(cell.model, []).append(found)
    yield from readings.items()


def branch_rows(models: Mapping[str, list[Readings]]) -> Iterator[list[str]]:
    """Yield the variants of I(M) by branch, and the gain of each branch."""
    for model, cells in models.items():
        values = cells[0].invariant_readings
        by_branch = [
            ", ".join(f"{name} {values[name]:.2f}" for name in VARIANTS if mixes(values[name], on))
            for on in (True, False)
        ]
        yield [model, str(len(cells)), *by_branch, gain(cells, np.inf), gain(cells, 0.0)]


def mixes(value: float, wanted: bool) -> bool:
    """Return True if a value of I(M) chooses `mix`, or `early` if that is wanted."""
    return (value > THETA.tau_I) is wanted


def scorer_rows(models: Mapping[str, list[Readings]]) -> Iterator[list[str]]:
    """Yield the gain of each variant of T."""
    for model, cells in models.items():
        yield [
            model,
            *(
                gain([c.by_scorer(c.t_readings[n]) for c in cells], np.inf)
                for n in cells[0].t_readings
            ),
        ]


def gain(cells: Sequence[Readings], invariant: float) -> str:
    """Return the mean changes of MC1 and MC2 in points, if I(M) had a value."""
    rule = replace(AblatedRule(THETA), invariant=invariant)
    changes = np.array([deltas(cell, rule) for cell in cells], dtype=float)
    return ", ".join(number(100 * mean_defined(column), "+.2f") for column in changes.T)


if __name__ == "__main__":
    main()
