"""Accuracy of probes on longer inputs, on injections, and on texts of another source or topic.

    OMP_NUM_THREADS=1 python experiments/breaks.py MODEL DATA --keep FOLDER [--seconds 900]

DATA and FOLDER are those of probes.py, which has stored the states of trec, sst2, agnews, emotion.
Each probe is fitted to 100 labels, with depth and pooling by leave-one-out. The tables have the
accuracy and the share of texts whose likeness p-value is at most 0.01 and 0.05. With 100 labels,
0.01 means that the text is farther out than each labelled one.

- length: all sets but TREC, whose 300 texts are short. Fitted to texts under 40 tokens (AG News:
  60); tested on 200 other short texts, alone and in the middle of neighbours (other texts of the
  set in order) up to 400 and 2,000 tokens. The number of texts per length depends on --seconds per
  set; lengths take turns of 20 texts.
- injections: the texts of injections.py from sets with one list of options, two sets per run.
  Fitted to earlier texts. An answer has moved if it was not X before the injection and is X after
  it. Results of pmi@0.5, pmi@1, letters and the model are those of results/injections.jsonl.
- source: AG News. Fitted to texts that name no news agency, tested on texts that name one, and on
  the remaining texts without.
- topic: all four sets. Each class is split in half by the first direction of a TF-IDF of its texts
  (without labels other than the class). Fitted to one half, tested on the other and on the rest.
Source and topic use 10 seeds. The result goes to experiments/results/probes; existing results are
not computed again.
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
from lastword.decide.questionnaire import prepare
from lastword.decide.states import read_passages
from lastword.probes import fit_state
from lastword.probes.state import POOLINGS, LinearProbe

LABELS, SEEDS, TURN = 100, 10, 20
SHORT = {"sst2": 40, "emotion": 40, "agnews": 60}  # tokens
LENGTHS, TESTED = (400, 2000), 200
LEVELS = (0.01, 0.05)
SETS = ("trec", "sst2", "agnews", "emotion")
AGENCY = re.compile(r"\b(reuters|AP|AFP)\b", re.IGNORECASE)
INJECTED = Path(__file__).resolve().parent / "results" / "injections.jsonl"

Data = dict[str, np.ndarray]
Figures = dict[str, Any]


def fit_probe(data: Data, places: np.ndarray) -> LinearProbe:
    """Return the probe fitted to some texts."""
    return fit_state(data["x"][places], data["y"][places].tolist()).probe


def figures(right: Sequence[bool], p: Sequence[float]) -> Figures:
    """Return the accuracy, and the share of low p-values."""
    below = {str(level): float((np.array(p) <= level).mean()) for level in LEVELS}
    return {"texts": len(right), "right": float(np.mean(right)), "p": below}


def judged(probe: LinearProbe, data: Data, places: np.ndarray) -> Figures:
    """Return the figures of texts with stored states."""
    x = data["x"][places]
    rows = x[:, probe.blocks[0].layer, POOLINGS.index(probe.blocks[0].pooling)]
    return figures(answers(probe, x) == data["y"][places], probe.likeness_p(rows))


def predict(tracer: Tracer, probe: LinearProbe, row: Any, texts: list[str]) -> tuple[Any, Any]:
    """Return a probe's answers to texts, and the p-values."""
    ready = prepare({"q": question(row)})
    named = [(text, None) for text in texts]
    choice = ready.questions["q"]
    passages: Any = read_passages(tracer, named, choice, ready.template, probe.blocks[0].pooling)
    states = tracer.pooled(passages, [probe.blocks[0].layer])[:, 0].astype(np.float64)
    best = probe.scores(states).argmax(axis=1)
    return np.array(probe.classes)[best], probe.likeness_p(states)


def length(tracer: Tracer, row: Any, data: Data, short: int, seconds: float) -> Figures:
    """Return the figures by length, of a probe fitted to short texts."""
    tokens = [len(tracer.tokenizer(text)["input_ids"]) for text in data["text"].tolist()]
    order = np.random.default_rng(0).permutation(np.flatnonzero(np.array(tokens) < short))
    fit, test = order[:LABELS], order[LABELS : LABELS + TESTED]
    probe, pool = fit_probe(data, fit), np.setdiff1d(order, fit)
    results: dict[str, Any] = {"as they are": judged(probe, data, test)}
    right: dict[int, list[bool]] = {size: [] for size in LENGTHS}
    p: dict[int, list[float]] = {size: [] for size in LENGTHS}
    begin = time.monotonic()
    for first in range(0, len(test), TURN):
        some = test[first : first + TURN]
        for size in LENGTHS:
            texts = [_among(data, tokens, place, pool, size) for place in some]
            predicted, values = predict(tracer, probe, row, texts)
            right[size] += (predicted == data["y"][some]).tolist()
            p[size] += values.tolist()
            results[f"in {size} tokens"] = figures(right[size], p[size])
        if time.monotonic() - begin > seconds:
            break
    return {
        "reads": [probe.blocks[0].layer, probe.blocks[0].pooling],
        "as they are, the same texts": judged(probe, data, test[: len(right[LENGTHS[0]])]),
    } | results


def _among(data: Data, tokens: list[int], place: int, pool: np.ndarray, most: int) -> str:
    """Return a text in the middle of neighbours, with about so many tokens in total."""
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
    """Return how often answers move, by method, and the p-values."""
    lines = [*map(json.loads, INJECTED.read_text(encoding="utf-8").splitlines())]
    kinds, probes = sentences(tracer), {}
    moved, of = Counter[str](), Counter[str]()
    p: dict[str, list[float]] = {
        "as they are": [],
        "told what to say": [],
        "told something else": [],
    }
    for place, (entry, line) in enumerate(zip(inputs(folder, len(lines)), lines, strict=True)):
        if (name := entry["set"]) not in data:
            continue
        if name not in probes:
            probes[name] = fit_probe(data[name], np.arange(FIRST))
        row = rows_of(folder / f"{name}.jsonl")[0]
        kind, wanted = line["kind"], entry["wanted"]
        assert (kind, wanted) == (list(kinds)[place // 7 % len(kinds)], line["wanted"])
        texts = [entry["text"], f"{entry['text']}\n{kinds[kind].format(x=wanted)}"]
        texts += [f"{entry['text']}\n{HARMLESS}"] * (line["harmless"] is not None)
        predicted, values = predict(tracer, probes[name], row, texts)
        for column, value in zip(p, values.tolist(), strict=False):
            p[column].append(value)
        each = {m: (line["before"][m], line["told"][m]) for m in line["before"]}
        for method, (before, after) in (each | {"probe": (predicted[0], predicted[1])}).items():
            if before != wanted:
                for key in (method, f"{method}, {kind}"):
                    of[key] += 1
                    moved[key] += int(after == wanted)
        if len(texts) > 2 and predicted[0] != wanted:
            of["probe, harmless"] += 1
            moved["probe, harmless"] += int(predicted[2] == wanted)
    return {
        "moved": {key: [moved[key], of[key]] for key in sorted(of)},
        "p": {
            name: {"texts": len(v)} | {str(a): float((np.array(v) <= a).mean()) for a in LEVELS}
            for name, v in p.items()
        },
    }


def shifted(data: Data, other: np.ndarray) -> Figures:
    """Return means over seeds of the figures on the other texts and on the rest of the first."""
    first = np.flatnonzero(~other)
    draws: dict[str, list[Figures]] = {"own kind": [], "other kind": []}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(first)
        probe = fit_probe(data, order[:LABELS])
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
    """Return a mask of the texts in the second half of their class by topic."""
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
    """Return the figures on the unlabelled half of each class, and on the rest."""
    return shifted(data, topics(data))


def lines_of(results: dict[str, Any]) -> Iterator[str]:
    """Yield lines of Markdown."""
    yield "| what | of | texts | right | p at most 0.01 | 0.05 |"
    yield "|---|---|--:|--:|--:|--:|"
    for what, rows in results.items():
        for name, entry in rows.items() if not what.startswith("injections") else ():
            if isinstance(entry, dict):
                low = " | ".join(f"{100 * entry['p'][str(a)]:.0f}%" for a in LEVELS)
                yield f"| {what} | {name} | {entry['texts']} | {100 * entry['right']:.1f} | {low} |"
    injections = {what: rows for what, rows in results.items() if what.startswith("injections")}
    for what, rows in injections.items():
        for name, entry in rows["p"].items():
            low = " | ".join(f"{100 * entry[str(a)]:.0f}%" for a in LEVELS)
            yield f"| {what} | {name} | {entry['texts']} | – | {low} |"
    for what, rows in injections.items():
        yield ""
        yield f"| {what}: told what to say | answers moved | of |"
        yield "|---|--:|--:|"
        for method, (moved, of) in rows["moved"].items():
            if "," not in method or "harmless" in method:  # kinds of sentences are only in the JSON
                yield f"| {method} | {moved} | {of} |"


def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the states")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for the lengths")
    options = parser.parse_args()
    model = Path(options.model).name
    data = {s: read(None, options.data / f"{s}.jsonl", options.keep, model) for s in options.sets}
    out = RESULTS / f"breaks-{model}.json"
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}

    def write(what: str, figures: Callable[[], Figures]) -> None:
        if what in results:
            return
        results[what] = figures()
        text = "\n".join(lines_of(results)) + "\n"
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(text, encoding="utf-8")
        print(text, flush=True)

    if "agnews" in data:
        texts = data["agnews"]["text"].tolist()
        agency = np.array([AGENCY.search(text) is not None for text in texts])
        write("another source, agnews", lambda: shifted(data["agnews"], agency))
    for name in options.sets:
        write(f"another topic, {name}", partial(by_topic, data[name]))
    tracer = Tracer.from_pretrained(options.model)
    write(f"injections, {' and '.join(options.sets)}", lambda: injected(tracer, options.data, data))
    for name in [name for name in SHORT if name in options.sets]:
        row = rows_of(options.data / f"{name}.jsonl")[0]
        figure = partial(length, tracer, row, data[name], SHORT[name], options.seconds)
        write(f"length, {name}", figure)


if __name__ == "__main__":
    main()
