"""Does a probe of all labels keep what cross-fitting promises of it?

    OMP_NUM_THREADS=1 python experiments/cross.py DATA --keep FOLDER [--draws 200] [--real]

The study that `lastword try --cross` rests on. A draw takes 50 or 100 labels of a population; a
probe without a tenth of them answers that tenth, ten times, and the sign test on all of these
answers promises a gain, with all of delta. What runs then is the probe of all labels: its true gain
is counted on the texts that were not drawn. The promise is *wrong* where that gain is not above 0,
or is below the bound. Beside it stands what `try` does: one half fits, the other tests.

Populations are synthetic (1,000 texts, two views of a state; Gaussian, or short bags of words),
and with --real those of `promised.py` (FOLDER is as it has it; every sixth depth, 100 labels). The
model's own answer is right at random, or leans to one class; how often it is right is set by a
pilot of 20 fits, so that the probe gains 0, 1 or 3 points on average. Classes are even or rare,
texts are alone or in groups of five, labels tell or are permuted.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from probes import SETS, asked_of
from promised import RESULTS, States, _scaled
from scipy.stats import beta

from lastword.trust.certify import Claim, judge
from lastword.trust.policy import OFF, Policy
from lastword.trust.terms import Terms

TERMS = Terms(methods=("probe",), promise="gain")  # delta = 5%
FOLDS, TEXTS, PILOTS = 10, 1000, 20
GAINS, SIZES = (0, 1, 3), (50, 100)
EVEN, RARE = (0.4, 0.35, 0.25), (0.9, 0.05, 0.05)
Drawn = dict[str, tuple[bool, float, bool]]


def synthetic(words: bool, shares: tuple[float, ...], size: int, tells: bool) -> tuple[Any, ...]:
    """Return what fits a probe, the truths and the groups of a population."""
    rng = np.random.default_rng(0)
    groups = np.arange(TEXTS) // size
    truths = rng.choice(len(shares), TEXTS // size + 1, p=shares)[groups]
    seen = truths if tells else rng.permutation(truths)
    if words:
        p = 1 / np.arange(1, 301) * rng.lognormal(0, 1.0, (len(shares), 300))
        p /= p.sum(axis=1, keepdims=True)
        own = np.stack([rng.multinomial(8, p[c]) for c in seen]).astype(float)
        views = [own, own > 0]
    else:
        centre = rng.normal(0, 0.45, (len(shares), 24))[seen]
        own = centre + rng.normal(size=(TEXTS // size + 1, 24))[groups] * (size > 1)
        views = [own + rng.normal(0, noise, own.shape) for noise in (1.0, 1.5)]
    z = np.stack([_scaled(np.asarray(v, float)) for v in views])
    return States(z @ z.swapaxes(1, 2), z.shape[-1]), truths, groups


def answering(right: float, leans: bool, truths: np.ndarray) -> np.ndarray:
    """Return answers that are right so often: at random, or else the most frequent class."""
    rng = np.random.default_rng(1)
    other = (truths + rng.integers(1, truths.max() + 1, len(truths))) % (truths.max() + 1)
    if leans:
        often = np.bincount(truths).argmax()
        right, other = max(0.0, 1 - (1 - right) / (truths != often).mean()), often
    return np.where(rng.random(len(truths)) < right, truths, other)


def sampled(groups: np.ndarray, labels: int, rng: np.random.Generator) -> np.ndarray:
    """Return the places of about so many labels, in whole groups."""
    names = rng.permutation(np.unique(groups))
    return np.flatnonzero(np.isin(groups, names[: labels * len(names) // len(groups)]))


def drawn(own: tuple[Any, ...], base: np.ndarray, labels: int, seed: int) -> Drawn:
    """Return of both procedures: whether it is on, the true gain then, whether that is worse."""
    (reading, truths, groups), rng = own, np.random.default_rng(seed)
    some = sampled(groups, labels, rng)
    names = rng.permutation(np.unique(groups[some]))
    fold = np.array([np.flatnonzero(names == g)[0] % FOLDS for g in groups[some]])
    crossed = np.empty(len(some), dtype=truths.dtype)
    for k in range(FOLDS):
        crossed[fold == k] = reading.probed(truths, some[fold != k])[some[fold == k]]
    fit, test = some[fold % 2 == 0], some[fold % 2 == 1]
    whole, half = reading.probed(truths, some), reading.probed(truths, fit)
    told: Drawn = {}
    for name, answers, places, runs, made in (
        ("cross", crossed, some, whole, some),
        ("halves", half[test], test, half, fit),
    ):
        right, shown = base[places] == truths[places], answers == truths[places]
        claim = Claim(Policy(("probe",), 0.0, "probe"), 1.0, right, shown, groups[places])
        finding = judge([claim], TERMS)
        rest = np.setdiff1d(np.arange(len(truths)), made)
        gain = float(((runs == truths).astype(float) - (base == truths))[rest].mean())
        on = finding.chosen is not None
        worse = on and (gain <= 0 or gain < finding.worth["net_at_least"])
        told[name] = on, gain * on, worse
    return told


def summed(draws: list[Drawn]) -> dict[str, Any]:
    """Return how often a procedure is on, what it gains, and how often it is wrong."""
    cell = {}
    for name in ("cross", "halves"):
        on, gain, worse = np.array([own[name] for own in draws], dtype=float).T
        k, n = int(worse.sum()), len(draws)
        low = float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0
        ends = low, float(beta.ppf(0.975, k + 1, n - k))
        cell[name] = {"on": on.mean(), "gain": gain.mean(), "wrong": k / n, "95%": ends}
    return cell


def populations(labels: int) -> Any:
    """Yield the synthetic populations by name, the model's answers set for so many labels."""
    kinds = [(EVEN, 1, True), (RARE, 1, True), (EVEN, 5, True), (EVEN, 1, False)]
    for words, (shares, size, tells) in product((False, True), kinds):
        own = synthetic(words, shares, size, tells)
        (reading, truths, groups), rng = own, np.random.default_rng(2)
        some = [sampled(groups, labels, rng) for _ in range(PILOTS)]
        pilot = np.mean([(reading.probed(truths, s) == truths).mean() for s in some])
        for leans, gain in product((False, True), GAINS if tells else GAINS[:2]):
            parts = (
                "words" if words else "Gaussian",
                "rare" if shares == RARE else "even",
                *["fives"] * (size > 1),
                *["permuted"] * (not tells),
                "leans" if leans else "at random",
                f"{gain:+d}",
            )
            yield ", ".join(parts), own, answering(pilot - gain / 100, leans, truths)


def real(data: Path, keep: Path) -> Any:
    """Yield the real populations, as they are and with their labels permuted."""
    for name, each in product(("smollm2-135m", "gemma", "qwen"), SETS):
        scores, places = asked_of(data / f"{each}.jsonl", keep, name).shown(OFF)
        base, truths = np.array([int(np.argmax(u)) for u in scores]), np.array(places)
        reading = States.of(data / f"{each}.jsonl", keep, name, len(truths))
        reading = States(reading.grams[::12], reading.width)  # every sixth depth, one pooling
        groups = np.arange(len(truths))
        yield f"{name}, {each}", (reading, truths, groups), base
        if name == "smollm2-135m":
            mixed = np.random.default_rng(0).permutation(truths)
            yield f"{name}, {each}, permuted", (reading, mixed, groups), base


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of states and records")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--real", action="store_true", help="real populations, in place of others")
    asked = parser.parse_args()
    out = RESULTS / ("cross-real.json" if asked.real else "cross.json")
    result: dict[str, Any] = {}
    for labels in (100,) if asked.real else SIZES:
        for name, own, base in real(asked.data, asked.keep) if asked.real else populations(labels):
            draws = [drawn(own, base, labels, seed) for seed in range(asked.draws)]
            result[f"{name}, {labels} labels"] = summed(draws)
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(name, labels, result[f"{name}, {labels} labels"]["cross"], flush=True)


if __name__ == "__main__":
    main()
