"""What breaks probes: longer inputs, texts that say what to answer, texts of another source.

    OMP_NUM_THREADS=1 python experiments/breaks.py MODEL DATA --keep FOLDER [--seconds 900]

DATA and FOLDER are those of probes.py, which has read the states of trec, sst2, agnews, emotion.
Each probe is fitted on 100 labels, depth and pooling by leave-one-out. Beside the share right
stands the share of texts whose p-value of being like the labelled ones is at most 0.01 and 0.05:
with 100 labels the first is a text farther out than each of them.

- length: all sets but TREC, whose 300 texts are short. Fitted on texts under 40 tokens (AG News:
  60); asked of 200 others as short, as they are, then in the middle of neighbours, other texts of
  the set in their order, up to 400 and 2,000 tokens. Of each length as many as --seconds a set
  allow are asked, in turns of 20.
- injections: the texts of injections.py from sets with one list of options, two sets a run. Fitted
  on texts before those. The answer has moved if it was not X before and is X then; pmi@0.5, pmi@1,
  letters and the model on the same texts are those of results/injections.jsonl.
- source: AG News. Fitted on texts that name no news agency, asked of those that name one, and of
  the rest of its own kind.
- topic: all four sets. Each class is halved by the first direction of a TF-IDF of its texts, which
  sees no label but the class; fitted on one half, asked of the other, and of the rest of its own.
Source and topic are drawn with 10 seeds. The result goes to experiments/results/probes; what is
there is not done again.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from injections import FIRST, HARMLESS, inputs, sentences
from probes import RESULTS, answers, question, read, rows_of

from lastword import Tracer
from lastword.decide.decider import read_passages
from lastword.decide.questionnaire import prepare
from lastword.probes import fit_state
from lastword.probes.state import POOLINGS, StateProbe

LABELS, SEEDS, TURN = 100, 10, 20
SHORT = {"sst2": 40, "emotion": 40, "agnews": 60}  # tokens
LENGTHS, ASKED = (400, 2000), 200
LEVELS = (0.01, 0.05)
SETS = ("trec", "sst2", "agnews", "emotion")
AGENCY = re.compile(r"\b(reuters|AP|AFP)\b", re.IGNORECASE)
INJECTED = Path(__file__).resolve().parent / "results" / "injections.jsonl"

Data = dict[str, np.ndarray]
Figures = dict[str, Any]


def fitted(data: Data, places: np.ndarray) -> StateProbe:
    """Return the probe of some texts."""
    return fit_state(data["x"][places], data["y"][places].tolist()).probe


def figures(right: Sequence[bool], p: Sequence[float]) -> Figures:
    """Return the share right, and how many p-values are low."""
    below = {str(level): float((np.array(p) <= level).mean()) for level in LEVELS}
    return {"texts": len(right), "right": float(np.mean(right)), "p": below}


def judged(probe: StateProbe, data: Data, places: np.ndarray) -> Figures:
    """Return the figures of texts whose states are kept."""
    x = data["x"][places]
    rows = x[:, probe.depth, POOLINGS.index(probe.pooling)]
    return figures(answers(probe, x) == data["y"][places], probe.likeness_p(rows))


def said(tracer: Tracer, probe: StateProbe, row: Any, texts: list[str]) -> tuple[Any, Any]:
    """Return a probe's answers to texts, and their p-values."""
    ready = prepare({"q": question(row)})
    named = [(text, None) for text in texts]
    asked = ready.questions["q"]
    passages: Any = read_passages(tracer, named, asked, ready.template, probe.pooling)
    states = tracer.pooled(passages, [probe.depth])[:, 0].astype(np.float64)
    best = probe.scores(states).argmax(axis=1)
    return np.array(probe.classes)[best], probe.likeness_p(states)


def length(tracer: Tracer, row: Any, data: Data, short: int, seconds: float) -> Figures:
    """Return the figures by length, of a probe of texts that are short."""
    tokens = [len(tracer.tokenizer(text)["input_ids"]) for text in data["text"].tolist()]
    order = np.random.default_rng(0).permutation(np.flatnonzero(np.array(tokens) < short))
    fit, test = order[:LABELS], order[LABELS : LABELS + ASKED]
    probe, pool = fitted(data, fit), np.setdiff1d(order, fit)
    found: dict[str, Any] = {"as they are": judged(probe, data, test)}
    right: dict[int, list[bool]] = {own: [] for own in LENGTHS}
    p: dict[int, list[float]] = {own: [] for own in LENGTHS}
    begin = time.monotonic()
    for first in range(0, len(test), TURN):
        some = test[first : first + TURN]
        for own in LENGTHS:
            texts = [_among(data, tokens, place, pool, own) for place in some]
            told, values = said(tracer, probe, row, texts)
            right[own] += (told == data["y"][some]).tolist()
            p[own] += values.tolist()
            found[f"in {own} tokens"] = figures(right[own], p[own])
        if time.monotonic() - begin > seconds:
            break
    return {
        "reads": [probe.depth, probe.pooling],
        "as they are, the same texts": judged(probe, data, test[: len(right[LENGTHS[0]])]),
    } | found


def _among(data: Data, tokens: list[int], place: int, pool: np.ndarray, most: int) -> str:
    """Return a text in the middle of neighbours, about so many tokens in all."""
    at = int(np.flatnonzero(pool == place)[0])
    others, count = np.roll(pool, -at)[1:].tolist(), tokens[place]
    sides: tuple[list[str], list[str]] = ([], [])
    for turn in range(len(others) * (1 + most // 1000)):
        other = others[turn % len(others)]
        if count + tokens[other] > most:
            break
        sides[turn % 2].append(str(data["text"][other]))
        count += tokens[other]
    return "\n".join([*sides[0], str(data["text"][place]), *sides[1]])


def injected(tracer: Tracer, folder: Path, data: dict[str, Data]) -> Figures:
    """Return how often an answer moves, by method, and what the p-values saw."""
    lines = [*map(json.loads, INJECTED.read_text(encoding="utf-8").splitlines())]
    kinds, probes = sentences(tracer), {}
    moved, of = Counter[str](), Counter[str]()
    p: dict[str, list[float]] = {
        "as they are": [],
        "told what to say": [],
        "told something else": [],
    }
    for place, (own, line) in enumerate(zip(inputs(folder, len(lines)), lines, strict=True)):
        if (name := own["set"]) not in data:
            continue
        if name not in probes:
            probes[name] = fitted(data[name], np.arange(FIRST))
        row = rows_of(folder / f"{name}.jsonl")[0]
        kind, wanted = line["kind"], own["wanted"]
        assert (kind, wanted) == (list(kinds)[place // 7 % len(kinds)], line["wanted"])
        texts = [own["text"], f"{own['text']}\n{kinds[kind].format(x=wanted)}"]
        texts += [f"{own['text']}\n{HARMLESS}"] * (line["harmless"] is not None)
        told, values = said(tracer, probes[name], row, texts)
        for column, value in zip(p, values.tolist(), strict=False):
            p[column].append(value)
        each = {m: (line["before"][m], line["told"][m]) for m in line["before"]}
        for method, (before, after) in (each | {"probe": (told[0], told[1])}).items():
            if before != wanted:
                for key in (method, f"{method}, {kind}"):
                    of[key] += 1
                    moved[key] += int(after == wanted)
        if len(texts) > 2 and told[0] != wanted:
            of["probe, harmless"] += 1
            moved["probe, harmless"] += int(told[2] == wanted)
    return {
        "moved": {key: [moved[key], of[key]] for key in sorted(of)},
        "p": {
            name: {"texts": len(v)} | {str(a): float((np.array(v) <= a).mean()) for a in LEVELS}
            for name, v in p.items()
        },
    }


def shifted(data: Data, other: np.ndarray) -> Figures:
    """Return the figures on the other kind and the rest of one's own, means over the seeds."""
    own = np.flatnonzero(~other)
    draws: dict[str, list[Figures]] = {"own kind": [], "other kind": []}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(own)
        probe = fitted(data, order[:LABELS])
        draws["own kind"].append(judged(probe, data, order[LABELS:]))
        draws["other kind"].append(judged(probe, data, np.flatnonzero(other)))
    return {
        name: {
            "texts": each[0]["texts"],
            "right": float(np.mean([f["right"] for f in each])),
            "p": {str(a): float(np.mean([f["p"][str(a)] for f in each])) for a in LEVELS},
        }
        for name, each in draws.items()
    }


def topics(data: Data) -> np.ndarray:
    """Return where a text is in the second half of its class by topic."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    second = np.zeros(len(data["y"]), dtype=bool)
    for name in np.unique(data["y"]):
        places = np.flatnonzero(data["y"] == name)
        weights = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        words = weights.fit_transform(data["text"][places].tolist())
        along = TruncatedSVD(2, random_state=0).fit_transform(words)[:, 1]
        second[places] = along > np.median(along)
    return second


def by_topic(data: Data) -> Figures:
    """Return the figures on the half of each class that no label is of, and on the rest."""
    return shifted(data, topics(data))


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| what | of | texts | right | p at most 0.01 | 0.05 |"
    yield "|---|---|--:|--:|--:|--:|"
    for what, rows in found.items():
        for name, own in rows.items() if not what.startswith("injections") else ():
            if isinstance(own, dict):
                low = " | ".join(f"{100 * own['p'][str(a)]:.0f}%" for a in LEVELS)
                yield f"| {what} | {name} | {own['texts']} | {100 * own['right']:.1f} | {low} |"
    injections = {what: own for what, own in found.items() if what.startswith("injections")}
    for what, rows in injections.items():
        for name, own in rows["p"].items():
            low = " | ".join(f"{100 * own[str(a)]:.0f}%" for a in LEVELS)
            yield f"| {what} | {name} | {own['texts']} | – | {low} |"
    for what, rows in injections.items():
        yield ""
        yield f"| {what}: told what to say | answers moved | of |"
        yield "|---|--:|--:|"
        for method, (moved, of) in rows["moved"].items():
            if "," not in method or "harmless" in method:  # by kind of sentence in the JSON
                yield f"| {method} | {moved} | {of} |"


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for the lengths")
    asked = parser.parse_args()
    name = Path(asked.model).name
    data = {own: read(None, asked.data / f"{own}.jsonl", asked.keep, name) for own in asked.sets}
    out = RESULTS / f"breaks-{name}.json"
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}

    def write(what: str, figures: Callable[[], Figures]) -> None:
        if what in found:
            return
        found[what] = figures()
        text = "\n".join(lines_of(found)) + "\n"
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(text, encoding="utf-8")
        print(text, flush=True)

    if "agnews" in data:
        texts = data["agnews"]["text"].tolist()
        agency = np.array([AGENCY.search(text) is not None for text in texts])
        write("another source, agnews", lambda: shifted(data["agnews"], agency))
    for own in asked.sets:
        write(f"another topic, {own}", partial(by_topic, data[own]))
    tracer = Tracer.from_pretrained(asked.model)
    write(f"injections, {' and '.join(asked.sets)}", lambda: injected(tracer, asked.data, data))
    for own in [own for own in SHORT if own in asked.sets]:
        row = rows_of(asked.data / f"{own}.jsonl")[0]
        figure = partial(length, tracer, row, data[own], SHORT[own], asked.seconds)
        write(f"length, {own}", figure)


if __name__ == "__main__":
    main()
