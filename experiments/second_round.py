"""What a second round proves, and how often that is wrong (section 20).

    OMP_NUM_THREADS=1 python experiments/second_round.py --keep FOLDER [--real MODEL DATA]

Three procedures get the same number of labels, 60, 100 or 200. *Split*: half of them make a probe,
the other half tests it by the sign test. *Policy*: the same halves, with the probe's threshold and
the unconditional test (section 17). *Second round*: three fifths are drawn at random and all of
them make the policy; the rest are drawn where policy and model differ, and are tested at delta/2,
the level of a first look. *One look* is the second round tested at delta. A promise is *wrong* if
the true gain, counted on all texts of groups that the policy was not fitted to, is not above 0 or
is below the bound.

Populations are synthetic (1,000 texts; Gaussian states or short bags of words; classes even or
rare; texts alone or in groups of five, with and without their groups declared; labels that tell or
are permuted). The model is right at random or leans to one class, as often as a pilot of 20 probes
less 0, 1 or 3 points. With --real they are sets of DATA as MODEL reads them, every fifth depth,
mean pooling; each also with its labels permuted. The result goes to results/second_round.json,
cell by cell; cells that are there are not run again. States are kept in FOLDER.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from probes import SETS, question, read, rows_of

from lastword import Tracer
from lastword.decide.item import item_of
from lastword.decide.questionnaire import prepare
from lastword.probes import fit_state
from lastword.probes.state import LinearProbe, can_fit
from lastword.probes.threshold import answers_by_itself, choose_threshold, of_options
from lastword.trust.claims import Trial, judge
from lastword.trust.evidence import Evidence
from lastword.trust.policy import Policy
from lastword.trust.second_round import DrawnRows, deal
from lastword.trust.terms import Terms
from lastword.trust.testing import clopper_pearson

OUT = Path(__file__).resolve().parent / "results" / "second_round.json"
TEXTS, PILOTS, SIZES, DELTA = 1000, 20, (100, 60, 200), 0.05
EVEN, RARE = (0.4, 0.35, 0.25), (0.9, 0.05, 0.05)
MANY_OPTIONS = ("banking77", "clinc150")
PROCEDURES = ("split", "policy", "second round", "one look")
Draw = dict[str, tuple[bool, float, bool]]


@dataclass(frozen=True, eq=False)
class Population:
    """Texts whose true labels are known.

    Attributes:
        x: States [texts, depths, 1, width].
        truths: Place of the right option [texts].
        base: Place of the model's answer [texts].
        groups: As they are declared [texts].
        true_groups: As they are [texts].
    """

    x: np.ndarray
    truths: np.ndarray
    base: np.ndarray
    groups: np.ndarray
    true_groups: np.ndarray

    def policy(self, places: np.ndarray, *, held: bool) -> np.ndarray:
        """Return what a probe of some labels answers to every text, with its threshold or not."""
        options = [str(i) for i in range(int(max(self.truths.max(), self.base.max())) + 1)]
        labels = [str(i) for i in self.truths.tolist()]
        fitted = places.tolist()
        if not can_fit([labels[i] for i in fitted]):
            return self.base
        fit = fit_state(
            self.x[fitted],
            [labels[i] for i in fitted],
            layers=range(self.x.shape[1]),
            poolings=("mean",),
        )
        scores = of_options(self.scores(fit.probe), fit.probe.classes, options)
        if not held:
            return scores.argmax(axis=1)
        leave_one_out = of_options(fit.scores, fit.probe.classes, options)
        threshold = choose_threshold(leave_one_out, self.base[fitted], self.truths[fitted])
        stands = answers_by_itself(scores, self.base, threshold)
        return np.where(stands, scores.argmax(axis=1), self.base)

    def scores(self, probe: LinearProbe) -> np.ndarray:
        """Return the classes' scores of every text."""
        return probe.scores(self.x[:, probe.blocks[0].layer, 0].astype(np.float64))

    def gain(self, answers: np.ndarray, fitted: np.ndarray) -> float:
        """Return the true gain of answers, on texts of groups that they were not fitted to.

        The texts that tested them count: to leave them out would turn luck in the test into bad
        luck in the rest.
        """
        rest = ~np.isin(self.true_groups, self.true_groups[fitted])
        right = (answers == self.truths).astype(float) - (self.base == self.truths)
        return float(right[rest].mean()) if rest.any() else 0.0


def by_split(population: Population, labels: int, rng: np.random.Generator, *, held: bool) -> Any:
    """Certify a probe of half of the labels on the other half."""
    names = rng.permutation(np.unique(population.groups))
    names = names[: labels * len(names) // len(population.groups)]
    fit, test = (np.flatnonzero(np.isin(population.groups, names[i::2])) for i in (0, 1))
    answers = population.policy(fit, held=held)
    model, right = (a[test] == population.truths[test] for a in (population.base, answers))
    # The unconditional test belongs to the name of a probe; other methods have the sign test.
    name = "probe" if held else "pooled"
    terms = Terms(delta=DELTA, methods=(name,), promise="gain")
    evidence = Evidence.of(model, right, population.groups[test])
    finding = judge([Trial(Policy((name,), 0.0, name), 1.0, evidence)], terms)
    bound = finding.worth["net_at_least"] if finding.chosen else 0.0
    return finding.chosen is not None, bound, population.gain(answers, fit)


def by_rounds(population: Population, labels: int, rng: np.random.Generator) -> Iterator[Any]:
    """Certify a policy of three fifths of the labels where it differs, at delta/2 and delta."""
    order = deal(population.groups, int(rng.integers(2**31)))
    first = 3 * labels // 5
    answers = population.policy(order[:first], held=True)
    pool = order[first:]
    differ = pool[answers[pool] != population.base[pool]]
    rows = differ[: labels - first]
    if not len(rows):
        yield from [(False, 0.0, 0.0)] * 2
        return
    right, model = (a[rows] == population.truths[rows] for a in (answers, population.base))
    counts = int((right & ~model).sum()), int((model & ~right).sum())
    drawn = DrawnRows(len(pool), len(differ), len(rows), *counts)
    gain = population.gain(answers, order[:first])
    for delta in (DELTA, 2 * DELTA):
        proven = drawn.proves("gain", 1.0, delta)
        yield proven, drawn.gain_bound(drawn.level(delta)) if proven else 0.0, gain


def drawn(population: Population, labels: int, seed: int) -> Draw:
    """Return of each procedure: is it on, the true gain then, is that worse than promised."""
    split, policy = (
        by_split(population, labels, np.random.default_rng(seed), held=held)
        for held in (False, True)
    )
    rounds = by_rounds(population, labels, np.random.default_rng(seed))
    results = zip(PROCEDURES, (split, policy, *rounds), strict=True)
    return {
        name: (on, gain * on, on and (gain <= 0 or gain < bound))
        for name, (on, bound, gain) in results
    }


def summed(draws: list[Draw]) -> dict[str, Any]:
    """Return how often a procedure is on, what it gains, and how often it is wrong."""
    cell = {}
    for name in PROCEDURES:
        on, gain, worse = np.array([draw[name] for draw in draws], dtype=float).T
        ends = clopper_pearson(int(worse.sum()), len(draws), 0.025)
        shares = {"on": on, "gain": gain, "wrong": worse}
        cell[name] = {n: float(v.mean()) for n, v in shares.items()} | {"95%": ends}
    return cell


def synthetic(*, words: bool, shares: tuple[float, ...], size: int, tells: bool) -> tuple[Any, ...]:
    """Return states, truths and groups of a population."""
    rng = np.random.default_rng(0)
    groups = np.arange(TEXTS) // size
    truths = rng.choice(len(shares), TEXTS // size + 1, p=shares)[groups]
    visible = truths if tells else rng.permutation(truths)
    if words:
        p = 1 / np.arange(1, 301) * rng.lognormal(0, 1.0, (len(shares), 300))
        p /= p.sum(axis=1, keepdims=True)
        x = np.stack([rng.multinomial(8, p[c]) for c in visible]).astype(float)
    else:
        x = rng.normal(0, 0.45, (len(shares), 24))[visible] + rng.normal(size=(TEXTS, 24))
        x += rng.normal(size=(TEXTS // size + 1, 24))[groups] * (size > 1)
    return x[:, None, None], truths, groups


def answering(right: float, *, leans: bool, truths: np.ndarray) -> np.ndarray:
    """Return answers that are right so often: at random, or else the most frequent class."""
    rng = np.random.default_rng(1)
    other = (truths + rng.integers(1, truths.max() + 1, len(truths))) % (truths.max() + 1)
    if leans:
        often = np.bincount(truths).argmax()
        right, other = max(0.0, 1 - (1 - right) / (truths != often).mean()), often
    return np.where(rng.random(len(truths)) < right, truths, other)


def nulls(labels: int) -> Iterator[tuple[str, Population]]:
    """Yield the synthetic populations by name, the model's answers set for so many labels."""
    kinds = [(EVEN, 1, True), (RARE, 1, True), (EVEN, 5, True), (EVEN, 1, False)]
    for words, (shares, size, tells) in product((False, True), kinds):
        x, truths, groups = synthetic(words=words, shares=shares, size=size, tells=tells)
        rng = np.random.default_rng(2)
        whole = Population(x, truths, truths, groups, groups)
        some = [
            deal(groups, int(seed))[: 3 * labels // 5] for seed in rng.integers(2**31, size=PILOTS)
        ]
        pilot = np.mean([(whole.policy(s, held=False) == truths).mean() for s in some])
        gains = (0, 1, 3) if tells else (0, 1)
        for leans, gain, declare in product((False, True), gains, (True, False)[: 1 + (size > 1)]):
            parts = ["words" if words else "Gaussian", "rare" if shares == RARE else "even"]
            parts += ["fives" if declare else "fives, not declared"] if size > 1 else []
            parts += [] if tells else ["permuted"]
            parts += ["leans" if leans else "at random", f"{gain:+d}"]
            base = answering(pilot - gain / 100, leans=leans, truths=truths)
            declared = groups if declare else np.arange(TEXTS)
            yield ", ".join(parts), Population(x, truths, base, declared, groups)


def model_answers(tracer: Tracer, path: Path, stored: Path) -> dict[str, np.ndarray]:
    """Return the options of a set, and the place of the model's answer to each text."""
    if not stored.exists():
        rows = rows_of(path)
        prepared = prepare({"q": question(rows[0])})
        items = [item_of(row["input"], prepared.questions["q"], prepared.template) for row in rows]
        decisions = [*tracer.correct_many(items, read="base", blind="none")]
        np.savez(
            stored, options=list(decisions[0].candidates), base=[d.base_index for d in decisions]
        )
    return dict(np.load(stored))


def real(model: str, data: Path, keep: Path) -> Iterator[tuple[str, Population]]:
    """Yield the real populations, as they are and with their labels permuted."""
    name, tracer = Path(model).name.removesuffix(".gguf"), Tracer.from_pretrained(model)
    for each in (*SETS, *MANY_OPTIONS):
        path = data / f"{each}.jsonl"
        states = read(tracer, path, keep, name)
        answers = model_answers(tracer, path, keep / f"{name}-{each}-base.npz")
        options = answers["options"].tolist()
        truths = np.array([options.index(truth) for truth in states["y"].tolist()])
        x, base, alone = states["x"][:, ::5, :1], answers["base"], np.arange(len(truths))
        yield f"{name}, {each}", Population(x, truths, base, alone, alone)
        mixed = np.random.default_rng(0).permutation(truths)
        yield f"{name}, {each}, permuted", Population(x, mixed, base, alone, alone)


def table(result: dict[str, Any]) -> str:
    """Return the Markdown table of all cells: on, true gain and wrong, in percent."""
    lines = [f"| population | draws | {' | '.join(PROCEDURES)} |", "|---|--:|--:|--:|--:|--:|"]
    for name, cell in result.items():
        each = [100 * np.array([cell[p][n] for n in ("on", "gain", "wrong")]) for p in PROCEDURES]
        cells = [f"{on:.0f}, {gain:+.1f}, {wrong:.0f}" for on, gain, wrong in each]
        lines.append(f"| {name} | {cell['draws']} | {' | '.join(cells)} |")
    note = "Each cell: proven, mean true gain (0 if not proven) and promise wrong, in percent."
    return "\n".join([*lines, "", note, ""])


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--real", nargs=2, metavar=("MODEL", "DATA"), help="real sets instead")
    options = parser.parse_args()
    for labels in SIZES:
        populations = (
            real(options.real[0], Path(options.real[1]), options.keep)
            if options.real
            else nulls(labels)
        )
        for name, population in populations:
            result = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
            if (cell := f"{name}, {labels} labels") in result:
                continue
            draws = [drawn(population, labels, seed) for seed in range(options.draws)]
            result = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
            result[cell] = {"draws": len(draws)} | summed(draws)
            OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            OUT.with_suffix(".md").write_text(table(result), encoding="utf-8")
            print(cell, result[cell], flush=True)


if __name__ == "__main__":
    main()
