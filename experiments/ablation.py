"""Seconds for the ablations of a grid: 45 cells of 600 items, all rows, 5 sweeps of 20 points.

    python experiments/ablation.py [--cells 45] [--items 600] [--depth 32]

Records are synthetic (`tests/synthetic.py`, 3 models x 3 benchmarks) and repeated under other model
names to fill the grid; making them is not timed, deriving every item's geometry is. One process.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from synthetic import synthetic_grid

from lastword.evaluation.ablation import necessity, sweep
from lastword.evaluation.readings import read
from lastword.evaluation.statistics import judge
from lastword.records.cells import cells, summarise
from lastword.theta import Theta

LIMIT_SECONDS = 60
GRIDS = {
    "tau_dim": np.linspace(1, 1.25, 20),
    "eta": np.linspace(0, 2, 20),
    "tau_logr": np.linspace(0, 2, 20),
    "tau_H": np.linspace(0, 0.95, 20),
    "gamma": np.linspace(-3, 0, 20),
}


def grid_of(count: int, items: int, depth: int) -> pd.DataFrame:
    """Records of `count` cells of `items` items."""
    base = synthetic_grid(3, items, depth=depth)
    copies = [base.assign(model=base["model"] + f"-{copy}") for copy in range(-(-count // 9))]
    records = pd.concat(copies, ignore_index=True)
    names = records[["model", "benchmark"]].drop_duplicates().head(count)
    return records.merge(names, on=["model", "benchmark"])


def main() -> None:
    """Time each step and say whether the whole stays under the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=45)
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--depth", type=int, default=32)
    options = parser.parse_args()
    parted = cells(grid_of(options.cells, options.items, options.depth))
    theta, seconds = Theta(), {}

    start = time.perf_counter()
    readings = [read(cell, theta) for cell in parted]
    seconds["geometry"] = time.perf_counter() - start
    start = time.perf_counter()
    rows = necessity(readings, theta)
    seconds[f"{len(rows)} rows"] = time.perf_counter() - start
    start = time.perf_counter()
    points = sum(len(sweep(readings, theta, p, v.tolist()).effects) for p, v in GRIDS.items())
    seconds[f"{points} points of 5 sweeps"] = time.perf_counter() - start
    total = sum(seconds.values())

    start = time.perf_counter()
    summaries = [summarise(cell) for cell in parted]
    beside = {f"{len(summaries)} summaries": time.perf_counter() - start}
    start = time.perf_counter()
    judged = judge(parted)
    beside[f"{len(judged)} verdicts"] = time.perf_counter() - start

    items = sum(len(cell.items) for cell in parted)
    print(f"{len(parted)} cells, {items} items, L = {options.depth} to {options.depth + 2}")
    for name, value in (seconds | {"ablations together": total} | beside).items():
        print(f"{name:28} {value:8.2f} s")
    if total > LIMIT_SECONDS:
        sys.exit(f"more than {LIMIT_SECONDS} s")


if __name__ == "__main__":
    main()
