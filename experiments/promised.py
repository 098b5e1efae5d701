"""What the certified choice promises, and what it then does on items that it had not seen.

    python experiments/promised.py RUNS [RUNS ...] [--resamples 200] [--seed 3]

RUNS are folders of `lastword eval --blind all` on the decision sets; cells of one model and one set
(`jsonl:trec`, `jsonl:trec-rest`) are taken together. Labels are drawn from each, the choice made of
them as `certify` makes it, and counted on the rest (dev/LOG.md). Batch calibration's mean is of
the whole cell, without its labels. The result is kept in experiments/results/promised.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lastword.files.folder import Folder, locate
from lastword.records.info import find_cells, read_run
from lastword.records.parts import missing_places
from lastword.records.stored import read_cells
from lastword.trust.certification import labelled
from lastword.trust.certify import certify
from lastword.trust.choice import allowed, answers, means, resolved
from lastword.trust.labelled import Labelled
from lastword.trust.policy import METHODS, Promise, ScalarOperator, scalar_operator
from lastword.trust.terms import Terms

RESULT = Path(__file__).parent / "results" / "promised.json"
ALPHA, SIZES = 0.1, (50, 100, 200)
FEWEST, REST = 150, 50
SETS = "trec sst2 emotion agnews tools csqa arc banking77 clinc150".split()
PROMISES: tuple[Promise, ...] = ("gain", "breaks")


@dataclass(frozen=True)
class Counted:
    """The items of a cell as every method answers them.

    Attributes:
        name: Model and set.
        items: How the model and the methods answer them.
        methods: Those that the records allow.
        scalar: The model's operator in the scalar regime.
    """

    name: tuple[str, str]
    items: Labelled
    methods: tuple[str, ...]
    scalar: ScalarOperator


def cells_of(roots: Sequence[Folder]) -> dict[tuple[str, str], list[Folder]]:
    """Finished cells by model and set."""
    by_name: dict[tuple[str, str], list[Folder]] = {}
    for folder in (folder for root in roots for folder in find_cells(root)):
        if missing_places(folder):
            continue
        run = read_run(folder)
        name = run["benchmark"].removeprefix("jsonl:").removesuffix("-rest")
        if name in SETS:
            by_name.setdefault((run["model"], name), []).append(folder)
    return by_name


def counted(name: tuple[str, str], folders: Sequence[Folder]) -> Counted:
    """A cell as the study needs it."""
    run = read_run(folders[0])
    cells = [cell for folder in folders for cell in read_cells(folder)]
    methods = allowed(cells, METHODS)
    items = labelled([cell.mc1_items for cell in cells])
    others = answers(items, cells, resolved(cells, run, methods, means(cells)))
    scalar = scalar_operator(float(run["invariant"]), float(run["theta"]["tau_I"]))
    return Counted(name, replace(items, others=others), methods, scalar)


def judged(cell: Counted, labels: int, promise: Promise, resamples: int, seed: int) -> Any:
    """What was chosen of so many labels, resample by resample, and what it did on the rest."""
    terms = Terms(ALPHA, methods=cell.methods, promise=promise)
    rng, rows, whole = np.random.default_rng(seed), [], cell.items
    for _ in range(resamples):
        drawn = np.zeros(len(whole), dtype=bool)
        drawn[rng.permutation(len(whole))[:labels]] = True
        if labels < terms.least:
            continue
        finding = certify(whole.take(np.flatnonzero(drawn)), cell.scalar, terms)
        if finding.chosen is None:
            continue
        policy, rest = finding.policy, ~drawn
        gains = whole.fixed(policy).astype(int) - whole.broken(policy)
        least = finding.worth["net_at_least"]
        breaks = promise == "breaks" and whole.broken(policy).mean() > ALPHA
        worse = bool(gains.mean() <= 0 or gains.mean() < least or breaks)
        rows.append((policy.method, least, gains[rest].mean(), gains.mean(), worse))
    gain, true = sum(r[2] for r in rows) / resamples, sum(r[3] for r in rows) / resamples
    return {
        "on": len(rows) / resamples,
        "method": Counter(r[0] for r in rows).most_common(1)[0][0] if rows else None,
        "at least": round(100 * float(np.mean([r[1] for r in rows])), 2) if rows else None,
        "gain on the rest, over all": round(100 * float(gain), 2),
        "true gain, over all": round(100 * float(true), 2),
        "worse than promised": sum(r[4] for r in rows) / resamples,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: each promise at 100 labels."""
    yield "| set | model | base | gain: on | method | at least | true gain | worse | breaks: on |"
    yield "|---|---|--:|--:|---|--:|--:|--:|--:|"
    for row in rows:
        gain, breaks = (row["promises"][promise]["100"] for promise in PROMISES)
        cells = [row["set"], row["model"], row["base"], f"{gain['on']:.0%}", gain["method"]]
        cells += [gain["at least"], gain["true gain, over all"]]
        cells += [f"{gain['worse than promised']:.1%}", f"{breaks['on']:.0%}"]
        yield "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    rows, few = [], []
    for name, folders in sorted(cells_of([locate(path) for path in options.runs]).items()):
        cell = counted(name, folders)
        count = len(cell.items)
        own: dict[str, Any] = {**dict(zip(("model", "set"), name, strict=True)), "items": count}
        if count < FEWEST:
            few.append(own)
            continue
        own["base"] = round(100 * float(cell.items.mc1_base.mean()), 2)
        own["promises"] = {
            promise: {
                str(n): judged(cell, n, promise, options.resamples, options.seed)
                for n in SIZES
                if n <= count - REST
            }
            for promise in PROMISES
        }
        rows.append(own)
    result = {"resamples": options.resamples, "cells": rows, "too few items": few}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(table(sorted(rows, key=lambda row: (row["set"], row["model"])))))


if __name__ == "__main__":
    main()
