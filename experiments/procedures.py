"""Which procedure over the 24 policies promises few breaks and a gain most often? (dev/LOG.md)

    python experiments/procedures.py [--samples 1000] [--nulls 2000]

Every procedure meets the same samples of populations whose true rates are known. The result is kept
in experiments/results/procedures.json.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from populations import Kind, Population

from lastword import Tracer
from lastword.benchmarks import find
from lastword.benchmarks.world import parse_label
from lastword.evaluation.certification import labelled
from lastword.evaluation.runner import execute, prepare
from lastword.evaluation.work import Work
from lastword.records.cells import cells
from lastword.records.frame import load_records
from lastword.trust.certify import choose
from lastword.trust.policy import MARGINS, OFF, chains
from lastword.trust.testing import fixed_sequence, graphical, lattice

RESULTS = Path(__file__).parent / "results" / "procedures.json"
DELTA = 0.05
AT = list(reversed(MARGINS))  # margins of a chain, from the largest
CHAINS = len(chains("mix"))
Passed = Callable[[np.ndarray, np.ndarray], np.ndarray]


def both_ends(breaks: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Version 0.2's: few breaks from the safe end, a gain from the other, delta/6 each."""
    few = fixed_sequence(breaks, DELTA / 6)
    return few & fixed_sequence(gains[..., ::-1], DELTA / 6)[..., ::-1]


def holms(breaks: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Holm over all policies: every one hands its share to all others."""
    count = breaks.shape[-1] * CHAINS
    everyone = (np.ones((count, count)) - np.eye(count)) / (count - 1)
    return graph(np.full(count, 1 / count), everyone)(breaks, gains)


def graph(weights: np.ndarray, edges: np.ndarray) -> Passed:
    """The graphical procedure on the larger p-value of each policy."""

    def passed(breaks: np.ndarray, gains: np.ndarray) -> np.ndarray:
        p = np.maximum(breaks, gains)
        flat = p.reshape(*p.shape[:-2], -1)
        return graphical(flat, weights, edges, DELTA).reshape(p.shape)

    return passed


def started(*margins: float) -> Passed:
    """The graph whose shares start at these margins of each chain."""
    return graph(*lattice([AT.index(m) for m in margins], CHAINS, len(AT)))


PROCEDURES: dict[str, Passed] = {
    "both ends": both_ends,
    "Holm": holms,
    "graph-2": started(0.5, 2.0),
    "graph-4": started(0.25, 1.0, 2.0, 3.0),
    "graph-8": started(*MARGINS),
}


def bands(fixed: dict[float, float], broken: dict[float, float]) -> Population:
    """Two operators alike; shares of all items by the margin at which they lie."""
    return Population.of(
        Kind(share / 2, base, not base, operator, margin + 0.1)
        for operator in ("decisive", "mix")
        for base, shares in ((False, fixed), (True, broken))
        for margin, share in shares.items()
        if share
    )


def even(share: float, start: float = 0.0, end: float = math.inf) -> dict[float, float]:
    """A share spread evenly over the margins from `start` to below `end`."""
    at = [m for m in MARGINS if start <= m < end]
    return dict.fromkeys(at, share / len(at))


def powers() -> dict[str, Population]:
    """Populations in which something should be let through."""
    return {
        "late": bands(even(0.128, 0, 3) | even(0.028, 3), even(0.14, 0, 3)),
        "steady": bands(even(0.06), even(0.005)),
        "small margins": bands(even(0.08, 0, 2) | even(0.01, 2), even(0.005, 0, 2) | even(0.01, 2)),
        "sloped": bands(even(0.10), even(0.028, 0, 1) | even(0.002, 1)),
        "weak": bands(even(0.02), even(0.003)),
        **organism(),
    }


def organism() -> dict[str, Population]:
    """The embedded organism's own items, each with the same share."""
    tracer, benchmark = Tracer.demo("organism"), find("demo")
    with TemporaryDirectory() as folder:
        job = prepare(tracer, Work(benchmark.load(None), benchmark.template(), blind="none"))
        (cell,) = cells(load_records(execute(tracer, job, Path(folder)).cell))
    kinds = cell.items["id"].map(lambda item: parse_label(item).kind)
    found = {}
    for name, names in (("organism, clean and contested", ["clean", "contested"]), ("organism", 0)):
        frame = cell.items[kinds.isin(names)] if names else cell.items
        items = labelled([frame])
        items.operators[items.operators == "early"] = "mix"  # the family here has `mix`
        found[name] = Population(items, np.full(len(items), 1 / len(items)))
    return found


def nulls(alpha: float) -> dict[str, Population]:
    """Populations in which every policy, or every one that matters, must stay out."""
    return {
        "breaks 1.02 alpha, gains": bands(even(0.3), {4.0: 1.02 * alpha}),
        "few breaks, no gain": bands({4.0: alpha / 2}, {4.0: alpha / 2}),
        "crossing alpha inside a chain": bands(even(4 * alpha), even(1.6 * alpha)),
        "gain only where too much breaks": bands(
            {4.0: alpha / 3, 0.0: 0.3}, {4.0: alpha / 3, 0.0: alpha}
        ),
    }


def judge(population: Population, items: int, alpha: float, samples: int) -> Iterator[Any]:
    """What each procedure lets through: how often right, how often wrong, and its true gain."""
    family = chains("mix")
    fixed, broken = population.counts(family, items, samples, np.random.default_rng(11))
    breaks, gains = binom.cdf(broken, items, alpha), binom.cdf(broken, fixed + broken, 0.5)
    policies = [*(policy for chain in family for policy in chain), OFF]
    rates = np.array([population.broken(p) for p in policies])
    gain = np.array([population.fixed(p) for p in policies]) - rates
    good = (rates <= alpha + 1e-12) & (gain > 1e-12)
    for name, procedure in PROCEDURES.items():
        passed = procedure(breaks, gains)
        place = choose(passed, fixed, broken)
        false = (passed.reshape(samples, -1) & ~good[:-1]).any(axis=1)
        yield {
            "procedure": name,
            "items": items,
            "alpha": alpha,
            "samples": samples,
            "right": float(((place >= 0) & good[place]).mean()),
            "wrong": float(false.mean()),
            "gain in points": round(100 * float(np.where(place >= 0, gain[place], 0.0).mean()), 4),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--nulls", type=int, default=2000)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    known = powers()
    for alpha in (0.02, 0.05):
        for items in (200, 500, 1000):
            for name, population in known.items():
                for row in judge(population, items, alpha, options.samples):
                    rows.append({"population": name, **row})
        for name, population in nulls(alpha).items():
            for row in judge(population, 500, alpha, options.nulls):
                rows.append({"null": name, **row})
    summary = [summarised(name, rows) for name in PROCEDURES]
    RESULTS.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")
    for line in summary:
        print(json.dumps(line))


def summarised(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of a procedure over the populations, and its worst null."""
    mine = [row for row in rows if row["procedure"] == name]
    power = [row for row in mine if "population" in row]
    by = {p: [row["right"] for row in power if row["population"] == p] for p in powers_of(power)}
    return {
        "procedure": name,
        "right": round(float(np.mean([row["right"] for row in power])), 4),
        "gain in points": round(float(np.mean([row["gain in points"] for row in power])), 4),
        "worst null": max(row["wrong"] for row in mine),
        **{p: round(float(np.mean(shares)), 3) for p, shares in by.items()},
    }


def powers_of(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["population"] for row in rows))


if __name__ == "__main__":
    main()
