"""What labels buy: probes compared with the model's answer and a bag of words.

    OMP_NUM_THREADS=1 python experiments/probes.py MODEL DATA --keep FOLDER --base

DATA is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`. States are
read once, and stored in FOLDER as MODEL-SET.npz. A draw shuffles the texts of a set: probes are
fitted to the first 25, 50, 100 and 200 of them, and tested on those after the first 200. With
--base the table has the model's accuracy on the first 300 texts, from the records that
`evidence.py jobs --runs FOLDER` wrote. Interrupted runs continue, draw by draw. Results of the bag
of words are stored by set and seed, because they are the same for every model. The table goes to
experiments/results/probes, as Markdown and as JSON with every draw. --stack is another study, of
sets with many options: 100, 200 and 400 labels, a probe, words, and a stack of the probe with both
of the model's scores; the last texts of a draw are the test set. --permuted N is the control: a
probe of randomly ordered labels, N draws of 100, compared with chance.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lastword import Choice, Option, Tracer
from lastword.decide.item import item_of
from lastword.decide.questionnaire import prepare
from lastword.decide.states import read_states
from lastword.probes import bag_of_words, fit_state
from lastword.probes.state import POOLINGS, fit_stacked
from lastword.trust.certification import Sample, read_sample

RESULTS = Path(__file__).resolve().parent / "results" / "probes"
SETS = ("trec", "sst2", "agnews", "emotion")
LABELS = (25, 50, 100, 200)
MANY = (100, 200, 400)  # labels for sets of many options
PERMUTED_AT = 100  # labels
LEVELS = (0.05, 0.1, 0.5)  # levels at which p-values of test texts are counted
COLUMNS = ("words", "depth 0", "last", "chosen", "CPU s")

Draw = dict[str, Any]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the texts of a set."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read(tracer: Tracer | None, path: Path, keep: Path, name: str) -> dict[str, np.ndarray]:
    """Return states, truths and texts of a set, and store them."""
    states = keep / f"{name}-{path.stem}.npz"
    if not states.exists():
        rows = rows_of(path)
        texts, truths = [row["input"] for row in rows], [row["truth"] for row in rows]
        ready = prepare({"q": question(rows[0])})
        x = read_states(tracer, texts, ready.questions["q"], ready.template, POOLINGS)
        np.savez(states, x=x, y=truths, text=texts)
    return dict(np.load(states))


def question(row: dict[str, Any]) -> Choice:
    """Return the question of all texts of a set."""
    options = [o if isinstance(o, dict) else {"value": o} for o in row["choices"]]
    return Choice(row["instructions"], [Option(o["value"], o.get("description")) for o in options])


def sample_of(path: Path, keep: Path, name: str) -> Sample:
    """Return the answers of the model and its corrections to the first texts of a set."""
    folders = [*(keep / "jobs").glob(f"*{name}/jsonl-{path.stem}")]
    if len(folders) != 1:
        raise SystemExit(
            f"{keep}/jobs has {len(folders)} records of {name}, {path.stem}: see above"
        )
    return read_sample(Path(str(folders[0])), methods=None)


def model_scores(tracer: Tracer, path: Path, keep: Path, name: str) -> dict[str, np.ndarray]:
    """Return the options of a set, and the model's scores with and without the text."""
    file = keep / f"{name}-{path.stem}-scores.npz"
    if not file.exists():
        rows = rows_of(path)
        ready = prepare({"q": question(rows[0])})
        items = [item_of(row["input"], ready.questions["q"], ready.template) for row in rows]
        decisions = [*tracer.correct_many(items, read="base", blind="base")]
        base, blind = (
            np.stack([getattr(d, n) for d in decisions]) for n in ("base_scores", "blind_scores")
        )
        np.savez(file, options=decisions[0].candidates, base=base, blind=blind)
    return dict(np.load(file))


def stacked(
    data: dict[str, np.ndarray], model: dict[str, np.ndarray], seed: int, labels: int, file: Path
) -> dict[str, float]:
    """Return the accuracies of the model, words, a probe, and a stack with the model's scores."""
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    fit, test = order[:labels], order[max(MANY) :]
    y, truths, options = data["y"][fit].tolist(), data["y"][test], model["options"].tolist()
    state = fit_state(data["x"][fit], y)
    groups = [str(place) for place in fit]
    both = fit_stacked(state, y, options, model["base"][fit], model["blind"][fit], groups).probe
    probe, held = state.probe, data["x"][test]
    by_probe = probe.scores(held[:, probe.blocks[0].layer, POOLINGS.index(probe.blocks[0].pooling)])
    scores = both.table(by_probe, options, model["base"][test], model["blind"][test])
    predicted = np.array(options)[scores.argmax(axis=1)]
    return {
        "model": float((model["options"][model["base"][test].argmax(axis=1)] == truths).mean()),
        "words": words(data["text"][fit].tolist(), y, data["text"][test].tolist(), truths, file),
        "probe": float((answers(probe, held) == truths).mean()),
        "stack": float((predicted == truths).mean()),
        "classes": float(np.isin(truths, y).mean()),
    }


def stack(options: argparse.Namespace) -> None:
    """Measure the stack, and write its table."""
    name, tracer = Path(options.model).name, Tracer.from_pretrained(options.model)
    result: dict[str, dict[str, list[dict[str, float]]]] = {}
    for each in options.sets:
        path = options.data / f"{each}.jsonl"
        data = read(tracer, path, options.keep, name)
        scores = model_scores(tracer, path, options.keep, name)
        for labels in MANY:
            files = [
                options.keep / f"many-{each}-{labels}-{seed}.txt" for seed in range(options.draws)
            ]
            draws = [stacked(data, scores, seed, labels, file) for seed, file in enumerate(files)]
            result.setdefault(each, {})[str(labels)] = draws
    lines = ["| set | labels | truths with labels | model | words | probe | stack |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for each, sized in result.items():
        for size, draws in sized.items():
            names = ("classes", "model", "words", "probe", "stack")
            shares = [f"{100 * np.mean([d[n] for d in draws]):.1f}" for n in names]
            lines.append(f"| {each} | {size} | {' | '.join(shares)} |")
    lines += ["", f"{options.model}; {options.draws} draws."]
    (RESULTS / f"stack-{name}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    (RESULTS / f"stack-{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def draw(data: dict[str, np.ndarray], seed: int, labels: int, file: Path) -> Draw:
    """Return the accuracies on the test texts after fitting to some labels.

    Args:
        data: Data of a set.
        seed: Seed of the shuffle.
        labels: Number of labels.
        file: File that stores the accuracy of the bag of words.
    """
    fit, test = drawn(data, seed, labels)
    y, truths = data["y"][fit].tolist(), data["y"][test]
    x, held = data["x"][fit], data["x"][test]
    begin = time.process_time()
    whole = fit_state(x, y)
    chosen, seconds = whole.probe, time.process_time() - begin

    def of_depth(depth: int) -> Any:
        p = int(whole.right[depth].argmax())  # the pooling that a fit at this depth would choose
        return fit_state(x[:, [depth], p : p + 1], y, layers=[depth], poolings=[POOLINGS[p]]).probe

    first, deepest = of_depth(0), of_depth(x.shape[1] - 1)
    p = chosen.likeness_p(held[:, chosen.blocks[0].layer, POOLINGS.index(chosen.blocks[0].pooling)])
    result = {
        "words": words(data["text"][fit].tolist(), y, data["text"][test].tolist(), truths, file),
        "depth 0": float((answers(first, held) == truths).mean()),
        "last": float((answers(deepest, held) == truths).mean()),
        "chosen": float((answers(chosen, held) == truths).mean()),
        "depth": chosen.blocks[0].layer,
        "pooling": chosen.blocks[0].pooling,
        "p-values": {str(level): float((p <= level).mean()) for level in LEVELS},
        "CPU s": seconds,
    }
    return result


def off_chance(data: dict[str, np.ndarray], seed: int) -> tuple[float, float]:
    """Return the accuracy of a probe of permuted labels, and that of chance."""
    fit, test = drawn(data, seed, PERMUTED_AT)
    y, truths = data["y"][fit], data["y"][test]
    permuted = np.random.default_rng(seed).permutation(y).tolist()
    x, depths = data["x"][fit], range(data["x"].shape[1])  # explicit, so that no states are cached
    predicted = answers(fit_state(x, permuted, layers=depths).probe, data["x"][test])
    # Answers that are independent of the truth are right as often as both frequencies agree.
    chance = sum((predicted == name).mean() * (truths == name).mean() for name in set(y.tolist()))
    return float((predicted == truths).mean()), float(chance)


def permuted(name: str, data: dict[str, dict[str, np.ndarray]], draws: int) -> None:
    """Measure the control, set by set, and write its table."""
    out = RESULTS / "permuted.json"
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for set_name, texts in data.items():
        each = results.setdefault(f"{name}, {set_name}", [])
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
    """Return the positions of a draw's labels, and of the test texts."""
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    fit = order[:labels]
    return fit, order[max(LABELS) :]


def words(
    texts: list[str], labels: list[str], held: list[str], truths: np.ndarray, file: Path
) -> float:
    """Return the accuracy of a bag of words on the test texts."""
    if not file.exists():
        right = float((bag_of_words(texts, labels).predict(held) == truths).mean())
        file.write_text(f"{right}\n", encoding="utf-8")
    return float(file.read_text(encoding="utf-8"))


def answers(probe: Any, states: np.ndarray) -> np.ndarray:
    """Return a state probe's answers to texts, from states [texts, depths, poolings, width]."""
    rows = states[:, probe.blocks[0].layer, POOLINGS.index(probe.blocks[0].pooling)]
    return np.array(probe.classes)[probe.scores(rows).argmax(axis=1)]


def row_of(draws: Sequence[Draw]) -> dict[str, Any]:
    """Return the means over the draws of one set and number of labels."""
    means: dict[str, Any] = {}
    for name in COLUMNS:
        if values := [result[name] for result in draws if result.get(name) is not None]:
            means[name] = float(np.mean(values))
    means["p-values"] = {
        level: float(np.mean([result["p-values"][level] for result in draws]))
        for level in map(str, LEVELS)
    }
    means["depths"] = [result["depth"] for result in draws]
    means["mean pooled"] = float(np.mean([result["pooling"] == "mean" for result in draws]))
    return means


def gain(draws: Sequence[Draw]) -> str:
    """Return the mean and the 95% interval over draws of chosen depth minus last depth."""
    points = [100 * (result["chosen"] - result["last"]) for result in draws]
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
            even = ", ".join(f"{share:.2f}" for share in means["p-values"].values())
            more = [gain(draws), f"{low} to {high}", even, f"{means['CPU s']:.1f}"]
            lines.append("| " + " | ".join([name, labels, *cells, *more]) + " |")
    done = [len(by_labels[str(max(LABELS))]) for by_labels in results.values()]
    lines += ["", f"{model}; draws: {', '.join(map(str, done))}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--base", action="store_true", help="with the model itself")
    parser.add_argument("--stack", action="store_true", help="many options, by a stack as well")
    parser.add_argument("--permuted", type=int, metavar="N", help="the control, N draws")
    options = parser.parse_args()
    if options.stack:
        stack(options)
        return
    name, keep = Path(options.model).name.removesuffix(".gguf"), options.keep
    read_before = all((keep / f"{name}-{each}.npz").exists() for each in options.sets)
    tracer = None if read_before else Tracer.from_pretrained(options.model)
    paths = {each: options.data / f"{each}.jsonl" for each in options.sets}
    data = {each: read(tracer, path, keep, name) for each, path in paths.items()}
    if options.permuted:
        permuted(name, data, options.permuted)
        return
    base = {}
    for each, path in paths.items():
        if options.base:
            base[each] = float(sample_of(path, keep, name).items.mc1_base.mean())
    RESULTS.mkdir(parents=True, exist_ok=True)
    out = RESULTS / f"{name}.json"
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    base, results = before.get("base", {}) | base, before.get("sets", {})
    for seed in range(options.draws):
        for each in options.sets:
            by_labels = results.setdefault(each, {str(labels): [] for labels in LABELS})
            for labels in LABELS:
                if len(by_labels[str(labels)]) == seed:
                    file = keep / f"words-{each}-{labels}-{seed}.txt"
                    by_labels[str(labels)].append(draw(data[each], seed, labels, file))
        content = {"model": options.model, "base": base, "sets": results}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.md").write_text(table(options.model, base, results), encoding="utf-8")
        print(f"{seed + 1} of {options.draws}", flush=True)


if __name__ == "__main__":
    main()
