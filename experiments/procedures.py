"""What should delta be spent on? Families and shares on records with labels (dev/LOG.md).

    python experiments/procedures.py RUNS [--labels 100] [--resamples 200]

RUNS are folders of `lastword eval --blind all` on the decision sets; each finished cell is a
population whose true rates are known. Of each, so many labels are drawn again and again; told is in
what share of draws a family lets something through, what that truly gains, and how often something
is let through that truly gains nothing. The bounds are those of `Evidence.net_bound`, beside others
of the same level, on populations that are made. The result is kept in
experiments/results/procedures.json.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta, binom

from lastword.files.folder import Folder, locate
from lastword.records.info import find_cells, read_run
from lastword.records.parts import missing_places
from lastword.records.stored import read_cells
from lastword.trust.certification import labelled
from lastword.trust.choice import allowed, answers, means, resolved
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled
from lastword.trust.policy import BATCH, GATED, TRACE, Policy, family

RESULTS = Path(__file__).parent / "results" / "procedures.json"
DELTA, ALPHA = 0.05, 0.1
NATS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
METHODS = (TRACE, GATED, "pmi@0.25", "pmi@0.5", "pmi@1", BATCH)
SETS = "trec sst2 emotion agnews tools csqa arc".split()


@dataclass(frozen=True)
class Counted:
    """The items of a cell as every method answers them.

    Attributes:
        name: Model and set.
        items: How the model and the methods answer them.
        methods: Those that the records allow.
    """

    name: tuple[str, str]
    items: Labelled
    methods: tuple[str, ...]


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
    return Counted(name, replace(items, others=others), methods)


def families() -> dict[str, dict[Policy, float]]:
    """Policies with their shares of delta, by name; the first is that of version 0.3."""
    many = [
        Policy(operators, margin, method)
        for method in METHODS
        for operators in _operators(method)
        for margin in NATS
    ]
    single = [Policy(_operators(method)[-1], 0.0, method) for method in METHODS]
    return {
        "eight margins of every method": dict.fromkeys(many, 1 / len(many)),
        "every method as it is": dict.fromkeys(single, 1 / len(single)),
        "gain: shares of other jobs": family("mix", METHODS, "gain"),
        "breaks: three margins, shares of other jobs": family("mix", METHODS, "breaks"),
    }


def _operators(method: str) -> tuple[tuple[str, ...], ...]:
    both = ("decisive", "mix")
    if method == TRACE:
        return (("decisive",), ("mix",), both)
    return (both,) if method == GATED else ((method,),)


def judged(cell: Counted, shares: Mapping[Policy, float], labels: int, draws: np.ndarray) -> Any:
    """By promise, the share of draws that are on, the mean true gain, and the share wrong."""
    items = cell.items
    fixed = np.array([items.fixed(policy) for policy in shares])
    broken = np.array([items.broken(policy) for policy in shares])
    gain = fixed.mean(axis=1) - broken.mean(axis=1)
    level = DELTA * np.array([*shares.values()])
    f, k = (np.array([own[:, drawn].sum(axis=1) for drawn in draws]) for own in (fixed, broken))
    sign = binom.cdf(k, f + k, 0.5)
    for promise in ("gain", "breaks"):
        p = sign if promise == "gain" else np.maximum(sign, binom.cdf(k, labels, ALPHA))
        holds = p <= level
        worse = (gain <= 0) | ((promise == "breaks") & (broken.mean(axis=1) > ALPHA))
        best = np.where(holds, f - k, -1).argmax(axis=1)
        on = holds.any(axis=1)
        yield promise, on.mean(), np.where(on, gain[best], 0).mean(), (holds & worse).any(1).mean()


def bounds(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Lower bounds of the net gain on 300 draws of made populations, by three ways."""
    stakes = 0.9 * 0.8 ** np.arange(16)
    for items in (50, 100, 400):
        for up, down in ((0.1, 0.01), (0.2, 0.05), (0.3, 0.02), (0.3, 0.1), (0.4, 0.1)):
            drawn = rng.multinomial(items, [up, down, 1 - up - down], size=300)
            for level in (0.05, 0.01):
                ways: dict[str, list[float]] = {"shipped": [], "two shares": [], "betting": []}
                for f, k, _ in drawn.tolist():
                    evidence = Evidence.of_counts(f, k, items)
                    ways["shipped"].append(evidence.net_bound(1.0, level))
                    low = beta.ppf(level / 2, f, items - f + 1) if f else 0.0
                    ways["two shares"].append(low - beta.ppf(1 - level / 2, k + 1, items - k))
                    ways["betting"].append(_betting(f, k, items, level, stakes))
                means = {name: round(float(np.mean(own)), 4) for name, own in ways.items()}
                yield {"items": items, "fixed": up, "broken": down, "level": level, **means}


def _betting(fixed: int, broken: int, items: int, level: float, stakes: np.ndarray) -> float:
    """Waudby-Smith and Ramdas: the largest mean against which a mixture of stakes has not won."""
    low, high = -1.0, 1.0
    for _ in range(30):
        m = (low + high + 2) / 4  # of values in [0, 1]
        counts = ((fixed, 1.0), (items - fixed - broken, 0.5), (broken, 0.0))
        wealth = sum(n * np.log1p(stakes * (x / m - 1)) for n, x in counts)
        wins = np.logaddexp.reduce(wealth) - np.log(len(stakes)) >= -np.log(level)
        low, high = ((low + high) / 2, high) if wins else (low, (low + high) / 2)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=200)
    options = parser.parse_args()
    rows = []
    for name, folders in sorted(cells_of([locate(path) for path in options.runs]).items()):
        cell = counted(name, folders)
        if len(cell.items) <= options.labels:
            continue
        rng = np.random.default_rng(0)
        draws = np.array(
            [rng.permutation(len(cell.items))[: options.labels] for _ in range(options.resamples)]
        )
        for own, shares in families().items():
            there = {p: w for p, w in shares.items() if p.method in cell.methods}
            for promise, on, gain, wrong in judged(cell, there, options.labels, draws):
                row = {"cell": name, "family": own, "promise": promise, "wrong": wrong}
                rows.append(row | {"on": on, "gain": 100 * gain})
    summary = [
        {"family": own, "promise": promise}
        | {n: round(float(np.mean([r[n] for r in mine])), 4) for n in ("on", "gain", "wrong")}
        for own in families()
        for promise in ("gain", "breaks")
        if (mine := [r for r in rows if (r["family"], r["promise"]) == (own, promise)])
    ]
    told = {"labels": options.labels, "summary": summary}
    told["bounds"] = list(bounds(np.random.default_rng(0)))
    RESULTS.write_text(json.dumps(told | {"rows": rows}, indent=1) + "\n")
    for line in summary:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
