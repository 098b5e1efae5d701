"""The figures of `everyday` by the real model, and of the embedded models on their world.

    lastword get smollm2-135m
    OMP_NUM_THREADS=1 python experiments/demo.py RUNS

It stores the records in RUNS, as `lastword eval` does, and continues an interrupted run. The result
is `results/demo.json`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from lastword import Decider, Tracer
from lastword.lab.benchmarks import find
from lastword.lab.evaluation.runner import evaluate
from lastword.lab.evaluation.statistics import judge
from lastword.lab.evaluation.work import Work
from lastword.model.embedded import EMBEDDED, Name
from lastword.records.cells import load_records, mean
from lastword.records.columns import decisions
from lastword.records.decision import Decision
from lastword.records.metrics import Numbers, fixed_and_broken, mc1, pair_accuracy, pair_name
from lastword.rule.geometry import margin
from lastword.trust.certification import Sample, outcome, read_sample
from lastword.trust.terms import Terms
from lastword.trust.words import summary

RESULT = Path(__file__).parent / "results" / "demo.json"
COMMAND = "lastword get smollm2-135m && OMP_NUM_THREADS=1 python experiments/demo.py RUNS"
MODEL = "lastword/smollm2-135m"
SORTS = ("plain", "popular", "pair")
FORMS = ("multi", "binary")
PARTS = ("clean", "contested", "overwritten", "revised", "seen", "unseen")

# The scores by which each row of the first table chooses.
CHOOSERS: Mapping[str, Callable[[Decision], Numbers]] = {
    "the model": lambda r: r.base_scores,
    "TRACE": lambda r: r.scores,
    "question left out": lambda r: r.blind_scores,
    "shortest candidate": lambda r: [-len(text) for text in r.candidates],
    "longest candidate": lambda r: [len(text) for text in r.candidates],
    "first candidate": lambda r: [-place for place in range(len(r.candidates))],
}


def main(runs: Path) -> None:
    """Compute the missing records, and write the figures."""
    cell = run(MODEL, "everyday", runs)
    organisms = {name: organism(run(EMBEDDED + name, "demo", runs)) for name in get_args(Name)}
    made_with = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    result = {"command": COMMAND, **made_with, "real": real(cell), "organisms": organisms}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def run(model: str, name: str, runs: Path) -> Path:
    """Return the folder of a model's records of a benchmark, after computing what is missing."""
    benchmark = find(name)
    decider = Decider(Tracer.from_pretrained(model))
    return evaluate(decider, Work(benchmark.load(None), benchmark.template()), runs).cell


def real(folder: Path) -> dict[str, Any]:
    """Return the figures of the real model."""
    records, sample = decisions(load_records(folder)), read_sample(folder)
    answers = [(r.base_index, r.index) for r in records]
    return {
        "model": MODEL,
        "invariant": sample.cell.info["invariant"],
        "items": len(records),
        "pairs": len(pairs(records)),
        "choosers": {name: accuracies(records, scores) for name, scores in CHOOSERS.items()},
        "operators": operators(records),
        "depths": depths(records),
        "judgement": asdict(judge([sample.cell])[0]),
        "certificate": certificate(sample),
        # One digit per item, in the benchmark's order.
        **{
            name: "".join(str(pair[place]) for pair in answers)
            for place, name in enumerate(("base_answers", "answers"))
        },
    }


def accuracies(
    records: Sequence[Decision], scores: Callable[[Decision], Numbers]
) -> dict[str, Any]:
    """Return the MC1 of some scores: of all items, by kind of question, and of whole pairs."""
    right = {str(r.id): mc1(scores(r), r.truthful) for r in records}
    sorts = {sort: mean([v for id, v in right.items() if id.startswith(sort)]) for sort in SORTS}
    pair = pair_accuracy(list(right), list(right.values()))
    return {"mc1": mean(list(right.values())), "sorts": sorts, "pairs": pair}


def operators(records: Sequence[Decision]) -> dict[str, Any]:
    """Return the figures of the items that each operator decides."""
    names = dict.fromkeys(r.operator for r in records)
    parts = {name: [r for r in records if r.operator == name] for name in names}
    return {
        name: {key: value for key, value in score(part).items() if not key.startswith("mc2")}
        | {"mc1_blind": mean([mc1(r.blind_scores, r.truthful) for r in part])}
        for name, part in parts.items()
    }


def depths(records: Sequence[Decision]) -> dict[str, Any]:
    """Return the figures of each depth, read as if it were the last."""
    each = range(records[0].trajectory.shape[1])
    both = pairs(records)
    decisive = [
        alike(pair, r.decisive_layer) for pair in both for r in pair if r.operator == "decisive"
    ]
    return {
        "mc1": [mean([mc1(at(r, depth), r.truthful) for r in records]) for depth in each],
        "alike": [mean([float(alike(pair, depth)) for pair in both]) for depth in each],
        "apart": [float(np.median([margin(at(r, depth)) for r in records])) for depth in each],
        "decided": len(decisive),
        "decided_alike": sum(decisive),
    }


def pairs(records: Sequence[Decision]) -> list[list[Decision]]:
    """Return the pairs of records."""
    names = dict.fromkeys(name for r in records if (name := pair_name(str(r.id))) is not None)
    return [[r for r in records if pair_name(str(r.id)) == name] for name in names]


def alike(pair: Sequence[Decision], depth: int) -> bool:
    """Return True if a depth gives both questions of a pair the same answer."""
    first, second = (at(r, depth).argmax() for r in pair)
    return bool(first == second)


def at(record: Decision, depth: int) -> np.ndarray:
    """Return the scores of the candidates at a depth."""
    return record.trajectory[:, depth]


def certificate(sample: Sample) -> list[str]:
    """Return the lines that `lastword certify` prints."""
    certified = outcome(sample, Terms())
    subject = MODEL, sample.cell.benchmark, sample.items.failed
    return summary(certified.finding, *subject)


def organism(folder: Path) -> dict[str, Any]:
    """Return an embedded model's figures by form, kind of fact and template."""
    records = decisions(load_records(folder))
    labels = [str(r.id).split("/") for r in records]
    figures: dict[str, Any] = {"invariant": records[0].invariant}
    for form in FORMS:
        for name in (form, *(f"{form}/{part}" for part in PARTS)):
            wanted = set(name.split("/"))
            part = [r for r, label in zip(records, labels, strict=True) if wanted <= set(label)]
            figures[name] = score(part)
    return figures


def score(records: Sequence[Decision]) -> dict[str, Any]:
    """Return the mean metrics of some records, and how many answers were corrected and broken."""
    fixed, broken = fixed_and_broken([r.gain for r in records])
    means = {}
    for metric in ("mc1", "mc2"):
        means[f"{metric}_base"] = mean([r.share(metric, base=True) for r in records])
        means[metric] = mean([r.share(metric) for r in records])
    return {"items": len(records), **means, "fixed": fixed, "broken": broken}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
