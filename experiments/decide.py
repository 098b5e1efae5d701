"""Decisions measured: templates by method, flips under permutations, and what options cost.

    python experiments/decide.py table MODEL SETS OUT --items 80
    python experiments/decide.py flips MODEL SETS OUT --first 20 --items 40 --kept FILE
    python experiments/decide.py cost MODEL OUT

SETS is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`. Results are
appended to OUT, a line a cell. `flips` goes on where it was stopped; a second call asks the same
texts in another process, against what the first wrote into FILE.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from lastword import Choice, Option, Predicate, Score, Tracer
from lastword.batch import Scope, branches_of
from lastword.decisions import Question, prepare
from lastword.methods import Evidence, resolve
from lastword.methods.batch_calibrated import BatchCalibrated
from lastword.methods.correction import Scored
from lastword.records.metrics import reliability
from lastword.rule.geometry import Trajectory

TEMPLATES = ("decide/plain", "decide/listed")
METHODS = ("pmi@0.5", "pmi@1", "contextual")
SETS = ("trec", "sst2", "agnews", "emotion", "tools", "csqa", "banking77")
FEW = {"banking77": 4, "clinc150": 8}  # so many times fewer items of long lists
WORDS = "time person year way day thing man world life hand part child eye woman place work".split()
BLOCK = 20  # texts between two lines of flips
SENTENCE = "The parcel was sent on Monday and has not come; please say where it is. "
TEXT = SENTENCE * 18


def rows(path: Path, items: int) -> list[dict[str, Any]]:
    """The first items of a set."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[: max(10, items // FEW.get(path.stem, 1))]]


def question(row: dict[str, Any], *, described: bool = True) -> Choice:
    """The question of a row, with descriptions or without."""
    options = [c if isinstance(c, dict) else {"value": c} for c in row["choices"]]
    told = [Option(o["value"], o.get("description") if described else None) for o in options]
    return Choice(row["instructions"], told)


def cell(tracer: Tracer, data: list[dict[str, Any]], template: str, described: bool) -> Any:
    """Share right and calibration error of every method on one set, in percent."""
    asked = [question(row, described=described) for row in data]
    items = [
        prepare({"q": q}, template).items(row["input"])[0]
        for q, row in zip(asked, data, strict=True)
    ]
    encoded = [e for e in tracer.encode(items) if not isinstance(e, Exception)]
    assert len(encoded) == len(items), "an item does not fit the context"
    methods = resolve(METHODS, tracer.facts)
    decisions = list(tracer.correct_encoded(encoded, Scope(methods=methods)))
    scores = {
        "base": [d.base_scores for d in decisions],
        "trace": [d.scores for d in decisions],
        **{name: [d.methods[name] for d in decisions] for name in METHODS},
    }
    told = {}
    for name, each in scores.items():
        probabilities = [softmax(u) for u in each]
        right = [
            q.options[int(p.argmax())].value == row["truth"]
            for q, p, row in zip(asked, probabilities, data, strict=True)
        ]
        told[name] = {
            "right": round(100 * float(np.mean(right)), 1),
            "ece": round(100 * reliability([p.max() for p in probabilities], right).ece, 1),
        }
    return told


def table(
    tracer: Tracer, folder: Path, items: int, templates: Sequence[str], sets: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A line for each set and template."""
    for name in sets:
        data = rows(folder / f"{name}.jsonl", items)
        has = any(isinstance(choice, dict) for choice in data[0]["choices"])
        for template in templates:
            for described in (False, True) if has else (False,):
                start = time.process_time()
                told = cell(tracer, data, template, described)
                seconds = round((time.process_time() - start) / len(data), 3)
                where = {"set": name, "template": template, "described": described}
                yield where | {"items": len(data), "cpu_seconds_an_item": seconds} | told


def flips(
    tracer: Tracer, folder: Path, blocks: Iterable[tuple[str, int]], kept: Path
) -> Iterator[dict[str, Any]]:
    """Answers that change, and the largest |dp|, as everything around a question is permuted.

    A text's answer to one question alone is held against the same among others, with options and
    questions in another order, questions added and left out, other texts in the batch, from four
    threads at once. Of blocks whose lone answers `kept` has from another process, those are what
    this process's answers are held against.
    """
    before = answers_of(kept)
    for name, first in blocks:
        own = question(rows(folder / f"{name}.jsonl", 1)[0])
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["input"] for line in lines[first : first + BLOCK]]
        seen, start = Tally(), time.process_time()
        asked = {"own": own} | COMPANY
        restarted = (name, first) in before
        expected = before.get((name, first)) or {
            text: {
                key: by_option(q, tracer.decide(text, {key: q})[key]) for key, q in asked.items()
            }
            for text in texts
        }
        for place, text in enumerate(texts, first + 1000 * restarted):
            for mixed in mixtures(asked, random.Random(place)):
                for key, answer in tracer.decide(text, mixed).items():
                    kind = "restart" if restarted else "request"
                    seen.add(kind, expected[text][key], by_option(mixed[key], answer))
        if not restarted:
            company(tracer, texts, asked, expected, seen)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"set": name, "first": first, "answers": expected}) + "\n")
        cpu = round(time.process_time() - start, 1)
        told = {"set": name, "first": first, "texts": len(texts), "cpu_seconds": cpu}
        yield told | seen.told()


def answers_of(kept: Path) -> dict[tuple[str, int], Any]:
    """The lone answers that another process wrote down, by set and first text."""
    if not kept.exists():
        return {}
    lines = map(json.loads, kept.read_text(encoding="utf-8").splitlines())
    return {(line["set"], line["first"]): line["answers"] for line in lines}


def blocks_left(
    sets: Sequence[str], first: int, items: int, out: Path, correction: str, kept: Path
) -> list[tuple[str, int]]:
    """Blocks of texts that OUT does not have, by this process's kind: the first, or a second."""
    lines = map(json.loads, out.read_text(encoding="utf-8").splitlines() if out.exists() else [])
    there = {
        (line["correction"], line["set"], line.get("first"), "restart" in line.get("by", {}))
        for line in lines
    }
    before = answers_of(kept)
    wanted = [(name, place) for place in range(first, first + items, BLOCK) for name in sets]
    return [b for b in wanted if (correction, *b, b in before) not in there]


# Questions that stand beside a set's own, with few words: what is asked is not the point here.
COMPANY: dict[str, Question] = {
    "person": Predicate("It is about a person."),
    "glad": Predicate("The writer is glad."),
    "length": Score("How long is it?", ["short", "middling", "long"]),
    "tone": Choice("What is its tone?", ["calm", "angry", "sad", "glad"]),
    "place": Choice("Where is it?", ["at home", "at work", "outside"]),
}


def by_option(question: Question, answer: Any) -> dict[str, float]:
    """Probabilities of an answer by the options' texts."""
    texts = [option.text for option in question.options]
    return dict(zip(texts, answer.probabilities.tolist(), strict=True))


def mixtures(asked: Mapping[str, Question], draw: random.Random) -> Iterator[dict[str, Question]]:
    """Three requests of some of the questions, they and the options of choices in any order."""
    for _ in range(3):
        names = draw.sample([*asked], draw.randint(3, len(asked)))
        yield {name: permuted(asked[name], draw) for name in names}


def permuted(question: Question, draw: random.Random) -> Question:
    """A choice with its options in another order; other questions as they are."""
    if not isinstance(question, Choice):
        return question
    return Choice(question.instructions, draw.sample(question.options, len(question.options)))


def company(
    tracer: Tracer,
    texts: Sequence[str],
    asked: Mapping[str, Question],
    expected: Mapping[str, Any],
    seen: "Tally",
) -> None:
    """Each text among others of its batch, and from four threads at once."""
    order = random.Random(0).sample(texts, len(texts))
    few = {name: asked[name] for name in [*asked][:2]}
    for text, answers in zip(order, tracer.decide_many(order, few), strict=True):
        for key, answer in answers.items():
            seen.add("batch", expected[text][key], by_option(asked[key], answer))
    with ThreadPoolExecutor(4) as pool:
        for text, answers in zip(
            order, pool.map(lambda t: tracer.decide(t, few), order), strict=True
        ):
            for key, answer in answers.items():
                seen.add("threads", expected[text][key], by_option(asked[key], answer))


@dataclass
class Tally:
    """How many answers were held against another, how many flipped, and by how much they moved."""

    decisions: Counter[str] = field(default_factory=Counter)
    flips: int = 0
    largest: float = 0.0

    def add(self, kind: str, expected: Mapping[str, float], p: Mapping[str, float]) -> None:
        """Hold one answer's probabilities against what they were."""
        self.decisions[kind] += 1
        self.flips += max(p, key=p.__getitem__) != max(expected, key=expected.__getitem__)
        self.largest = max(self.largest, *(abs(expected[text] - p[text]) for text in p))

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        counts = {"decisions": self.decisions.total(), "by": dict(self.decisions)}
        return counts | {"flips": self.flips, "largest_dp": float(self.largest)}


def freeze(tracer: Tracer, folder: Path, sets: Sequence[str]) -> Tracer:
    """The tracer under a batch calibration whose means are those of the first 20 texts, frozen."""
    methods, evidence = BatchCalibrated(tracer.facts), list[Evidence]()
    for name in sets:
        data = rows(folder / f"{name}.jsonl", 20)[:20]
        asked = {"own": question(data[0])} | COMPANY
        ready = tracer.prepare(asked)
        items = [tracer.trim(item) for row in data for item in ready.items(row["input"])]
        for item, d in zip(items, tracer.correct_many(items, read="base"), strict=True):
            last = np.full((len(item.candidates), tracer.profile.depth + 1), np.nan)
            last[:, -1] = d.base_scores
            tokens = np.ones(len(item.candidates), dtype=int)
            evidence.append(Evidence(item.candidates, tokens, Trajectory(last, None)))
    tracer.correction = Scored("batch-calibrated", tracer.facts, methods.fitted(evidence))
    return tracer


def cost(tracer: Tracer) -> Iterator[dict[str, Any]]:
    """Distinct tokens and CPU seconds of one request, by questions and options.

    An input costs most of a small request and nearly nothing where it comes back, so both are told.
    """
    draw, places = random.Random(0), count()
    for _ in range(2):  # what the first calls of a process cost is no request's
        tracer.decide(f"{next(places)}. {TEXT}", {"q": Choice("", WORDS[:2])})
    for questions, options in (
        (1, 2),
        (1, 10),
        (1, 77),
        (1, 150),
        (1, 255),
        (1, 5),
        (5, 5),
        (20, 5),
    ):
        ready = tracer.prepare(made_up(draw, questions, options))
        items = [tracer.trim(item) for item in ready.items(TEXT)]
        fed = [
            branch.fed
            for e in tracer.encode(items)
            if not isinstance(e, Exception)
            for branch in branches_of(e)
        ]
        paths = {tokens[:n] for tokens in fed for n in range(1, len(tokens) + 1)}
        inputs = [f"{next(places)}. {TEXT}" for _ in range(4)]
        new = [seconds(tracer.decide, text, ready) for text in inputs]
        again = [seconds(tracer.decide, inputs[-1], ready) for _ in range(4)]
        yield {
            "questions": questions,
            "options": options,
            "tokens": len(paths),
            "naive_tokens": sum(map(len, fed)),
            "first_cpu_seconds": round(new[0], 3),  # nothing of the request was seen before
            "cpu_seconds": round(min(new[1:]), 3),  # a new input to the same questions
            "again_cpu_seconds": round(min(again), 3),  # an input that comes back
            "encoding_cpu_seconds": round(seconds(tracer.encode, items), 3),  # texts to tokens
        }


def made_up(draw: random.Random, questions: int, options: int) -> dict[str, Choice]:
    """Questions of six words, with so many options of three."""
    return {
        f"q{i}": Choice(
            f"{' '.join(draw.sample(WORDS, 6))}?",
            list({" ".join(draw.sample(WORDS, 3)): None for _ in range(3 * options)})[:options],
        )
        for i in range(questions)
    }


def seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("table", "flips", "cost"))
    parser.add_argument("model")
    parser.add_argument("paths", type=Path, nargs="+", help="SETS and OUT, or OUT")
    parser.add_argument("--items", type=int, default=80)
    parser.add_argument("--correction", default="trace")
    parser.add_argument("--templates", nargs="+", default=TEMPLATES, help="names, or files")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--first", type=int, default=0, help="flips: the first text")
    parser.add_argument("--kept", type=Path, help="flips: answers for a second process, or its own")
    parser.add_argument("--freeze", action="store_true", help="flips: a frozen batch calibration")
    asked = parser.parse_args()
    tracer = Tracer.from_pretrained(asked.model, correction=asked.correction)
    *folder, out = asked.paths
    if asked.what == "cost":
        lines = cost(tracer)
    elif asked.what == "flips":
        if asked.freeze:
            tracer = freeze(tracer, folder[0], asked.sets)
        name = tracer.correction.name
        blocks = blocks_left(asked.sets, asked.first, asked.items, out, name, asked.kept)
        lines = flips(tracer, folder[0], blocks, asked.kept)
    else:
        lines = table(tracer, folder[0], asked.items, asked.templates, asked.sets)
    for line in lines:
        told = {
            "what": asked.what,
            "model": asked.model,
            "correction": tracer.correction.name,
        } | line
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
