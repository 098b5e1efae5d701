"""Calibration error and Brier score before and after a temperature, of every cell under a folder.

    python experiments/calibration.py RUNS OUT

RUNS has folders of `lastword eval --blind all`; OUT gets a line a cell and method. Every item is
judged at a temperature of other items: nine tenths of the cell.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lastword.errors import InputError, RecordError
from lastword.evaluation.certification import read_sample
from lastword.files.folder import locate
from lastword.records.info import find_cells
from lastword.trust.calibration import calibrate, curves
from lastword.trust.policy import OFF, Policy

METHODS = ("pmi@0.5", "pmi@1", "batch-calibrated")


def lines(runs: Path) -> Iterator[dict[str, Any]]:
    """A line a cell and method: the calibration, and how sure and how often right by bin."""
    for folder in find_cells(locate(str(runs))):
        try:
            sample = read_sample(folder, (), None)
        except RecordError as error:
            print(f"{folder}: {error}")
            continue
        where = {"model": sample.subject.model, "set": next(iter(sample.benchmarks))}
        for name in ("base", *(own for own in METHODS if own in sample.methods)):
            policy = OFF if name == "base" else Policy((name,), 0.0, name)
            try:
                shown = sample.shown(policy)
                found = calibrate(*shown)
            except InputError as error:
                print(f"{folder}: {name}: {error}")
                continue
            bins = {
                when: [
                    [int(n), round(float(said), 4), round(float(right), 4)]
                    for n, said, right in zip(c.counts, c.confidence, c.accuracy, strict=True)
                    if n
                ]
                for when, c in zip(("before", "after"), curves(*shown), strict=True)
            }
            yield where | {"method": name} | asdict(found) | bins


def main() -> None:
    """Write a line a cell and method to OUT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    with given.out.open("w", encoding="utf-8") as file:
        for line in lines(given.runs):
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
