"""The promises of `lastword try`, and the true rates on items that it has not seen.

    OMP_NUM_THREADS=1 python experiments/promised.py MODEL DATA --keep FOLDER [--draws 200]

FOLDER has the data of `probes.py MODEL DATA --keep FOLDER` and `evidence.py jobs --runs FOLDER`:
states, and records of the model and its corrections with the prompt of `try`. Each set is a
population with known rates. From it 50, 100 and 200 labels are drawn. As in `try`, half of them fit
a probe, the other half tests it with two thirds of delta, and all of them test the corrections (the
stacked probe is left out). Batch calibration uses the mean of the whole set, without labels. The
table shows how often overrides are allowed, their true gain (over all draws, 0 without overrides),
and how often it is worse than promised, with Clopper-Pearson's interval. The rate of a correction
is that on the whole set, the rate of a probe that on all texts to which it was not fitted. Each set
has a null population: the same texts with labels permuted in each draw (or, if options differ by
item, with a right option drawn at random).

If options differ by item, the probe is a trajectory probe. A state probe is `fit_state`'s, but
its features are scaled by the whole set and not by the fitted half, so that one Gram matrix per
depth serves all draws; --check compares both.
The result goes to experiments/results/promised.json, its table to promised.md; existing results
are not computed again.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from probes import SETS, read, rows_of, sample_of
from scipy.stats import beta

from lastword.probes import fit_state
from lastword.probes.controls import features_of_cell
from lastword.probes.linear import PENALTIES
from lastword.probes.logit import Options
from lastword.probes.trajectory import fit_trajectory
from lastword.trust.certification import Sample
from lastword.trust.claims import Trial, judge
from lastword.trust.evidence import Evidence
from lastword.trust.policy import OFF, Policy, Promise, family, is_probe
from lastword.trust.terms import Terms

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = (50, 100, 200)
# The promises, and whether a probe is among the tested policies.
TERMS: dict[str, tuple[Promise, bool]] = {
    "gain": ("gain", True),
    "gain, corrections alone": ("gain", False),
    "breaks": ("breaks", True),
}
ALPHA = 0.05
PROBE = "probe"


@dataclass(frozen=True, eq=False)
class Population:
    """A set with the answers of its model and of every policy.

    Attributes:
        truths: Position of the right option [texts].
        options: Number of options of each text [texts].
        base: The model's answer [texts].
        shown: Answers of each policy, by terms [texts].
        shares: Shares of delta, by terms and policy.
        groups: Groups of the texts.
        reading: The data to which a probe is fitted.
    """

    truths: np.ndarray
    options: np.ndarray
    base: np.ndarray
    shown: dict[str, dict[Policy, np.ndarray]]
    shares: dict[str, dict[Policy, float]]
    groups: np.ndarray
    reading: "States | Trajectories"

    @classmethod
    def of(cls, path: Path, keep: Path, name: str) -> "Population":
        """Return the population of a set's records and states."""
        sample = sample_of(path, keep, name)
        shares = {
            name: family(sample.scalar, (*sample.methods, *[PROBE] * probe), promise)
            for name, (promise, probe) in TERMS.items()
        }

        def answers(policy: Policy) -> np.ndarray:
            return np.array([int(np.argmax(u)) for u in sample.shown(policy)[0]])

        scores, truths = sample.shown(OFF)
        options = np.array([len(u) for u in scores])
        one = len({json.dumps(row["choices"]) for row in rows_of(path)}) == 1
        return cls(
            truths=np.array(truths),
            options=options,
            base=answers(OFF),
            shown={
                p: {policy: answers(policy) for policy in shares[p] if not is_probe(policy.method)}
                for p in TERMS
            },
            shares=shares,
            groups=sample.items.groups,
            reading=States.of(path, keep, name, len(truths)) if one else Trajectories.of(sample),
        )

    def null(self, rng: np.random.Generator) -> np.ndarray:
        """Return truths that are independent of the texts."""
        if isinstance(self.reading, States):
            return rng.permutation(self.truths)
        return rng.integers(self.options)


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The features of a trajectory probe for each text, and the groups for its folds."""

    features: list[Options]
    groups: np.ndarray

    @classmethod
    def of(cls, sample: Sample) -> "Trajectories":
        """Return those of a sample's records."""
        return cls(features_of_cell(sample.cell, sample.cell.mc1_places), sample.items.groups)

    def predict(self, truths: np.ndarray, fit: np.ndarray) -> np.ndarray:
        """Return the answers to all texts of the probe fitted to some."""
        groups = [str(self.groups[i]) for i in fit]
        probe = fit_trajectory([self.features[i] for i in fit], truths[fit].tolist(), groups)
        return np.array([int(probe.scores(x).argmax()) for x in self.features])


@dataclass(frozen=True, eq=False)
class States:
    """The data of a state probe.

    Attributes:
        grams: Gram matrices of the scaled states of every depth and pooling [places, texts, texts].
        width: Width of a state.
    """

    grams: np.ndarray
    width: int

    @classmethod
    def of(cls, path: Path, keep: Path, name: str, count: int) -> "States":
        """Return those of a set's first texts."""
        x = read(None, path, keep, name)["x"][:count]
        x = x.reshape(count, -1, x.shape[-1]).swapaxes(0, 1)
        z = np.stack([_scaled(states.astype(np.float64)) for states in x]).astype(np.float32)
        return cls((z @ z.swapaxes(1, 2)).astype(np.float64), x.shape[-1])

    def predict(self, truths: np.ndarray, fit: np.ndarray) -> np.ndarray:
        """Return the answers to all texts of the probe fitted to some."""
        classes = np.unique(truths[fit])
        y = 2.0 * (truths[fit][:, None] == classes) - 1.0
        across = self.grams[:, :, fit]  # [places, texts, fit]
        inside = across[:, fit]
        rows, whole = inside.mean(axis=1), inside.mean(axis=(1, 2))
        centred = inside - rows[:, :, None] - rows[:, None, :] + whole[:, None, None]
        spread, turned = np.linalg.eigh(centred)
        spread = np.maximum(spread, 0.0)
        offset = y.mean(axis=0)
        along = turned.swapaxes(1, 2) @ (y - offset)
        best: tuple[float, Any] = (-1.0, None)
        penalties = PENALTIES * self.width
        shrunk = spread[:, None] / (spread[:, None] + penalties[:, None])  # [places, penalties, n]
        for place in range(len(inside)):
            v, w = turned[place], shrunk[place]
            smoothed = np.einsum("ij,pj,jc->pic", v, w, along[place]) + offset
            lever = np.einsum("ij,pj->pi", v**2, w) + 1 / len(fit)
            left = (y - smoothed) / (1 - lever)[:, :, None]
            chosen = int(np.square(left).mean(axis=(1, 2)).argmin())
            right = float(((y - left[chosen]).argmax(axis=1) == y.argmax(axis=1)).mean())
            if right > best[0]:
                best = right, (place, penalties[chosen])
        place, penalty = best[1]
        dual = turned[place] @ (along[place] / (spread[place] + penalty)[:, None])
        centred_rows = (
            across[place] - across[place].mean(axis=1)[:, None] - rows[place] + whole[place]
        )
        return np.asarray(classes[(centred_rows @ dual + offset).argmax(axis=1)])


def _scaled(x: np.ndarray) -> np.ndarray:
    """Return standardised features; deviations are at least a thousandth of the largest."""
    deviation = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0)) / np.maximum(deviation, deviation.max() / 1000 or 1.0))


def simulate(
    population: Population, labels: int, seed: int, null: bool
) -> dict[str, tuple[str, float, float, float, bool] | None]:
    """Return by terms the result of one draw: method, bound, gain on the rest, gain, worse.

    Args:
        population: Population from which labels are drawn.
        labels: Number of labels.
        seed: Seed of the draw.
        null: Whether the truths are permuted first.
    """
    rng = np.random.default_rng(seed)
    truths = population.null(rng) if null else population.truths
    some = rng.permutation(len(truths))[:labels]
    half = rng.permutation(np.unique(population.groups[some]))
    in_fit = np.isin(population.groups[some], half[: len(half) // 2])
    fit, test = some[in_fit], some[~in_fit]
    by_probe = population.reading.predict(truths, fit)
    base, unseen = population.base == truths, np.ones(len(truths), dtype=bool)
    unseen[fit] = False
    rest = np.ones(len(truths), dtype=bool)
    rest[some] = False
    results: dict[str, Any] = {}
    for name, (promise, _) in TERMS.items():
        methods = tuple(dict.fromkeys(policy.method for policy in population.shares[name]))
        terms = Terms(ALPHA, methods=methods, promise=promise)
        shown = {p: population.shown[name].get(p, by_probe) for p in population.shares[name]}
        trials = [
            Trial(
                policy,
                population.shares[name][policy],
                Evidence.of(
                    base[places],
                    answers[places] == truths[places],
                    population.groups[places],
                    answers[places] != population.base[places],
                ),
            )
            for policy, answers in shown.items()
            for places in [test if is_probe(policy.method) else some]
        ]
        finding = judge(trials, terms)
        if finding.chosen is None:
            results[name] = None
            continue
        policy = finding.policy
        right = shown[policy] == truths
        gains, all_of = (
            right.astype(int) - base,
            unseen if is_probe(policy.method) else slice(None),
        )
        least, gain = finding.worth["net_at_least"], float(gains[all_of].mean())
        broken = float((base & ~right)[all_of].mean())
        worse = gain <= 0 or gain < least or (promise == "breaks" and broken > ALPHA)
        results[name] = (policy.method, least, float(gains[rest].mean()), gain, worse)
    return results


def summary(rows: list[Any]) -> dict[str, Any]:
    """Return the summary of the draws of one cell, size and promise."""
    on = [row for row in rows if row is not None]
    worse, count = sum(row[4] for row in on), len(rows)
    low = float(beta.ppf(0.025, worse, count - worse + 1)) if worse else 0.0
    return {
        "draws": count,
        "on": len(on) / count,
        "methods": dict(Counter(row[0] for row in on).most_common()),
        "at least": 100 * float(np.mean([row[1] for row in on])) if on else None,
        "gain on the rest": 100 * sum(row[2] for row in on) / count,
        "true gain": 100 * sum(row[3] for row in on) / count,
        "worse": worse / count,
        "worse, 95%": [low, float(beta.ppf(0.975, worse + 1, count - worse))],
    }


def table(result: dict[str, Any]) -> Iterator[str]:
    """Yield lines of Markdown."""
    yield "| model, set | labels | terms | on | what | at least | true gain | worse, 95% |"
    yield "|---|--:|---|--:|---|--:|--:|--:|"
    for name, cell in result.items():
        for kind, by_size in cell["drawn"].items():
            for labels, by_promise in sorted(by_size.items(), key=lambda size: int(size[0])):
                for promise, figures in by_promise.items():
                    low, high = (100 * value for value in figures["worse, 95%"])
                    least = "–" if figures["at least"] is None else f"{figures['at least']:+.1f}"
                    first = [*figures["methods"].items()][:2]
                    what = ", ".join(f"{m} {n}" for m, n in first) or "–"
                    yield (
                        f"| {name}{kind} | {labels} | {promise} | {figures['on']:.0%} | {what} | "
                        f"{least} | {figures['true gain']:+.1f} | {figures['worse']:.1%} "
                        f"[{low:.1f}, {high:.1f}] |"
                    )


def check(population: Population, path: Path, keep: Path, name: str) -> str:
    """Compare the Gram matrices' probe and `fit_state`'s on the same ten draws of 50 texts."""
    data, shares = read(None, path, keep, name), []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(population.truths))
        fit, test = order[:50], order[50:]
        ours = population.reading.predict(population.truths, fit)[test] == population.truths[test]
        probe = fit_state(data["x"][fit], data["y"][fit].tolist()).probe
        rows = data["x"][test][
            :, probe.blocks[0].layer, ("mean", "last").index(probe.blocks[0].pooling)
        ]
        best = np.array(probe.classes)[probe.scores(rows).argmax(axis=1)]
        shares.append((ours.mean(), (best == data["y"][test]).mean()))
    ours, theirs = 100 * np.mean(shares, axis=0)
    return f"{path.stem}: {ours:.1f}% right, fit_state {theirs:.1f}%"


def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of states and records")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--labels", nargs="+", type=int, default=SIZES)
    parser.add_argument("--check", action="store_true", help="compare the two ways to fit")
    options = parser.parse_args()
    name, out = Path(options.model).name.removesuffix(".gguf"), RESULTS / "promised.json"
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for each in options.sets:
        path = options.data / f"{each}.jsonl"
        population = Population.of(path, options.keep, name)
        if options.check:
            print(check(population, path, options.keep, name), flush=True)
            continue
        cell = result.setdefault(
            f"{name}, {each}",
            {
                "texts": len(population.truths),
                "base": float((population.base == population.truths).mean()),
                "drawn": {"": {}, ", labels permuted": {}},
            },
        )
        for labels in options.labels:
            for kind, by_size in cell["drawn"].items():
                if str(labels) in by_size:
                    continue
                draws = [
                    simulate(population, labels, seed, bool(kind)) for seed in range(options.draws)
                ]
                by_size[str(labels)] = {p: summary([d[p] for d in draws]) for p in TERMS}
                out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                lines = "\n".join(table(result)) + "\n"
                out.with_suffix(".md").write_text(lines, encoding="utf-8")
                print(each, kind, labels, flush=True)


if __name__ == "__main__":
    main()
