"""The options that say which questions of a benchmark are asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lastword.lab.benchmarks import Dataset, Template


@dataclass(frozen=True)
class Questions:
    """Where a benchmark's questions are, and which of them are asked."""

    data: Annotated[
        Path | None, "File or folder of the benchmark's data; left out, it is the hub."
    ] = None
    limit: Annotated[int | None, "How many questions; a pair is one.", typer.Option(min=1)] = None
    seed: Annotated[int | None, "Draw the questions of --limit at random."] = None
    columns: Annotated[
        str | None,
        "Of hf:NAME: prompt=question,candidates=choices,truthful=answer; labels= and id= too.",
    ] = None

    def __post_init__(self) -> None:
        """Refuse a draw of everything."""
        if self.seed is not None and self.limit is None:
            raise typer.BadParameter("--seed draws a random subset: give its size with --limit")

    def read(
        self, benchmarks: Sequence[str], templates: list[str]
    ) -> "list[tuple[Dataset, Template]]":
        """Every data set with every template of its own, all of it read and rendered once."""
        from lastword.lab.benchmarks import find, templates_for

        if self.columns is not None and not any(name.startswith("hf:") for name in benchmarks):
            raise typer.BadParameter("--columns goes with --benchmark hf:NAME")
        sets = [find(name, self.columns) for name in dict.fromkeys(benchmarks)]
        by_set = templates_for(sets, templates)
        datasets = [b.load(self.data, limit=self.limit, seed=self.seed) for b in sets]
        work = [(d, t) for d in datasets for t in by_set[d.benchmark.name]]
        for dataset, template in work:
            dataset.items(template)  # what does not render fails before a model is loaded
        return work
