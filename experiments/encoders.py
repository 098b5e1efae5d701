"""What 100 labels buy from a model's states, from sentence encoders, and from both.

    OMP_NUM_THREADS=1 python experiments/encoders.py MODEL DATA --keep FOLDER

DATA is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`. Of each set
the first 250 texts are read once, by the model and by MiniLM and mpnet (`lastword get`), and their
states are kept in FOLDER. A draw shuffles a set: 100 labels fit, the other texts judge. The study
is described in dev/LOG.md (*Sentence encoders*). It goes on where it was stopped, and the table has
what is finished.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from probes import question, rows_of

from lastword import Tracer
from lastword.decide.questionnaire import prepare
from lastword.decide.states import read_states
from lastword.model.encoder import Encoder
from lastword.probes import bag_of_words, fit_state
from lastword.probes.state import LinearFit, fit_beside
from lastword.trust.evidence import as_good

RESULTS = Path(__file__).resolve().parent / "results" / "probes"
SETS = ("trec", "sst2", "agnews", "emotion", "banking77", "clinc150")
READERS = ("minilm", "mpnet")
TEXTS, LABELS = 250, 100

# Millions of weights that a token passes through: a block of SmolLM2-135M, and whole encoders.
BLOCK, WORK = 3.54, {"minilm": 10.6, "mpnet": 85.1}

Data = dict[str, np.ndarray]


def read(path: Path, keep: Path, source: str, model: str) -> np.ndarray:
    """Return the states of a set's texts [texts, depths, 1, width], by mean or own pooling."""
    stored = keep / f"encoders-{source}-{path.stem}.npy"
    if not stored.exists():
        rows = rows_of(path)[:TEXTS]
        texts = [row["input"] for row in rows]
        if source in READERS:
            encoder = Encoder(source)
            depths = range(encoder.profile.depth + 1)
            states = encoder.pooled(encoder.encode(texts), depths)[:, :, None]
        else:
            prepared = prepare({"q": question(rows[0])})
            tracer = Tracer.from_pretrained(model)
            states = read_states(
                tracer, texts, prepared.questions["q"], prepared.template, ("mean",)
            )
        np.save(stored, states)
        print(f"{path.stem} by {source}", flush=True)
    return np.load(stored)


def draw(texts: np.ndarray, y: np.ndarray, states: Data, seed: int) -> dict[str, float]:
    """Return the accuracy of each contestant on the texts past the labels."""
    order = np.random.default_rng(seed).permutation(len(y))
    fit, test = order[:LABELS], order[LABELS:]
    labels = y[fit].tolist()
    fits: dict[str, LinearFit] = {}
    rows: Data = {}
    for name, x in states.items():
        fits[name] = fit_state(x[fit], labels, encoder="" if name == "probe" else name)
        rows[name] = x[:, fits[name].probe.blocks[0].layer, 0].astype(float)
    for name in [source for source in states if source != "probe"]:
        pair = rows["probe"], rows[name]
        for way in ("side", "sum"):
            both = fit_beside(
                fits["probe"], fits[name], (pair[0][fit], pair[1][fit]), labels, (way,)
            )
            fits[f"probe and {name}, {way}"] = both
            rows[f"probe and {name}, {way}"] = np.concatenate(pair, axis=1)

    def right(name: str) -> float:
        probe = fits[name].probe
        answers = np.array(probe.classes)[probe.scores(rows[name][test]).argmax(axis=1)]
        return float((answers == y[test]).mean())

    words = bag_of_words(texts[fit].tolist(), labels).predict(texts[test].tolist())
    picked: dict[str, float] = {}
    if len(states) == 1 + len(READERS):
        work = WORK | {"probe": BLOCK * fits["probe"].probe.blocks[0].layer}
        costs = {name: sum(work[part] for part in work if part in name) for name in fits}
        chosen = max(fits, key=lambda name: fits[name].right.max())
        cheapest = cheapest_as_good(fits, fits[chosen], costs, labels)
        for rule, name in (("chosen", chosen), ("cheapest", cheapest)):
            picked |= {rule: right(name), f"{rule}: work": costs[name]}
    return (
        {name: right(name) for name in fits} | picked | {"words": float((words == y[test]).mean())}
    )


def cheapest_as_good(
    fits: dict[str, LinearFit], best: LinearFit, costs: dict[str, float], labels: Sequence[str]
) -> str:
    """Return the cheapest fit at most one standard error below the best, by leave-one-out."""

    def rights(fit: LinearFit) -> np.ndarray:
        answers = np.array(fit.probe.classes)[fit.scores.argmax(axis=1)]
        return (answers == np.array(labels)).astype(float)

    alone = np.arange(len(labels))
    order = sorted(fits, key=costs.__getitem__)
    return next(name for name in order if as_good(rights(fits[name]), rights(best), alone))


def table(model: str, results: dict[str, list[dict[str, float]]]) -> str:
    """Return the Markdown table of all sets."""
    names = [*dict.fromkeys(name for draws in results.values() for draw in draws for name in draw)]
    lines = [f"| set | draws | {' | '.join(names)} |", f"|---|--:|{'--:|' * len(names)}"]
    for each, draws in results.items():
        means = [
            f"{100 * np.mean([draw[n] for draw in draws]):.1f}" if n in draws[0] else "–"
            for n in names
        ]
        lines.append(f"| {each} | {len(draws)} | {' | '.join(means)} |")
    return (
        "\n".join([*lines, "", f"{model}; {LABELS} labels, {TEXTS - LABELS} texts judge."]) + "\n"
    )


def measure(options: Any, each: str, sources: Sequence[str]) -> list[dict[str, float]]:
    """Return the draws of one set with some sources of states."""
    path = options.data / f"{each}.jsonl"
    rows = rows_of(path)[:TEXTS]
    texts, y = (np.array([row[name] for row in rows]) for name in ("input", "truth"))
    states = {source: read(path, options.keep, source, options.model) for source in sources}
    return [draw(texts, y, states, seed) for seed in range(options.draws)]


def main() -> None:
    """Read, measure and write the table, set by set; sets with mpnet last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    out = RESULTS / f"encoders-{Path(options.model).name}.json"
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for sources in (("probe", "minilm"), ("probe", *READERS)):
        for each in options.sets:
            have = results.get(each, [])
            if len(have) >= options.draws and all(name in have[0] for name in sources):
                continue
            results[each] = measure(options, each, sources)
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            out.with_suffix(".md").write_text(table(options.model, results), encoding="utf-8")
            print(f"{each}: {', '.join(sources)}", flush=True)


if __name__ == "__main__":
    main()
