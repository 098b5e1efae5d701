"""The numbers of docs/evidence.md, recomputed from the stored records by independent code.

    python experiments/recompute.py [CELL ...]

Reads the Parquet files with pyarrow and computes the rest in numpy and scipy, from the definitions
of docs/statistics.md. Prints differences from `results/evidence.json`, and
exits with 1 if there are any. CELL is a part of a cell's name, such as trec.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.special import log_softmax, softmax

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def main() -> None:
    rows = json.loads((RESULTS / "evidence.json").read_text(encoding="utf-8"))
    wanted = [
        r for r in rows if not sys.argv[1:] or any(w in "/".join(r["cell"]) for w in sys.argv[1:])
    ]
    lines = [line for row in wanted for line in differences(row)] + [*unlike_holm(rows)]
    print("\n".join(lines) or f"{len(wanted)} cells: no disagreement")
    sys.exit(1 if lines else 0)


def differences(row: Row) -> Iterator[str]:
    """Yield differences between the page's numbers of a cell and those of its records."""
    root, items = records(*row["cell"])
    for name, (theirs, ours, within) in compared(row, root, items).items():
        both_nan = theirs is None and math.isnan(ours)
        if not both_nan and (theirs is None or not abs(theirs - ours) <= within):
            yield f"{' on '.join(row['cell'])}: {name} is {theirs} there and {ours} here"


def unlike_holm(rows: list[Row]) -> Iterator[str]:
    """Yield p-values that differ from one Holm's correction over every test of the page."""
    real = [r for r in rows if not re.search("lastword/demo|stories260K", r["cell"][0])]
    tests = [
        (f"{' on '.join(r['cell'])}: {name}", entry)
        for r in real
        for name, entry in (("TRACE", r), *r["corrections"].items())
    ]
    tests.sort(key=lambda test: test[1]["p"])
    least = 0.0
    for place, (name, entry) in enumerate(tests):
        least = max(least, min(1.0, entry["p"] * (len(tests) - place)))
        if not abs(entry["p_holm"] - least) < 1e-9:
            yield f"{name}: p by Holm is {entry['p_holm']} there and {least} here"


def records(model: str, benchmark: str) -> tuple[str, list[Row]]:
    """Return the root of a cell, and its items with a truth and a falsehood, for MC1."""
    for info in RESULTS.glob("evidence/*/*/*/run.json"):
        run, root = json.loads(info.read_text(encoding="utf-8")), info.parts[-4]
        name = "chat" if root == "chat" else run["benchmark"]
        if root != "peers" and (run["model"], name) == (model, benchmark):
            rows = [
                r
                for path in info.parent.glob("part-*.parquet")
                for r in pq.read_table(path).to_pylist()
            ]
            rows.sort(key=lambda r: r["place"])
            return root, [prepared(r) for r in rows if counts(r)]
    raise SystemExit(f"no records of {model} on {benchmark}")


def counts(r: Row) -> bool:
    return (
        r["error"] is None
        and r["kind"] in (None, "mc1")
        and any(r["truthful"])
        and not all(r["truthful"])
    )


def prepared(r: Row) -> Row:
    arrays = {
        name: None if r.get(name) is None else np.array(r[name], dtype=float)
        for name in (
            "scores",
            "base_scores",
            "blind_scores",
            "t_scores",
            "blind_t_scores",
            "trajectory",
            "blind_trajectory",
            "content_free_scores",
        )
    }
    tokens = np.array(r["candidate_tokens"], dtype=float)
    return (
        r | arrays | {"truthful": np.array(r["truthful"], dtype=bool), "candidate_tokens": tokens}
    )


def right(scores: np.ndarray, truthful: np.ndarray) -> float:
    """Return MC1: the share of true candidates among those tied for first."""
    first = scores == scores.max()
    return float(truthful[first].mean())


def compared(row: Row, root: str, items: list[Row]) -> dict[str, tuple[Any, float, float]]:
    """Return by name the page's number, ours, and the tolerance."""
    base = np.array([right(r["base_scores"], r["truthful"]) for r in items])
    trace = np.array([right(r["scores"], r["truthful"]) for r in items])
    fixed, broken = int((trace > base).sum()), int((trace < base).sum())
    beside = row["controls"]
    out = {
        "items": (row["items"], len(items), 0),
        "base": (row["base"], base.mean(), 1e-9),
        "TRACE": (row["trace"], trace.mean(), 1e-9),
        "fixed": (row["fixed"], fixed, 0),
        "broken": (row["broken"], broken, 0),
        "p": (row["p"], mcnemar(*by_pair(items, trace - base)), 1e-9),
        "chance": (beside["chance"], np.mean([r["truthful"].mean() for r in items]), 1e-9),
        "any depth": (beside["oracle"], oracle(items, "trajectory"), 1e-9),
    }
    for name, share in wordings(items).items():
        out[name] = (beside["wordings"][name], share, 1e-9)
    out |= flips(beside["placebo"], items, float(trace.mean() - base.mean()))
    if whole(items):
        out["any depth, blind"] = (beside["blind_oracle"], oracle(items, "blind_trajectory"), 1e-9)
        out |= fits(beside["fit"], items)
    for name, entry in row["corrections"].items():
        was, now = corrected(name, items)
        out[name] = (entry["mc1"], now.mean(), 1e-9)
        out[f"{name}: fixed"] = (entry["fixed"], int((now > was).sum()), 0)
        out[f"{name}: broken"] = (entry["broken"], int((now < was).sum()), 0)
        out[f"{name}: p"] = (entry["p"], mcnemar(entry["fixed"], entry["broken"]), 1e-9)
    if row["corrections"]:
        sums = [right(r["base_scores"] * r["candidate_tokens"], r["truthful"]) for r in items]
        out["base, sums"] = (row["base, sums"], np.mean(sums), 1e-9)
    return out


def whole(items: list[Row]) -> bool:
    return all(r["blind_trajectory"] is not None for r in items)


def by_pair(items: list[Row], gains: np.ndarray) -> tuple[int, int]:
    """Count pairs, and items without pair, that win more than they lose, and the opposite."""
    sums: dict[str, float] = {}
    for r, gain in zip(items, gains, strict=True):
        name = r["id"][:-2] if r["id"].endswith(("/a", "/b")) else f"{r['id']} alone"
        sums[name] = sums.get(name, 0.0) + gain
    rounded = np.round(list(sums.values()), 9)
    return int((rounded > 0).sum()), int((rounded < 0).sum())


def mcnemar(fixed: int, broken: int) -> float:
    n, k = fixed + broken, min(fixed, broken)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)


def oracle(items: list[Row], name: str) -> float:
    return float(np.mean([max(right(S, r["truthful"]) for S in r[name].T) for r in items]))


def wordings(items: list[Row]) -> dict[str, float]:
    lengths = [np.array([len(text) for text in r["candidates"]]) for r in items]
    both = list(zip(items, lengths, strict=True))
    return {
        "shortest": float(np.mean([right(-length, r["truthful"]) for r, length in both])),
        "longest": float(np.mean([right(length, r["truthful"]) for r, length in both])),
        "question-blind": float(np.mean([right(r["blind_scores"], r["truthful"]) for r in items])),
        "anti-blind": float(np.mean([right(-r["blind_scores"], r["truthful"]) for r in items])),
    }


def flips(placebo: Row, items: list[Row], gain: float) -> dict[str, tuple[Any, float, float]]:
    """Compare with overrides at random, drawn item by item."""
    count = sum(r["index"] != r["base_index"] for r in items)
    out: dict[str, tuple[Any, float, float]] = {"flips": (placebo["overrides"], count, 0)}
    if not count:
        return out
    was = np.array([float(r["truthful"][r["base_index"]]) for r in items])
    elsewhere = [
        (r["truthful"].sum() - w) / (len(r["truthful"]) - 1)
        for r, w in zip(items, was, strict=True)
    ]
    rng, gains = np.random.default_rng(7), []
    for _ in range(2000):
        some = rng.choice(len(items), count, replace=False)
        became = rng.random(count) < np.array(elsewhere)[some]
        gains.append((became - was[some]).sum() / len(items))
    mean = count / len(items) * float(np.mean(np.array(elsewhere) - was))
    out["flips' gain"] = (placebo["gain"], mean, 5 * float(np.std(gains)) / math.sqrt(4000) + 1e-9)
    out["flips' P"] = (placebo["p"], float(np.mean(np.array(gains) >= gain - 1e-12)), 0.06)
    return out


def fits(fit: Row, items: list[Row]) -> dict[str, tuple[Any, float, float]]:
    """Fit wording, then b, then the middle: ridge logits, each fold by the others' weights."""
    blocks = []
    for r in items:
        free = r["content_free_scores"]
        mean = np.zeros(len(r["candidates"])) if free is None else free.mean(axis=0)
        lengths = np.log(r["candidate_tokens"]), np.log([len(text) for text in r["candidates"]])
        unread = [*r["blind_trajectory"].T, r["blind_t_scores"], mean, *lengths]
        S = r["trajectory"]
        read = [S[:, -1], *(S[:, :-1] - S[:, 1:]).T, r["t_scores"] - S[:, -1]]
        blocks.append(np.stack([*unread, *read], axis=1))
    centred = [block - block.mean(axis=0) for block in blocks]
    size = np.sqrt((np.concatenate(centred) ** 2).mean(axis=0))
    size[size == 0] = 1
    x = [block / size for block in centred]
    folds, first = folds_of(items), len(unread)
    answers = [answered(items, [f[:, :n] for f in x], folds) for n in (first, first + 1, None)]
    out: dict[str, tuple[Any, float, float]] = {
        "fitted wording": (fit["wording"], float(answers[0].mean()), 1e-9)
    }
    steps = {"reading": (answers[0], answers[1]), "middle": (answers[1], answers[2])}
    for name, (before, after) in steps.items():
        out[f"{name} adds"] = (fit[name]["fixed"], int((after > before).sum()), 0)
        out[f"{name} loses"] = (fit[name]["broken"], int((after < before).sum()), 0)
    return out


def folds_of(items: list[Row]) -> np.ndarray:
    stems = [re.sub(r"/[ab]$", "", str(r["id"])) for r in items]
    names, group = np.unique(stems, return_inverse=True)
    fold = np.arange(len(names)) % 10
    np.random.default_rng(0).shuffle(fold)
    return fold[group]


def answered(items: list[Row], x: list[np.ndarray], folds: np.ndarray) -> np.ndarray:
    """Return MC1 of each item by the other folds' weights, at the penalty of minimum log loss."""
    width = max(map(len, x))
    X = np.zeros((len(x), width, x[0].shape[1]))
    target, absent = np.zeros((len(x), width)), np.ones((len(x), width), bool)
    for i, (f, r) in enumerate(zip(x, items, strict=True)):
        X[i, : len(f)], absent[i, : len(f)] = f, False
        target[i, : len(f)] = r["truthful"] / r["truthful"].sum()
    best: tuple[float, np.ndarray] = (math.inf, np.empty(0))
    for penalty in 10.0 ** np.arange(-1, 4.1, 0.5):
        scores = np.full(absent.shape, -1e9)
        for fold in range(10):
            test, rest = folds == fold, folds != fold
            scores[test] = X[test] @ logit(X[rest], target[rest], absent[rest], penalty)
        scores[absent] = -1e9
        loss = -float((target * log_softmax(scores, axis=1)).sum())
        if loss < best[0]:
            best = loss, scores
    return np.array(
        [right(u[: len(f)], r["truthful"]) for u, f, r in zip(best[1], x, items, strict=True)]
    )


def logit(X: np.ndarray, target: np.ndarray, absent: np.ndarray, penalty: float) -> np.ndarray:
    """Maximise the sum of the mean log-probabilities of the truths minus penalty |w|^2 / 2."""
    rows, w = X.reshape(-1, X.shape[2]), np.zeros(X.shape[2])
    for _ in range(100):
        p = softmax(np.where(absent, -1e9, X @ w), axis=1)
        means = (p[:, :, None] * X).sum(axis=1)
        slope = (p - target).reshape(-1) @ rows + penalty * w
        bend = (p.reshape(-1, 1) * rows).T @ rows - means.T @ means + penalty * np.eye(len(w))
        step = np.linalg.solve(bend, slope)
        w = w - step
        if np.abs(step).max() < 1e-9:
            break
    return w


def corrected(name: str, items: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return MC1 of the base and of a correction, item by item."""
    was = [right(r["base_scores"], r["truthful"]) for r in items]
    if name.startswith("pmi@"):
        weight = float(name.removeprefix("pmi@"))
        scores = [r["base_scores"] - weight * r["blind_scores"] for r in items]
    elif name == "dcpmi":
        tokens = [r["candidate_tokens"] for r in items]
        both = list(zip(items, tokens, strict=True))
        scores = [(r["base_scores"] - r["blind_scores"]) * n for r, n in both]
    elif name == "batch-calibrated":
        p = np.stack([softmax(r["base_scores"]) for r in items])
        scores = list(p - p.mean(axis=0))
    else:
        assert name == "trace-gated", name
        scores = [gated(r) for r in items]
    now = [right(u, r["truthful"]) for u, r in zip(scores, items, strict=True)]
    return np.array(was), np.array(now)


def gated(r: Row) -> np.ndarray:
    """Return TRACE's scores if the question moved the override at the deciding depth, else b."""
    u, b = r["scores"], r["base_scores"]
    e, o = int(u.argmax()), int(b.argmax())
    if e == o:
        return u
    S, B = r["trajectory"], r["blind_trajectory"]
    depth = {"early": 0, "mix": S.shape[1] - 1}.get(r["operator"], r["decisive_layer"])
    T = S[:, depth] - B[:, depth]
    return u if T[e] - T[o] > max(1e-4, (S[e, depth] - S[o, depth]) / 2) else b


if __name__ == "__main__":
    main()
