"""Which share of texts can be answered at which error, proven by few labels.

    OMP_NUM_THREADS=1 python experiments/automation.py DATA --keep FOLDER [--draws 40]
    OMP_NUM_THREADS=1 python experiments/automation.py --populations 50

DATA is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`. FOLDER has the
states of every text of a set, SOURCE-SET.npy [texts, depths, ..., width], for the sources mpnet
and smollm2 (mean pooling). A draw shuffles a set: half of N labels fit a probe, the others
prove a share by a ladder (method, section 23). Without DATA, the ladder runs on populations whose
true error is known at every confidence. The study is described in dev/LOG.md (*Automation*). It
goes on where it was stopped; draws go to experiments/results/automation.json, which is too large
to be committed, and the tables to automation.md.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from probes import rows_of
from scipy.special import softmax

from lastword.probes import fit_state
from lastword.probes.state import fit_beside
from lastword.trust.automation import Automation, curve, estimate, plan, rungs, until_failure
from lastword.trust.second_round import deal

RESULTS = Path(__file__).resolve().parent / "results"
SETS = ("trec", "sst2", "agnews", "emotion", "banking77", "clinc150")
SOURCES = ("mpnet", "smollm2", "both")  # both: smollm2 beside mpnet
LABELS, ERRORS, DELTA = (150, 200, 300, 400), (0.05, 0.1, 0.2), 0.05
METHODS = ("ladder", "half")
DRAWS_OF_POPULATION, TRUE = 200, 100_000

Row = dict[str, Any]


def depths_of(source: str, states: np.ndarray) -> np.ndarray:
    """Return the states that are read [texts, depths, 1, width]: an encoder's last, or all."""
    if source == "smollm2":
        return states.reshape(len(states), -1, 1, states.shape[-1])
    return states[:, -1:, None]


def answers(
    source: str, states: dict[str, np.ndarray], y: np.ndarray, fit: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fit a probe; return its leave-one-out confidence and errors, and those of every text."""
    labels = y[fit].tolist()
    names = ("smollm2", "mpnet") if source == "both" else (source,)
    fits, rows = [], []
    for name in names:
        x = states[name]
        encoder = "" if name == "smollm2" else name
        fits.append(fit_state(x[fit], labels, poolings=("mean",), encoder=encoder))
        depth = fits[-1].probe.blocks[0].layer
        rows.append(x[:, depth, 0].astype(np.float64))
    one, read = fits[0], rows[0]
    if source == "both":
        one = fit_beside(fits[0], fits[1], (rows[0][fit], rows[1][fit]), labels)
        read = np.concatenate(rows, axis=1)
    classes, t = np.array(one.probe.classes), one.probe.temperature
    results: list[np.ndarray] = []
    for scores, truths in ((one.scores, y[fit]), (one.probe.scores(read), y)):
        results += [
            softmax(scores / t, axis=1).max(axis=1),
            classes[scores.argmax(axis=1)] != truths,
        ]
    return results[0], results[1], results[2], results[3]


def prove(
    fitted: tuple[np.ndarray, np.ndarray],
    rest: tuple[np.ndarray, np.ndarray],
    rows: int,
    error: float,
    method: str,
    seed: int,
) -> tuple[float, float, bool]:
    """Return the share of the rest that is proven, its true error, and if anything is."""
    confidence, wrong = rest
    steps = curve(*fitted, np.arange(len(fitted[0])))
    drawn = method != "half"
    ladder = plan(steps, confidence, rows=rows, error=error, level=DELTA, drawn=drawn)
    every = np.arange(len(confidence))
    region = confidence >= (ladder.thresholds[-1] if drawn else -np.inf)
    some = every[region][deal(every[region], seed)][:rows]
    steps = rungs(confidence[some], wrong[some], some, ladder.thresholds, confidence)
    tested = until_failure(steps, error, DELTA)
    rung = Automation(error, tested).rung(DELTA)
    if rung is None:
        return 0.0, 0.0, False
    given = confidence >= rung.threshold
    return round(float(given.mean()), 4), round(float(wrong[given].mean()), 4), True


def draws(data: Path, keep: Path, count: int, done: dict[str, Row]) -> Iterator[None]:
    """Add the results of each draw to `done`, and yield after each."""
    for source in SOURCES:
        for seed in range(count):
            for name in SETS:
                y = np.array([row["truth"] for row in rows_of(data / f"{name}.jsonl")])
                used = ("smollm2", "mpnet") if source == "both" else (source,)
                states = {one: depths_of(one, np.load(keep / f"{one}-{name}.npy")) for one in used}
                order = np.random.default_rng(seed).permutation(len(y))
                for labels in LABELS:
                    key, n1 = f"{name}|{source}|{labels}|{seed}", labels // 2
                    if key not in done and len(y) >= labels:
                        done[key] = proven(source, states, y, (order[:n1], order[n1:]), seed)
            yield


def proven(
    source: str,
    states: dict[str, np.ndarray],
    y: np.ndarray,
    halves: tuple[np.ndarray, np.ndarray],
    seed: int,
) -> Row:
    """Return the share that each method proves by as many labels as the fit has."""
    fit, rest = halves
    of_fit, fit_wrong, every, wrong = answers(source, states, y, fit)
    result: Row = {"accuracy": round(1 - float(wrong[rest].mean()), 4)}
    steps, parts = curve(of_fit, fit_wrong, np.arange(len(fit))), (every[rest], wrong[rest])
    for error in ERRORS:
        result[f"estimate {error}"] = estimate(steps, error).share
        for method in METHODS:
            result[f"{method} {error}"] = prove(
                (of_fit, fit_wrong), parts, len(fit), error, method, seed
            )
    return result


def population(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences of many texts, and the probability that each answer is wrong.

    The error falls with the confidence, or has a hump or steps, and its level is random.
    """
    rng = np.random.default_rng([1, seed])
    a, b = rng.uniform(0.6, 6.0, 2)
    confidence = rng.beta(a, b, size=TRUE)
    level, slope, hump = rng.uniform(0.0, 0.15), rng.uniform(0.0, 0.8), rng.uniform(0.0, 0.3)
    risk = level + slope * (1 - confidence) ** rng.uniform(0.5, 3.0)
    if seed % 3 == 1:  # sure answers are worse than others
        risk += hump * (confidence > np.quantile(confidence, rng.uniform(0.7, 0.97)))
    if seed % 3 == 2:
        risk += hump * np.sin(8 * confidence) ** 2
    return confidence, np.clip(risk, 0.0, 1.0)


def violations(seed: int) -> Row:
    """Return the share of draws with a proven and with a false promise, by error and method."""
    confidence, risk = population(seed)
    rng, result = np.random.default_rng([2, seed]), {}
    for error in ERRORS:
        for method in METHODS:
            proven = false = 0
            for draw in range(DRAWS_OF_POPULATION):
                n1, n2 = (100, 100) if draw % 2 else (75, 200)
                places = rng.integers(TRUE, size=n1 + 1000)
                wrong = rng.random(len(places)) < risk[places]
                fit, pool = places[:n1], places[n1:]
                steps = curve(confidence[fit], wrong[:n1], np.arange(n1))
                drawn = method != "half"
                c = confidence[pool]
                ladder = plan(steps, c, rows=n2, error=error, level=DELTA, drawn=drawn)
                every = np.arange(len(pool))
                over = every[c >= ladder.thresholds[-1]]
                some = over[deal(over, draw)][:n2] if drawn else every[:n2]
                steps = rungs(c[some], wrong[n1:][some], some, ladder.thresholds, c)
                tested = until_failure(steps, error, DELTA)
                rung = Automation(error, tested).rung(DELTA)
                if rung is not None:
                    proven += 1
                    false += risk[confidence >= rung.threshold].mean() > error
            result[f"{method} {error}"] = (
                proven / DRAWS_OF_POPULATION,
                false / DRAWS_OF_POPULATION,
            )
    return result


def table(done: dict[str, Row]) -> str:
    """Return the Markdown tables: share answered (in brackets, draws with a proof, in percent)."""
    real = [name for name in SETS if any(key.startswith(f"{name}|") for key in done)]
    lines: list[str] = []
    for error in ERRORS:
        for method in METHODS:
            lines += [
                f"\nError {error:.0%}, {method}: share answered (draws with a proof), %\n",
                f"| source | N | {' | '.join(real)} |",
                f"|---|--:|{'--:|' * len(real)}",
            ]
            for source in SOURCES:
                for labels in LABELS:
                    cells = []
                    for name in real:
                        start = f"{name}|{source}|{labels}|"
                        rows = [row for key, row in done.items() if key.startswith(start)]
                        got = np.array([row[f"{method} {error}"] for row in rows], dtype=float)
                        share, often = 100 * got[:, [0, 2]].mean(axis=0) if rows else (0, 0)
                        cells.append(f"{share:.0f} ({often:.0f})" if rows else "–")
                    lines.append(f"| {source} | {labels} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def worse(done: dict[str, Row]) -> str:
    """Return how many promises were worse than promised, per method, and the populations' rates."""
    lines = []
    for method in METHODS:
        real = [
            (row[f"{method} {error}"], error)
            for key, row in done.items()
            if "|" in key
            for error in ERRORS
        ]
        bad = sum(proof and true > error for (_, true, proof), error in real)
        rates = [
            row[f"{method} {error}"][1]
            for key, row in done.items()
            if "|" not in key
            for error in ERRORS
        ]
        lines.append(f"{method}: {bad} of {len(real)} draws worse than promised")
        if rates:
            lines.append(
                f"{method}: {len(rates)} populations and errors, at most {max(rates):.1%} of draws "
                f"false, mean {np.mean(rates):.2%}"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and write results and table after each draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--populations", type=int, default=0)
    options = parser.parse_args()
    name = "automation-populations" if options.data is None else "automation"
    out = RESULTS / f"{name}.json"
    done: dict[str, Row] = json.loads(out.read_text()) if out.exists() else {}

    def write() -> None:
        out.write_text(json.dumps(done) + "\n", encoding="utf-8")
        text = worse(done) + ("" if options.data is None else table(done))
        out.with_suffix(".md").write_text(text, encoding="utf-8")

    if options.data is not None:
        for _ in draws(options.data, options.keep, options.draws, done):
            write()
    for seed in range(options.populations):
        if str(seed) not in done:
            done[str(seed)] = violations(seed)
            write()
    write()


if __name__ == "__main__":
    main()
