"""Choose the default reading of the scorer by the rule of section 11 of the method.

    lastword eval --model M --benchmark halueval-qa --benchmark fib --benchmark truthfulqa \
        --data DATA --limit 500 --blind none --dtype float32 --out RUNS    # for each model
    python experiments/readings.py RUNS

Prints the mean gain over the base of each reading, in points of MC1 and MC2, with signed mixing on
every item of the scalar regime, and the mean distance from the paper's gains. FIB stands in for
HaluEval-Sum.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from lastword import Theta
from lastword.lab.report.ablation import deltas
from lastword.lab.report.published import read_published
from lastword.records.cells import read_cells
from lastword.records.readings import AblatedRule, Readings, read

PUBLISHED = {"halueval-qa": "halueval-qa", "fib": "halueval-sum", "truthfulqa": "truthfulqa"}


def paper_gains() -> dict[str, np.ndarray]:
    """Return mean published gains in MC1 and MC2 of models with I(M) > 1, by our benchmark."""
    grid = read_published()
    return {
        ours: np.mean([(c.mc1_delta, c.mc2_delta) for c in grid[theirs] if c.invariant > 1], axis=0)
        for ours, theirs in PUBLISHED.items()
    }


def _gain(cell: Readings, name: str, rule: AblatedRule) -> list[float]:
    return deltas(cell.by_scorer(cell.t_readings[name]), rule)


def main(folder: str) -> None:
    """Print the gains of each model, then their means and the distance from the paper."""
    runs: dict[str, dict[str, Readings]] = {}
    for cell in read_cells(Path(folder)):
        runs.setdefault(cell.model, {})[cell.benchmark] = read(cell, Theta())
    mix = replace(AblatedRule(Theta()), invariant=np.inf)
    published = paper_gains()
    names = next(iter(next(iter(runs.values())).values())).t_readings
    print("| model | reading |", " | ".join(published), "| distance |")
    print("|---|---|", "--:|" * (len(published) + 1), sep="")
    for name in names:
        gains = {
            model: [
                100 * np.array(deltas(run[b].by_scorer(run[b].t_readings[name]), mix))
                for b in published
            ]
            for model, run in runs.items()
        }
        gains["mean"] = list(np.mean([*gains.values()], axis=0))
        for model, rows in gains.items():
            off = np.mean([abs(g - p) for g, p in zip(rows, published.values(), strict=True)])
            shown = " | ".join(f"{first:+.2f}, {second:+.2f}" for first, second in rows)
            print(f"| {model} | {name} | {shown} | {off:.2f} |")
    print("| paper | |", " | ".join(f"{a:+.2f}, {b:+.2f}" for a, b in published.values()), "| |")


if __name__ == "__main__":
    main(sys.argv[1])
