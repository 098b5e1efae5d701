"""Reads the benchmarks of a command, with their templates."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lastword.lab.benchmarks import Dataset, Template


def read_benchmarks(
    benchmarks: Sequence[str],
    templates: list[str],
    data: Path | None,
    limit: int | None,
    seed: int | None = None,
    columns: str | None = None,
) -> "list[tuple[Dataset, Template]]":
    """Return every data set with each of its templates, read and rendered."""
    if seed is not None and limit is None:
        raise typer.BadParameter("--seed draws a random subset: give its size with --limit")
    if columns is not None and not any(name.startswith("hf:") for name in benchmarks):
        raise typer.BadParameter("--columns goes with --benchmark hf:NAME")
    from lastword.lab.benchmarks import find, templates_for

    sets = [find(name, columns) for name in dict.fromkeys(benchmarks)]
    by_set = templates_for(sets, templates)
    datasets = [b.load(data, limit=limit, seed=seed) for b in sets]
    work = [(d, t) for d in datasets for t in by_set[d.benchmark.name]]
    for dataset, template in work:
        dataset.items(template)  # refuses a bad template before a model loads
    return work
