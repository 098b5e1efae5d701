"""Which procedure over methods and policies certifies a good choice most often? (dev/LOG.md)

    python experiments/choice.py [--samples 200] [--nulls 1000]
    python experiments/choice.py halves [--samples 400] [--nulls 1000]

Counts of every chain are drawn from known rates. The result is kept in
experiments/results/choice.json. `halves` asks whether half of the labels should be held out: a
policy chosen on the one half and tested alone on the other, beside the whole family tested on all
labels as `certify` does (experiments/results/halves.json).
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from lastword.trust.certify import choose
from lastword.trust.policy import MARGINS
from lastword.trust.testing import graphical, lattice

RESULTS = Path(__file__).parent / "results"
DELTA = 0.05
AT = list(reversed(MARGINS))  # margins of a chain, from the largest
CHAINS = (
    *("decisive", "scalar", "trace", "trace-gated"),
    *("pmi@0.25", "pmi@0.5", "pmi@1", "contextual", "batch-calibrated"),
)
Rates = tuple[np.ndarray, np.ndarray]  # fixed and broken at each margin, from the largest [margins]
Population = Mapping[str, Rates]


def holms(p: np.ndarray) -> np.ndarray:
    """Holm over all policies [samples, policies]."""
    order = np.argsort(p, axis=1)
    level = DELTA / np.arange(p.shape[1], 0, -1)
    falls = np.logical_and.accumulate(np.take_along_axis(p, order, 1) <= level, axis=1)
    passed = np.zeros(p.shape, dtype=bool)
    np.put_along_axis(passed, order, falls, 1)
    return passed


def started(*margins: float) -> Callable[[np.ndarray], np.ndarray]:
    """The graph whose shares start at these margins of each chain."""
    weights, edges = lattice([AT.index(m) for m in margins], len(CHAINS), len(AT))
    return lambda p: graphical(p, weights, edges, DELTA)


PROCEDURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Holm": holms,
    "graph-1": started(0.0),
    "graph-2": started(0.0, 1.0),
    "graph-4": started(0.25, 1.0, 2.0, 3.0),
    "graph-8": started(*MARGINS),
}


def even(fixed: float, broken: float) -> Rates:
    """Percent of all items, spread evenly over the margins."""
    count = len(MARGINS)
    return np.full(count, fixed / count / 100), np.full(count, broken / count / 100)


def of(rest: tuple[float, float], **chains: Rates) -> Population:
    """Every chain as it is given, by names in which `@` is `_`, and the others like the rest."""
    named = {name.replace("_", "@", 1).replace("_", "."): rates for name, rates in chains.items()}
    return {chain: named.get(chain, even(*rest)) for chain in CHAINS}


def powers() -> dict[str, Population]:
    """Populations in which something should be let through."""
    batch, gated = "batch-calibrated", "pmi@1"
    sure = np.array([m >= 2 for m in AT])
    parts = [
        np.where(sure, a / sure.sum(), b / (~sure).sum()) / 100 for a, b in ((6, 20), (0.3, 15))
    ]
    return {
        "tool choice": {
            **of((1, 1), pmi_1=even(37, 1.5), pmi_0_5=even(22, 1), pmi_0_25=even(10, 0.7)),
            **{batch: even(25, 1.5), "contextual": even(20, 2)},
        },
        "topics": {**of((3, 3), pmi_0_5=even(18, 3), pmi_1=even(12, 14)), batch: even(14, 3)},
        "one alone": {**of((3, 6)), batch: even(20, 2)},
        "sure alone": {**of((3, 4), pmi_0_5=even(10, 9)), gated: (parts[0], parts[1])},
        "weak": of((2, 2), pmi_0_5=even(6, 1.5)),
        "trace": of((2, 4), decisive=even(6, 0.5), trace=even(6, 0.5)),
    }


def nulls(alpha: float) -> dict[str, Population]:
    """Populations in which every policy has to stay out, or all that matter."""
    percent = 100 * alpha
    idle = even(percent / 2, percent / 2)
    last = np.zeros(len(AT))
    last[0] = 1.02 * alpha  # at the largest margin: every policy breaks as much
    breaks = (even(30, 0)[0], last)
    return {
        "breaks 1.02 alpha, gains": dict.fromkeys(CHAINS, breaks),
        "few breaks, no gain": dict.fromkeys(CHAINS, idle),
        "half and half": {c: breaks if i % 2 else idle for i, c in enumerate(CHAINS)},
    }


def drawn(
    population: Population, items: int, samples: int, seed: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """F and K of every policy in many samples [samples, chains, margins]."""
    rng = np.random.default_rng(seed)
    both = []
    for fixed, broken in (population[chain] for chain in CHAINS):
        shares = np.concatenate([fixed, broken])
        counts = rng.multinomial(items, [*shares, 1 - shares.sum()], samples)
        both.append(np.split(counts[:, :-1], 2, axis=1))
    told = np.cumsum(np.array(both), axis=-1)  # [chains, 2, samples, margins]
    return told[:, 0].swapaxes(0, 1), told[:, 1].swapaxes(0, 1)


def judge(population: Population, items: int, alpha: float, samples: int) -> Iterator[Any]:
    """What each procedure lets through: how often right, how often wrong, and its true gain."""
    fixed, broken = drawn(population, items, samples)
    p = p_values(fixed, broken, items, alpha)
    good, gain = truth(population, alpha)
    for name, procedure in PROCEDURES.items():
        passed = procedure(p.reshape(samples, -1)).reshape(p.shape)
        place = choose(passed, fixed, broken)
        yield {
            "procedure": name,
            "items": items,
            "alpha": alpha,
            "samples": samples,
            "right": float(((place >= 0) & good[place]).mean()),
            "wrong": float((passed.reshape(samples, -1) & ~good).any(axis=1).mean()),
            "gain in points": round(100 * float(np.where(place >= 0, gain[place], 0).mean()), 4),
        }


def p_values(fixed: np.ndarray, broken: np.ndarray, items: int, alpha: float) -> np.ndarray:
    """Of breaks and of a gain, the larger."""
    p: np.ndarray = np.maximum(
        binom.cdf(broken, items, alpha), binom.cdf(broken, fixed + broken, 0.5)
    )
    return p


def truth(population: Population, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether each policy may be let through, and its true gain [policies]."""
    truly = np.array([np.cumsum(population[chain], axis=1) for chain in CHAINS])
    rates, gain = truly[:, 1].ravel(), (truly[:, 0] - truly[:, 1]).ravel()
    return (rates <= alpha + 1e-12) & (gain > 1e-12), gain


def held_out(population: Population, items: int, alpha: float, samples: int) -> np.ndarray:
    """The policy that is chosen on half of the labels and passes on the others; -1 for none."""
    half = items // 2
    fixed, broken = drawn(population, half, samples, 12)
    p = p_values(fixed, broken, half, alpha).reshape(samples, -1)
    worth = (fixed - broken).reshape(samples, -1)
    passes = p <= DELTA
    best = np.where(passes, worth, worth.min() - 1).argmax(axis=1)
    chosen = np.where(passes.any(axis=1), best, p.argmin(axis=1))
    others = p_values(*drawn(population, half, samples, 13), half, alpha).reshape(samples, -1)
    tested = np.take_along_axis(others, chosen[:, None], 1)[:, 0]
    return np.where(tested <= DELTA, chosen, -1)


def on_all(population: Population, items: int, alpha: float, samples: int) -> np.ndarray:
    """The policy that `certify`'s procedure chooses by all labels; -1 for none."""
    fixed, broken = drawn(population, items, samples)
    p = p_values(fixed, broken, items, alpha)
    passed = PROCEDURES["graph-8"](p.reshape(samples, -1)).reshape(p.shape)
    return np.asarray(choose(passed, fixed, broken))


WAYS = {"all": on_all, "halves": held_out}


def compare_halves(samples: int, nulls_drawn: int) -> dict[str, Any]:
    """Both ways over the populations: how often right, how often wrong, and the true gain."""
    rows = []
    for alpha in (0.05, 0.1):
        asked = [
            (n, kind, p, samples) for n in (100, 200, 300, 500) for kind, p in powers().items()
        ]
        asked += [(200, f"null: {kind}", p, nulls_drawn) for kind, p in nulls(alpha).items()]
        for items, kind, population, count in asked:
            good, gain = truth(population, alpha)
            for way, choice in WAYS.items():
                place = choice(population, items, alpha, count)
                through = place >= 0
                share = float((through & good[place]).mean())
                worth = 100 * float(np.where(through, gain[place], 0).mean())
                rows.append(
                    {"way": way, "population": kind, "items": items, "alpha": alpha}
                    | {"right": share, "wrong": float((through & ~good[place]).mean())}
                    | {"gain in points": round(worth, 4)}
                )
    return {"summary": [_mean(way, rows) for way in WAYS], "rows": rows}


def _mean(way: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [row for row in rows if row["way"] == way]
    power = [row for row in mine if not row["population"].startswith("null")]
    by = {n: [r["right"] for r in power if r["items"] == n] for n in (100, 200, 300, 500)}
    return {
        "way": way,
        "right": round(float(np.mean([row["right"] for row in power])), 4),
        "gain in points": round(float(np.mean([row["gain in points"] for row in power])), 4),
        "worst null": max(row["wrong"] for row in mine if row["population"].startswith("null")),
        **{f"right of {n}": round(float(np.mean(shares)), 4) for n, shares in by.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["procedures", "halves"], default="procedures")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--nulls", type=int, default=1000)
    options = parser.parse_args()
    halves = options.what == "halves"
    samples = options.samples or (400 if halves else 200)
    told = compare_halves(samples, options.nulls) if halves else procedures(samples, options.nulls)
    name = "halves" if halves else "choice"
    (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    for line in told["summary"]:
        print(json.dumps(line))


def procedures(samples: int, nulls_drawn: int) -> dict[str, Any]:
    """Every procedure over the populations."""
    rows: list[dict[str, Any]] = []
    for alpha in (0.05, 0.1):
        for items in (100, 200, 500):
            for name, population in powers().items():
                for row in judge(population, items, alpha, samples):
                    rows.append({"population": name, **row})
        for name, population in nulls(alpha).items():
            for row in judge(population, 200, alpha, nulls_drawn):
                rows.append({"null": name, **row})
    return {"summary": [summarised(name, rows) for name in PROCEDURES], "rows": rows}


def summarised(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of a procedure over the populations, and its worst null."""
    mine = [row for row in rows if row["procedure"] == name]
    power = [row for row in mine if "population" in row]
    known = dict.fromkeys(row["population"] for row in power)
    by = {p: [row["right"] for row in power if row["population"] == p] for p in known}
    return {
        "procedure": name,
        "right": round(float(np.mean([row["right"] for row in power])), 4),
        "gain in points": round(float(np.mean([row["gain in points"] for row in power])), 4),
        "worst null": max(row["wrong"] for row in mine if "null" in row),
        **{p: round(float(np.mean(shares)), 3) for p, shares in by.items()},
    }


if __name__ == "__main__":
    main()
