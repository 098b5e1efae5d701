"""What the certified choice promises, and what it then does on items that it had not seen.

    python experiments/promised.py RUNS [RUNS ...] [--resamples 200] [--seed 3]

RUNS are folders of `lastword eval --blind all` on the decision sets; cells of one model and one set
(`jsonl:trec`, `jsonl:trec-rest`) are taken together. Labels are drawn from each, the choice made of
them as `certify` makes it, and counted on the rest (dev/LOG.md). The result is kept in
experiments/results/promised.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from lastword.evaluation.certification import labelled
from lastword.evaluation.choice import answers, resolved
from lastword.files.folder import Folder, locate
from lastword.methods.batch_calibrated import LEAST, label_set
from lastword.records.cells import Cell
from lastword.records.columns import Lists
from lastword.records.info import find_cells, read_run
from lastword.records.metrics import mc1_rows
from lastword.records.parts import missing_places
from lastword.records.stored import read_cells
from lastword.trust.certify import certified, choose
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled
from lastword.trust.policy import BATCH, GATED, MARGINS, TRACE, chains, scalar_operator
from lastword.trust.terms import Terms

RESULT = Path(__file__).parent / "results" / "promised.json"
ALPHAS = (0.05, 0.1)
SIZES = (50, 75, 100, 150, 200, 250, 300, 400)
LABELS, FEWEST, REST = 300, 150, 50
OFTEN = 0.8
SETS = "trec sst2 emotion agnews tools csqa arc banking77 clinc150".split()
PLAIN = (TRACE, GATED, "pmi@0.25", "pmi@0.5", "pmi@1")


@dataclass(frozen=True)
class Counted:
    """What every policy does to every item of a cell, but for batch calibration's.

    Attributes:
        name: Model and set.
        items: How the model answers them.
        methods: Of every chain, in order; batch calibration's last, where it applies.
        fixed: Whether a policy fixes an item [chains, margins, items].
        broken: Whether it breaks it.
        base: The base's probabilities, labels in the order of their texts [items, labels].
        truth: Which of these are true.
        sets: Number of each item's label set; -1 where few share it [items].
        duplicates: Items that share their prompt with another.
    """

    name: tuple[str, str]
    items: Labelled
    methods: tuple[str, ...]
    fixed: np.ndarray
    broken: np.ndarray
    base: np.ndarray
    truth: np.ndarray
    sets: np.ndarray
    duplicates: int


def cells_of(roots: Sequence[Folder]) -> dict[tuple[str, str], list[Folder]]:
    """Finished cells by model and set."""
    by_name: dict[tuple[str, str], list[Folder]] = {}
    for folder in (folder for root in roots for folder in find_cells(root)):
        if missing_places(folder):
            continue
        run = read_run(folder)
        name = run["benchmark"].removeprefix("jsonl:").removesuffix("-rest")
        if name in SETS:
            by_name.setdefault((run["model"], name), []).append(folder)
    return by_name


def counted(name: tuple[str, str], folders: Sequence[Folder]) -> Counted:
    """A cell as the study needs it."""
    run = read_run(folders[0])
    cells = [cell for folder in folders for cell in read_cells(folder)]
    items = labelled([cell.mc1_items for cell in cells])
    items = Labelled(
        **{**vars(items), "others": answers(items, cells, resolved(cells, run, PLAIN, {}))}
    )
    family = chains(scalar_operator(float(run["invariant"]), float(run["theta"]["tau_I"])), PLAIN)
    base, truth, sets = _base(cells)
    shared = bool((sets >= 0).any())
    return Counted(
        name,
        items,
        (*(chain[0].method for chain in family), *([BATCH] if shared else [])),
        np.array([[items.fixed(policy) for policy in chain] for chain in family]),
        np.array([[items.broken(policy) for policy in chain] for chain in family]),
        base,
        truth,
        sets,
        _duplicates(cells),
    )


def _base(cells: Sequence[Cell]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities and truths in the order of the labels' texts, and numbers of label sets."""
    rows = []
    for cell in cells:
        scores, truths = (Lists.of(cell.items[n]) for n in ("base_scores", "truthful"))
        names: dict[int, Sequence[str]] = {}
        for places, frame in cell.slices("candidates"):
            names |= dict(zip(places.tolist(), frame["candidates"], strict=True))
        for place in cell.mc1_places.tolist():
            order = sorted(range(len(names[place])), key=list(names[place]).__getitem__)
            at = np.array([place])
            own = scores.stack(at)[0][order], truths.stack(at)[0][order]
            rows.append((label_set(tuple(names[place])), *own))
    width = max(len(b) for _, b, _ in rows)
    base, truth = np.full((len(rows), width), -np.inf), np.zeros((len(rows), width), dtype=bool)
    for i, (_, b, t) in enumerate(rows):
        base[i, : len(b)], truth[i, : len(b)] = b, t
    counts = Counter(digest for digest, *_ in rows)
    numbers = {digest: n for n, (digest, c) in enumerate(counts.most_common()) if c >= LEAST}
    sets = np.array([numbers.get(digest, -1) for digest, *_ in rows])
    return softmax(base, axis=1), truth, sets


def _duplicates(cells: Sequence[Cell]) -> int:
    texts = Counter(
        " ".join(str(text).split()).casefold()
        for cell in cells
        for _, frame in cell.slices("prompt")
        for text in frame["prompt"]
    )
    return sum(count for count in texts.values() if count > 1)


def by_batch(cell: Counted, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What batch calibration with the mean of the labels fixes and breaks [margins, items]."""
    p, n = cell.base, len(cell.base)
    u = p.copy()
    learned = np.zeros(n, dtype=bool)
    for number in range(cell.sets.max() + 1):
        mine = labels[cell.sets[labels] == number]
        if len(mine) >= LEAST:
            there = cell.sets == number
            u[there] -= p[mine].mean(axis=0)
            learned |= there
    padded = np.where((p > 0) | cell.truth, u, -np.inf)
    best = np.partition(padded, -2, axis=1)[:, -2:]
    margin = best[:, 1] - best[:, 0]
    over = learned & (padded.argmax(axis=1) != p.argmax(axis=1))
    right, was = mc1_rows(padded, cell.truth), cell.items.mc1_base
    stands = over & (margin >= np.array(MARGINS[::-1])[:, None])
    return stands & (was == 0) & (right == 1), stands & (was > 0) & (right < 1)


def tried(cell: Counted, labels: int, resamples: int, seed: int) -> Iterator[Any]:
    """Fixed and broken of every policy on the labels and on all [chains, margins], by resample."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = rng.permutation(len(cell.items))[:labels]
        fixed, broken = cell.fixed, cell.broken
        if cell.methods[-1] == BATCH:
            own = by_batch(cell, drawn)
            fixed, broken = (
                np.concatenate([a, b[None]]) for a, b in zip((fixed, broken), own, strict=True)
            )
        yield tuple(w.sum(axis=-1) for w in (fixed[..., drawn], broken[..., drawn], fixed, broken))


def chosen(cell: Counted, labels: int, resamples: int, seed: int) -> dict[float, list[Any]]:
    """By alpha, of each resample the method and F and K on the labels, the rest and all."""
    drawn = [np.array(x) for x in zip(*tried(cell, labels, resamples, seed), strict=True)]
    fixed, broken, all_fixed, all_broken = drawn
    told: dict[float, list[Any]] = {}
    for alpha in ALPHAS:
        terms = Terms(alpha, methods=tuple(dict.fromkeys(cell.methods)))
        passed = certified(Evidence.of_counts(fixed, broken, labels), terms)
        places = choose(passed, fixed, broken)
        told[alpha] = [
            None
            if place < 0
            else (
                cell.methods[place // len(MARGINS)],
                *(int(x[i].flat[place]) for x in (fixed, broken, all_fixed, all_broken)),
            )
            for i, place in enumerate(places.tolist())
        ]
    return told


def judged(cell: Counted, resamples: int, seed: int) -> dict[str, Any]:
    """A cell's row: what was chosen, and what it did on the rest."""
    n = len(cell.items)
    labels = LABELS if n > LABELS + REST else 2 * n // 3
    row: dict[str, Any] = {
        **dict(zip(("model", "set"), cell.name, strict=True)),
        **{"items": n, "labels": labels, "same prompt": cell.duplicates},
        "base": round(100 * float(cell.items.mc1_base.mean()), 2),
    }
    for alpha, choices in chosen(cell, labels, resamples, seed).items():
        row[f"{alpha:g}"] = _outcome(choices, n - labels, n, alpha)
    shares = {
        size: {a: _through(c) for a, c in chosen(cell, size, resamples, seed).items()}
        for size in SIZES
        if size <= n - REST
    }
    row["let through"] = {f"{a:g}": {s: own[a] for s, own in shares.items()} for a in ALPHAS}
    row["labels needed"] = {
        f"{a:g}": next((s for s, own in shares.items() if own[a] >= OFTEN), None) for a in ALPHAS
    }
    return row


def _through(choices: Sequence[Any]) -> float:
    return sum(choice is not None for choice in choices) / len(choices)


def _outcome(choices: Sequence[Any], rest: int, items: int, alpha: float) -> dict[str, Any]:
    on = [choice for choice in choices if choice is not None]
    methods = Counter(method for method, *_ in on)
    seen = [(af - f, ab - b) for _, f, b, af, ab in on]
    worse = sum(b > alpha * rest or f <= b for f, b in seen)
    whole = sum(ab > alpha * items or af <= ab for *_, af, ab in on)
    gains = [100 * (f - b) / rest for f, b in seen]
    return {
        "let through": round(len(on) / len(choices), 4),
        "method": methods.most_common(1)[0][0] if on else None,
        "its share": round(methods.most_common(1)[0][1] / len(on), 4) if on else None,
        "gain": round(float(np.mean(gains)), 2) if on else None,
        "gain over all": round(sum(gains) / len(choices), 2),
        "broken": round(100 * float(np.mean([b for _, b in seen])) / rest, 2) if on else None,
        "worse than promised": round(worse / len(choices), 4),
        "worse, whole cell": round(whole / len(choices), 4),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: at 5% and at 10%, then the labels needed."""
    yield (
        "| set | model | labels of | base | at 5%: on | gain | broken | worse "
        "| at 10%: on | method | gain | broken | worse | needed 5% | 10% |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|"
    for row in rows:
        five, ten = row["0.05"], row["0.1"]
        needed = [row["labels needed"][a] or "–" for a in ("0.05", "0.1")]
        cells = [
            *(row["set"], row["model"], f"{row['labels']} of {row['items']}", row["base"]),
            *(f"{five['let through']:.0%}", five["gain"], five["broken"]),
            *(f"{five['worse than promised']:.1%}", f"{ten['let through']:.0%}", ten["method"]),
            *(ten["gain"], ten["broken"], f"{ten['worse than promised']:.1%}", *needed),
        ]
        yield "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    rows, few = [], []
    for name, folders in sorted(cells_of([locate(path) for path in options.runs]).items()):
        cell = counted(name, folders)
        if len(cell.items) < FEWEST:
            few.append({"model": name[0], "set": name[1], "items": len(cell.items)})
            continue
        rows.append(judged(cell, options.resamples, options.seed))
    told = {"resamples": options.resamples, "cells": rows, "too few items": few}
    RESULT.write_text(json.dumps(told, indent=1) + "\n")
    print("\n".join(table(sorted(rows, key=lambda row: (row["set"], row["model"])))))


if __name__ == "__main__":
    main()
