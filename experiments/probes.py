"""What labels buy: probes beside the model's own answer and a bag of words.

    OMP_NUM_THREADS=1 python experiments/probes.py MODEL DATA --keep FOLDER

DATA is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`. States are
read once, and kept in FOLDER as MODEL-SET.npz. A draw shuffles the texts of a set: probes are
fitted on the first 25, 50, 100 and 200 of them, and judged on those past the 200. The table grows
with every draw; it goes to experiments/results/probes, as Markdown and as JSON with every draw.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lastword import Choice, Option, Tracer
from lastword.decisions import prepare
from lastword.decisions.questionnaire import Questionnaire
from lastword.probes import bag_of_words, fit_state
from lastword.probes.answering import read_states
from lastword.probes.state import POOLINGS, few

RESULTS = Path(__file__).resolve().parent / "results" / "probes"
SETS = ("trec", "sst2", "agnews", "emotion")
LABELS = (25, 50, 100, 200)
PERMUTED_AT = 100
LEVELS = (0.05, 0.1, 0.5)  # at which p-values of held-back texts are counted
COLUMNS = ("base", "words", "depth 0", "last", "chosen", "permuted", "CPU s")

Draw = dict[str, Any]


def read(
    tracer: Tracer | None, path: Path, keep: Path, name: str, base: bool
) -> dict[str, np.ndarray]:
    """Return states, truths and texts of a set, and with `base` if the model itself is right."""
    states, answers = keep / f"{name}-{path.stem}.npz", keep / f"{name}-{path.stem}.base.npz"
    if not states.exists() or (base and not answers.exists()):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        texts, truths = [row["input"] for row in rows], [row["truth"] for row in rows]
        ready = prepare({"q": question(rows[0])})
    if not states.exists():
        x = read_states(tracer, texts, ready.questions["q"], ready.template, POOLINGS)
        np.savez(states, x=x, y=truths, text=texts)
    if base and not answers.exists():
        np.savez(answers, base=np.array(own_answers(tracer, ready, texts)) == truths)
    own = dict(np.load(states)) | (dict(np.load(answers)) if base else {})
    return own


def question(row: dict[str, Any]) -> Choice:
    """Return the question that a set asks of all its texts."""
    options = [o if isinstance(o, dict) else {"value": o} for o in row["choices"]]
    return Choice(row["instructions"], [Option(o["value"], o.get("description")) for o in options])


def own_answers(tracer: Tracer, ready: Questionnaire, texts: Sequence[str]) -> list[str]:
    """Return the option that the model itself prefers, by its mean log-probability."""
    names = [option.text for option in ready.questions["q"].options]
    items = [ready.items(text)[0] for text in texts]
    decisions = tracer.correct_many(items, read="base", blind="none")
    return [names[int(d.base_scores.argmax())] for d in decisions]


def draw(data: dict[str, np.ndarray], seed: int, labels: int) -> Draw:
    """Return the shares right on held-back texts of what some labels buy."""
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    fit, test = order[:labels], order[max(LABELS) :]
    fit = fit[~np.isin(data["y"][fit], few(data["y"][fit].tolist()))]  # a class needs two labels
    y, truths = data["y"][fit].tolist(), data["y"][test]
    x, held = data["x"][fit], data["x"][test]
    words = bag_of_words(data["text"][fit].tolist(), y).predict(data["text"][test].tolist())
    begin = time.process_time()
    chosen = fit_state(x, y).probe
    seconds = time.process_time() - begin
    last = x.shape[1] - 1
    first, deepest = (fit_state(x[:, [d]], y, depths=[d]).probe for d in (0, last))
    p = chosen.likeness_p(held[:, chosen.depth, POOLINGS.index(chosen.pooling)])
    own = {
        "base": float(data["base"][test].mean()) if "base" in data else None,
        "words": float((words == truths).mean()),
        "depth 0": float((answers(first, held) == truths).mean()),
        "last": float((answers(deepest, held) == truths).mean()),
        "chosen": float((answers(chosen, held) == truths).mean()),
        "depth": chosen.depth,
        "pooling": chosen.pooling,
        "p-values": {str(level): float((p <= level).mean()) for level in LEVELS},
        "CPU s": seconds,
    }
    if labels == PERMUTED_AT:
        told = answers(
            fit_state(x, np.random.default_rng(seed).permutation(y).tolist()).probe, held
        )
        # Answers that know nothing of a text are right as often as the shares of both meet.
        chance = sum((told == name).mean() * (truths == name).mean() for name in set(y))
        own["permuted"] = float((told == truths).mean() - chance)
    return own


def answers(probe: Any, states: np.ndarray) -> np.ndarray:
    """Return a state probe's answers to texts by their states [texts, depths, poolings, width]."""
    rows = states[:, probe.depth, POOLINGS.index(probe.pooling)]
    return np.array(probe.classes)[probe.scores(rows).argmax(axis=1)]


def row_of(draws: Sequence[Draw]) -> dict[str, Any]:
    """Return the means over the draws of one set and number of labels."""
    means: dict[str, Any] = {}
    for name in COLUMNS:
        if values := [own[name] for own in draws if own.get(name) is not None]:
            means[name] = float(np.mean(values))
    if len(draws) > 1:
        gains = [own["chosen"] - own["last"] for own in draws]
        means["gain"] = [float(v) for v in np.quantile(gains, [0.025, 0.975])]
        if "permuted" in draws[0]:
            spread = np.std([own["permuted"] for own in draws], ddof=1)
            means["permuted error"] = float(spread / np.sqrt(len(draws)))
    means["p-values"] = {
        level: float(np.mean([own["p-values"][level] for own in draws]))
        for level in map(str, LEVELS)
    }
    means["depths"] = [own["depth"] for own in draws]
    means["mean pooled"] = float(np.mean([own["pooling"] == "mean" for own in draws]))
    return means


def table(model: str, results: dict[str, dict[str, list[Draw]]]) -> str:
    """Return the Markdown table of all sets."""
    lines = [
        "| set | labels | model | words | depth 0 | last depth | its depth | which (half of draws) "
        "| p <= 0.05, 0.1, 0.5 | CPU s to fit |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|--:|",
    ]
    for name, by_labels in results.items():
        for labels, draws in by_labels.items():
            means = row_of(draws)
            shares = [100 * means.get(c, np.nan) for c in COLUMNS[:5]]
            cells = ["–" if np.isnan(share) else f"{share:.1f}" for share in shares]
            low, high = np.quantile(means["depths"], [0.25, 0.75]).round().astype(int)
            even = ", ".join(f"{own:.2f}" for own in means["p-values"].values())
            more = [f"{low} to {high}", even, f"{means['CPU s']:.1f}"]
            lines.append("| " + " | ".join([name, labels, *cells, *more]) + " |")
    draws_done = min(len(d) for by_labels in results.values() for d in by_labels.values())
    lines += ["", f"{model}, {draws_done} draws.", ""]
    for name, by_labels in results.items():
        means = row_of(by_labels[str(PERMUTED_AT)])
        if "permuted error" in means:
            off, error = 100 * means["permuted"], 100 * 1.96 * means["permuted error"]
            lines.append(f"- {name}, labels permuted: {off:+.1f} ± {error:.1f} points off chance.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--base", action="store_true", help="ask the model itself, too")
    asked = parser.parse_args()
    name = Path(asked.model).name
    kept = all((asked.keep / f"{name}-{own}.npz").exists() for own in asked.sets)
    tracer = None if kept and not asked.base else Tracer.from_pretrained(asked.model)
    paths = {own: asked.data / f"{own}.jsonl" for own in asked.sets}
    data = {own: read(tracer, path, asked.keep, name, asked.base) for own, path in paths.items()}
    results: dict[str, dict[str, list[Draw]]] = {
        own: {str(labels): [] for labels in LABELS} for own in asked.sets
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in range(asked.draws):
        for own, by_labels in results.items():
            for labels in LABELS:
                by_labels[str(labels)].append(draw(data[own], seed, labels))
        text = json.dumps({"model": asked.model, "sets": results}, indent=1)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        (RESULTS / f"{name}.md").write_text(table(asked.model, results), encoding="utf-8")
        print(f"{seed + 1} of {asked.draws}", flush=True)


if __name__ == "__main__":
    main()
