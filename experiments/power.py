"""How often something is certified, before and now: version 0.3's graph beside today's shares.

    OMP_NUM_THREADS=1 python experiments/power.py DATA --keep FOLDER

DATA and FOLDER are those of promised.py, whose populations and draws these are, with 100 labels;
its results are the columns of today. Version 0.3 tested every method at eight margins, TRACE by
three sets of operators, and shared delta by a graph: a policy that passes hands its share to the
margins beside its own, and to the other methods at that margin. Nothing was fitted. The result goes
to experiments/results/power.json, its table to power.md beside it; what is there is not done again.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from probes import asked_of, rows_of
from promised import ALPHA, told_of
from scipy.stats import binom

from lastword.trust.evidence import Evidence
from lastword.trust.policy import GATED, OFF, TRACE, Policy

RESULTS = Path(__file__).resolve().parent / "results"
MARGINS = (4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.25, 0.0)
DELTA, LABELS, DRAWS = 0.05, 100, 200
NOW = {"shares, corrections": "gain, corrections alone", "shares, with a probe": "gain"}
BEFORE = {"graph, few breaks": "breaks", "graph, a gain": "gain"}
NULL = ", labels permuted"


def chains(scalar: str, methods: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Return version 0.3's chains: a method, and the operators whose overrides stand."""
    both = ("decisive", scalar)
    of_trace: dict[str, list[tuple[str, ...]]] = {
        TRACE: [("decisive",), (scalar,), both],
        GATED: [both],
    }
    return [(method, own) for method in methods for own in of_trace.get(method, [(method,)])]


def graph(p: np.ndarray, level: float) -> np.ndarray:
    """Return what falls by the graphical procedure (Bretz 2009) [chains, margins].

    A hypothesis falls where p <= w level. Then w_j += w_i g_ij, and
    g_jk = (g_jk + g_ji g_ik) / (1 - g_ji g_ij).
    """
    chain, step = np.divmod(np.arange(p.size), p.shape[1])
    apart = np.abs(chain[:, None] - chain), np.abs(step[:, None] - step)
    near = ((apart[1] == 1) & (apart[0] == 0)) | ((apart[1] == 0) & (apart[0] > 0))
    g, w = near / near.sum(axis=1, keepdims=True), np.full(p.size, 1 / p.size)
    left, fallen = p.ravel().copy(), np.zeros(p.size, dtype=bool)
    while (falls := left <= w * level).any():
        i = int(falls.argmax())
        fallen[i], left[i] = True, np.inf
        w, out, into = w + w[i] * g[i], g[i], g[:, i]
        loop = 1 - into * out
        g = (g + into[:, None] * out) / np.where(loop > 1e-12, loop, np.inf)[:, None]
        w[i] = g[i] = g[:, i] = 0.0
        np.fill_diagonal(g, 0.0)
    return fallen.reshape(p.shape)


def drawn(
    answers: np.ndarray, base: np.ndarray, truths: np.ndarray, some: np.ndarray
) -> Iterator[tuple[str, Any]]:
    """Return by promise what passes: its chain, at least, gain on the rest, true gain, worse.

    Args:
        answers: Of every policy, margins falling [chains, margins, texts].
        base: The model's own [texts].
        truths: The right ones [texts].
        some: Places of the labels.
    """
    was, right = base == truths, answers == truths
    fixed, broken = right & ~was, was & ~right
    f, k = fixed[..., some].sum(axis=-1), broken[..., some].sum(axis=-1)
    sign = binom.cdf(k, f + k, 0.5)
    rest = np.delete(np.arange(len(truths)), some)
    for name, promise in BEFORE.items():
        few = promise == "breaks"
        p = np.maximum(sign, binom.cdf(k, len(some), ALPHA)) if few else sign
        worth = np.where(graph(p, DELTA) & (f > k), (f - k) * (len(some) + 1) - k, 0)
        if not worth.any():
            yield name, None
            continue
        place = np.unravel_index(int(worth.argmax()), worth.shape)
        sizes = f[place], k[place], len(some) - f[place] - k[place]
        kinds = np.repeat(np.arange(3), sizes)  # fixed, broken, left
        evidence = Evidence.of(kinds > 0, kinds != 1, np.arange(len(some)))
        least = evidence.net_bound(1.0, DELTA / p.size)
        gains = fixed[place].astype(float) - broken[place]
        worse = gains.mean() <= 0 or gains.mean() < least
        worse |= few and broken[place].mean() > ALPHA
        yield name, (int(place[0]), least, gains[rest].mean(), gains.mean(), bool(worse))


def cell(path: Path, keep: Path, model: str) -> dict[str, Any]:
    """Return what the draws of a model and set come to, with the right labels and permuted."""
    sample, found = asked_of(path, keep, model), dict[str, Any]()
    items, (scores, truths) = sample.items, sample.shown(OFF)
    base = np.array([int(np.argmax(u)) for u in scores])
    answers: list[Any] = []
    for method, operators in chains(sample.scalar, sample.methods):
        own = np.array([int(np.argmax(u)) for u in sample.shown(_all_of(method, sample))[0]])
        stands = [items.stands(Policy(operators, margin, method)) for margin in MARGINS]
        answers.append([np.where(each, own, base) for each in stands])
    options, shown = np.array([len(u) for u in scores]), np.stack(answers)
    one = len({json.dumps(row["choices"]) for row in rows_of(path)}) == 1
    for kind in ("", NULL):
        rows = []
        for seed in range(DRAWS):
            rng, right = np.random.default_rng(seed), np.array(truths)
            if kind:
                right = rng.permutation(right) if one else rng.integers(options)
            some = rng.permutation(len(right))[:LABELS]
            rows.append(dict(drawn(shown, base, right, some)))
        found[kind] = {name: told_of([row[name] for row in rows]) for name in BEFORE}
    return found


def _all_of(method: str, sample: Any) -> Policy:
    """Return the policy that lets all overrides of a method stand."""
    both = ("decisive", sample.scalar)
    return Policy(both if method in (TRACE, GATED) else (method,), 0.0, method)


def table(result: dict[str, Any], promised: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown: on, true gain and wrong, by procedure; means last."""
    columns = [*BEFORE, *NOW]
    yield f"| model, set | {' | '.join(columns)} |"
    yield "|---|" + "---|" * len(columns)
    for kind in ("", NULL):
        rows = []
        for name, own in result.items():
            now = promised[name]["drawn"][kind][str(LABELS)]
            row = [*own[kind].values(), *(now[key] for key in NOW.values())]
            rows.append([[100 * one["on"], one["true gain"], 100 * one["worse"]] for one in row])
            if not kind:
                yield f"| {name} | {' | '.join(_three(*three) for three in rows[-1])} |"
        for what, of in (("mean", np.mean), ("largest", np.max)):
            each = (_three(*three) for three in of(rows, axis=0))
            yield f"| {what} of {len(rows)} cells{kind} | {' | '.join(each)} |"


def _three(on: float, gain: float, wrong: float) -> str:
    return f"{on:.0f}%, {gain:+.1f}, {wrong:.1f}%"


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the records")
    asked = parser.parse_args()
    promised = json.loads((RESULTS / "promised.json").read_text(encoding="utf-8"))
    out = RESULTS / "power.json"
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for name in promised.keys() - result.keys():
        model, _, own = name.partition(", ")
        result[name] = cell(asked.data / f"{own}.jsonl", asked.keep, model)
        whole = {name: result[name] for name in promised if name in result}
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        lines = "\n".join(table(whole, promised)) + "\n"
        out.with_suffix(".md").write_text(lines, encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
