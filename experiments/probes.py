"""What labels buy: probes beside the model's own answer and a bag of words.

    OMP_NUM_THREADS=1 python experiments/probes.py MODEL DATA --keep FOLDER --base

DATA is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`. States are
read once, and kept in FOLDER as MODEL-SET.npz. A draw shuffles the texts of a set: probes are
fitted on the first 25, 50, 100 and 200 of them, and judged on those past the 200. With --base the
table has what the model itself is right on, by the records that `evidence.py jobs --runs FOLDER`
made, of the first 300 texts. All goes on where it was stopped, draw by draw. What a bag of words
gets is kept by set and seed: it is the same beside every model. The table goes to
experiments/results/probes, as Markdown and as JSON with every draw. With --stack it is another
study: sets of many options, 100, 200 and 400 labels, a probe, words, and both of the model's own
scores beside the probe; the last texts of a draw judge. With --permuted N it is the control: a
probe of labels in random order, N draws of 100, beside what chance would have.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lastword import Choice, Option, Tracer
from lastword.decide.decider import read_states
from lastword.decide.item import item_of
from lastword.decide.questionnaire import prepare
from lastword.probes import bag_of_words, fit_state
from lastword.probes.stacked import fit_stacked
from lastword.probes.state import POOLINGS
from lastword.trust.certification import Sample, read_sample

RESULTS = Path(__file__).resolve().parent / "results" / "probes"
SETS = ("trec", "sst2", "agnews", "emotion")
LABELS = (25, 50, 100, 200)
MANY = (100, 200, 400)  # of sets of many options
PERMUTED_AT = 100  # labels
LEVELS = (0.05, 0.1, 0.5)  # at which p-values of held-back texts are counted
COLUMNS = ("words", "depth 0", "last", "chosen", "CPU s")

Draw = dict[str, Any]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the texts of a set."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read(tracer: Tracer | None, path: Path, keep: Path, name: str) -> dict[str, np.ndarray]:
    """Return states, truths and texts of a set."""
    states = keep / f"{name}-{path.stem}.npz"
    if not states.exists():
        rows = rows_of(path)
        texts, truths = [row["input"] for row in rows], [row["truth"] for row in rows]
        made = prepare({"q": question(rows[0])})
        x = read_states(tracer, texts, made.questions["q"], made.template, POOLINGS)
        np.savez(states, x=x, y=truths, text=texts)
    return dict(np.load(states))


def question(row: dict[str, Any]) -> Choice:
    """Return the question that a set asks of all its texts."""
    options = [o if isinstance(o, dict) else {"value": o} for o in row["choices"]]
    return Choice(row["instructions"], [Option(o["value"], o.get("description")) for o in options])


def asked_of(path: Path, keep: Path, name: str) -> Sample:
    """Return how the model and its corrections answer the first texts of a set."""
    found = [*(keep / "jobs").glob(f"*{name}/jsonl-{path.stem}")]
    if len(found) != 1:
        raise SystemExit(f"{keep}/jobs has {len(found)} records of {name}, {path.stem}: see above")
    return read_sample(Path(str(found[0])), methods=None)


def own_scores(tracer: Tracer, path: Path, keep: Path, name: str) -> dict[str, np.ndarray]:
    """Return the options of a set, and the model's scores of them with the text and without."""
    kept = keep / f"{name}-{path.stem}-scores.npz"
    if not kept.exists():
        rows = rows_of(path)
        made = prepare({"q": question(rows[0])})
        items = [item_of(row["input"], made.questions["q"], made.template) for row in rows]
        own = [*tracer.correct_many(items, read="base", blind="base")]
        base, blind = (
            np.stack([getattr(d, n) for d in own]) for n in ("base_scores", "blind_scores")
        )
        np.savez(kept, options=own[0].candidates, base=base, blind=blind)
    return dict(np.load(kept))


def stacked(
    data: dict[str, np.ndarray], own: dict[str, np.ndarray], seed: int, labels: int, kept: Path
) -> dict[str, float]:
    """Return the shares right of the model, words, a probe, and a stack with the model's scores."""
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    fit, test = order[:labels], order[max(MANY) :]
    y, truths, options = data["y"][fit].tolist(), data["y"][test], own["options"].tolist()
    state = fit_state(data["x"][fit], y)
    groups = [str(place) for place in fit]
    both = fit_stacked(state, y, options, own["base"][fit], own["blind"][fit], groups).probe
    probe, held = state.probe, data["x"][test]
    known = probe.scores(held[:, probe.depth, POOLINGS.index(probe.pooling)])
    scores = both.scores(known, options, own["base"][test], own["blind"][test])
    told = np.array(options)[scores.argmax(axis=1)]
    return {
        "model": float((own["options"][own["base"][test].argmax(axis=1)] == truths).mean()),
        "words": words(data["text"][fit].tolist(), y, data["text"][test].tolist(), truths, kept),
        "probe": float((answers(probe, held) == truths).mean()),
        "stack": float((told == truths).mean()),
        "classes": float(np.isin(truths, y).mean()),
    }


def stack(asked: argparse.Namespace) -> None:
    """Measure the stack, and write its table."""
    name, tracer = Path(asked.model).name, Tracer.from_pretrained(asked.model)
    result: dict[str, dict[str, list[dict[str, float]]]] = {}
    for each in asked.sets:
        path = asked.data / f"{each}.jsonl"
        data, own = read(tracer, path, asked.keep, name), own_scores(tracer, path, asked.keep, name)
        for labels in MANY:
            kept = [asked.keep / f"many-{each}-{labels}-{seed}.txt" for seed in range(asked.draws)]
            draws = [stacked(data, own, seed, labels, file) for seed, file in enumerate(kept)]
            result.setdefault(each, {})[str(labels)] = draws
    lines = ["| set | labels | truths with labels | model | words | probe | stack |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for each, sized in result.items():
        for size, draws in sized.items():
            names = ("classes", "model", "words", "probe", "stack")
            shares = [f"{100 * np.mean([d[n] for d in draws]):.1f}" for n in names]
            lines.append(f"| {each} | {size} | {' | '.join(shares)} |")
    lines += ["", f"{asked.model}; {asked.draws} draws."]
    (RESULTS / f"stack-{name}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    (RESULTS / f"stack-{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def draw(data: dict[str, np.ndarray], seed: int, labels: int, kept: Path) -> Draw:
    """Return the shares right on held-back texts of what some labels buy.

    Args:
        data: Of a set.
        seed: Of the shuffle.
        labels: How many are drawn.
        kept: Where the share that a bag of words gets is kept.
    """
    fit, test = drawn(data, seed, labels)
    y, truths = data["y"][fit].tolist(), data["y"][test]
    x, held = data["x"][fit], data["x"][test]
    begin = time.process_time()
    whole = fit_state(x, y)
    chosen, seconds = whole.probe, time.process_time() - begin

    def of_depth(depth: int) -> Any:
        p = int(whole.right[depth].argmax())  # the pooling that a fit of this depth alone takes
        return fit_state(x[:, [depth], p : p + 1], y, depths=[depth], poolings=[POOLINGS[p]]).probe

    first, deepest = of_depth(0), of_depth(x.shape[1] - 1)
    p = chosen.likeness_p(held[:, chosen.depth, POOLINGS.index(chosen.pooling)])
    own = {
        "words": words(data["text"][fit].tolist(), y, data["text"][test].tolist(), truths, kept),
        "depth 0": float((answers(first, held) == truths).mean()),
        "last": float((answers(deepest, held) == truths).mean()),
        "chosen": float((answers(chosen, held) == truths).mean()),
        "depth": chosen.depth,
        "pooling": chosen.pooling,
        "p-values": {str(level): float((p <= level).mean()) for level in LEVELS},
        "CPU s": seconds,
    }
    return own


def off_chance(data: dict[str, np.ndarray], seed: int) -> tuple[float, float]:
    """Return the share right of a probe of permuted labels, and the share that chance has."""
    fit, test = drawn(data, seed, PERMUTED_AT)
    y, truths = data["y"][fit], data["y"][test]
    permuted = np.random.default_rng(seed).permutation(y).tolist()
    x, depths = data["x"][fit], range(data["x"].shape[1])  # named, so that no others' are kept
    told = answers(fit_state(x, permuted, depths=depths).probe, data["x"][test])
    # Answers that know nothing of a text are right as often as the shares of both meet.
    chance = sum((told == name).mean() * (truths == name).mean() for name in set(y.tolist()))
    return float((told == truths).mean()), float(chance)


def permuted(name: str, data: dict[str, dict[str, np.ndarray]], draws: int) -> None:
    """Measure the control, set by set, and write its table."""
    out = RESULTS / "permuted.json"
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for own, texts in data.items():
        each = results.setdefault(f"{name}, {own}", [])
        while len(each) < draws:
            each.append(off_chance(texts, len(each)))
            out.write_text(json.dumps(results) + "\n", encoding="utf-8")
    lines = ["| model, set | draws | right | by chance | off chance, 95% |"]
    lines += ["|---|--:|--:|--:|--:|", *(_permuted_row(*row) for row in results.items())]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _permuted_row(cell: str, draws: Sequence[tuple[float, float]]) -> str:
    right, chance = 100 * np.array(draws).T
    off = right - chance
    error = 1.96 * off.std(ddof=1) / len(off) ** 0.5
    interval = f"{off.mean():+.1f} [{off.mean() - error:+.1f}, {off.mean() + error:+.1f}]"
    return f"| {cell} | {len(off)} | {right.mean():.1f} | {chance.mean():.1f} | {interval} |"


def drawn(data: dict[str, np.ndarray], seed: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of a draw's labels, at least two a class, and of the texts that judge."""
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    fit = order[:labels]
    return fit, order[max(LABELS) :]


def words(
    texts: list[str], labels: list[str], held: list[str], truths: np.ndarray, kept: Path
) -> float:
    """Return the share of held-back texts that a bag of words gets right."""
    if not kept.exists():
        right = float((bag_of_words(texts, labels).predict(held) == truths).mean())
        kept.write_text(f"{right}\n", encoding="utf-8")
    return float(kept.read_text(encoding="utf-8"))


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
    means["p-values"] = {
        level: float(np.mean([own["p-values"][level] for own in draws]))
        for level in map(str, LEVELS)
    }
    means["depths"] = [own["depth"] for own in draws]
    means["mean pooled"] = float(np.mean([own["pooling"] == "mean" for own in draws]))
    return means


def gain(draws: Sequence[Draw]) -> str:
    """Return the mean and the 95% interval over draws of chosen depth less last depth."""
    points = [100 * (own["chosen"] - own["last"]) for own in draws]
    low, high = np.quantile(points, [0.025, 0.975])
    return f"{np.mean(points):+.1f} [{low:+.1f}, {high:+.1f}]"


def table(model: str, base: dict[str, float], results: dict[str, dict[str, list[Draw]]]) -> str:
    """Return the Markdown table of all sets."""
    lines = [
        "| set | labels | model | words | depth 0 | last depth | its depth | its less last, 95% of "
        "draws | which (half of draws) | p <= 0.05, 0.1, 0.5 | CPU s to fit |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|---|--:|",
    ]
    for name, by_labels in results.items():
        for labels, draws in by_labels.items():
            means = row_of(draws)
            shares = [base.get(name, np.nan), *(means[c] for c in COLUMNS[:4])]
            cells = ["–" if np.isnan(share) else f"{100 * share:.1f}" for share in shares]
            low, high = np.quantile(means["depths"], [0.25, 0.75]).round().astype(int)
            even = ", ".join(f"{own:.2f}" for own in means["p-values"].values())
            more = [gain(draws), f"{low} to {high}", even, f"{means['CPU s']:.1f}"]
            lines.append("| " + " | ".join([name, labels, *cells, *more]) + " |")
    done = [len(by_labels[str(max(LABELS))]) for by_labels in results.values()]
    lines += ["", f"{model}; draws: {', '.join(map(str, done))}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--base", action="store_true", help="with the model itself")
    parser.add_argument("--stack", action="store_true", help="many options, by a stack as well")
    parser.add_argument("--permuted", type=int, metavar="N", help="the control, N draws")
    asked = parser.parse_args()
    if asked.stack:
        stack(asked)
        return
    name, keep = Path(asked.model).name.removesuffix(".gguf"), asked.keep
    read_before = all((keep / f"{name}-{own}.npz").exists() for own in asked.sets)
    tracer = None if read_before else Tracer.from_pretrained(asked.model)
    paths = {own: asked.data / f"{own}.jsonl" for own in asked.sets}
    data = {own: read(tracer, path, keep, name) for own, path in paths.items()}
    if asked.permuted:
        permuted(name, data, asked.permuted)
        return
    base = {}
    for own, path in paths.items():
        if asked.base:
            base[own] = float(asked_of(path, keep, name).items.mc1_base.mean())
    RESULTS.mkdir(parents=True, exist_ok=True)
    out = RESULTS / f"{name}.json"
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    base, results = before.get("base", {}) | base, before.get("sets", {})
    for seed in range(asked.draws):
        for own in asked.sets:
            by_labels = results.setdefault(own, {str(labels): [] for labels in LABELS})
            for labels in LABELS:
                if len(by_labels[str(labels)]) == seed:
                    kept = keep / f"words-{own}-{labels}-{seed}.txt"
                    by_labels[str(labels)].append(draw(data[own], seed, labels, kept))
        told = {"model": asked.model, "base": base, "sets": results}
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.md").write_text(table(asked.model, base, results), encoding="utf-8")
        print(f"{seed + 1} of {asked.draws}", flush=True)


if __name__ == "__main__":
    main()
