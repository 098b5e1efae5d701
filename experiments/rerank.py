"""Hits at 1 of reranking by a predicate, by continuation and by BM25, on ninety-six queries.

    python experiments/rerank.py MODEL OUT

`retrieval.jsonl` has six topics of eight passages, each with two queries that it alone answers, all
written for this: one in other words than the passage's, one in its own.
"""

import argparse
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lastword import Item, Tracer
from lastword.batch import Scope
from lastword.benchmarks.template import Template
from lastword.decisions import Questionnaire, relevance
from lastword.methods import resolve

KINDS = ("other_words", "own_words")
METHODS = ("pmi@0.5", "pmi@1")
PLACE = Path(__file__).with_name("retrieval.jsonl")
_ASKED = "Does this passage answer the query?\nYes or no?\nAnswer:"
_QUERY, _PASSAGE = "{% if input %}Query: {{ input }}\n{% endif %}", "Passage: {{ instructions }}\n"
WORDINGS = {
    "query first": None,  # the library's own
    "passage first": _PASSAGE + _QUERY + _ASKED,
    "question": "{% if input %}Question: {{ input }}\n{% endif %}Text: {{ instructions }}\n"
    "Question: Does the text answer the question above?\nYes or no?\nAnswer:",
}


def topics() -> list[list[dict[str, str]]]:
    """The queries with their passages, by topic."""
    rows = [json.loads(line) for line in PLACE.read_text(encoding="utf-8").splitlines()]
    return [[*own] for _, own in groupby(rows, lambda row: row["topic"])]


def bm25(query: str, passages: Sequence[str], k: float = 1.2, b: float = 0.75) -> np.ndarray:
    """Okapi BM25 of each passage, its statistics of these passages."""
    words = [Counter(re.findall(r"\w+", text.lower())) for text in passages]
    lengths = np.array([sum(each.values()) for each in words])
    scores = np.zeros(len(passages))
    for word in re.findall(r"\w+", query.lower()):
        n = sum(word in each for each in words)
        tf = np.array([each[word] for each in words])
        idf = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
        scores += idf * tf * (k + 1) / (tf + k * (1 - b + b * lengths / lengths.mean()))
    return scores


def hit(scores: np.ndarray, truth: int) -> float:
    """Whether the true passage is first; shared where several are."""
    best = scores == scores.max()
    return float(best[truth]) / float(best.sum())


def hits(tracer: Tracer, items: list[list[Item]], *, yes: bool) -> dict[str, list[float]]:
    """Hits of every method: each query has an item a passage, or one item of all passages."""
    flat = [item for own in items for item in own]
    encoded = [e for e in tracer.encode(flat) if not isinstance(e, Exception)]
    assert len(encoded) == len(flat), "an item does not fit the context"
    made = list(tracer.correct_encoded(encoded, Scope(methods=resolve(METHODS, tracer.facts))))
    told: dict[str, list[float]] = {}
    for name in ("base", "trace", *METHODS):
        each = [{"base": d.base_scores, "trace": d.scores}.get(name) for d in made]
        each = [d.methods[name] if u is None else u for u, d in zip(each, made, strict=True)]
        if yes:
            odds = np.array([u[0] - u[1] for u in each]).reshape(len(items), -1)
        else:
            odds = np.array(each)
        told[name] = [hit(u, i % 8) for i, u in enumerate(odds)]
    return told


def shares(hits: Sequence[float]) -> dict[str, float]:
    """Share of hits in percent, of topics on which wordings are chosen and of the others."""
    of = np.array(hits).reshape(len(topics()), len(KINDS), -1)
    told = {kind: round(100 * float(of[1::2, i].mean()), 1) for i, kind in enumerate(KINDS)}
    return {
        "open": round(100 * float(of[::2].mean()), 1),
        "unseen": float(np.round(100 * of[1::2].mean(), 1)),
    } | told


def asked() -> list[tuple[str, list[str]]]:
    """Each query with the passages of its topic, the true one at the query's place among eight."""
    return [
        (row[kind], [own["passage"] for own in topic])
        for topic in topics()
        for kind in KINDS
        for row in topic
    ]


def by_predicate(tracer: Tracer, wording: str, text: str | None) -> Iterator[dict[str, Any]]:
    """A line a method of ranking by yes, with one wording."""
    start, items = time.process_time(), []
    for query, passages in asked():
        own = relevance(passages)
        if text is not None:
            own = Questionnaire(own.questions, Template("user/x", "1", text))
        items.append(own.items(query))
    told = hits(tracer, items, yes=True)
    seconds = round(time.process_time() - start, 1)
    for name, each in told.items():
        yield {"way": wording, "method": name, "cpu_seconds": seconds} | shares(each)


def by_continuation(tracer: Tracer) -> Iterator[dict[str, Any]]:
    """A line a method of ranking by each passage as the query's continuation."""
    items = [[Item(q, tuple(passages), blind_prompt="Passage:")] for q, passages in asked()]
    for name, each in hits(tracer, items, yes=False).items():
        yield {"way": "continuation", "method": name} | shares(each)


def lines(tracer: Tracer) -> Iterator[dict[str, Any]]:
    """Every way of ranking."""
    lexical = [hit(bm25(query, passages), i % 8) for i, (query, passages) in enumerate(asked())]
    yield {"way": "BM25"} | shares(lexical)
    first, *others = WORDINGS.items()
    yield from by_predicate(tracer, *first)
    yield from by_continuation(tracer)
    for wording, text in others:
        yield from by_predicate(tracer, wording, text)


def main() -> None:
    """Append a line a way of ranking to OUT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    tracer = Tracer.demo() if given.model == "demo" else Tracer.from_pretrained(given.model)
    with given.out.open("a", encoding="utf-8") as file:
        for line in lines(tracer):
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
