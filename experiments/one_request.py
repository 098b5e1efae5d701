"""What one request of decisions costs, beside lm-evaluation-harness's own model.

    python experiments/one_request.py MODEL FOLDER OUT

FOLDER has MODEL as transformers reads it (`rivals.py export`). The harness's `hf` gets the same
prompts and options as `loglikelihood` requests; its sums agree with ours before a time is told.
OUT gets a line for each shape of request.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from decide import TEXT, made_up, seconds
from harness import TOLERANCE
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from lastword import Decision, Item, Tracer
from lastword.batch import Scope
from lastword.text.tokens import Encoded

SHAPES = ((1, 2), (1, 10), (5, 5), (1, 77))  # questions, options
BATCHES = (1, 8)
CORRECTION = "pmi@0.5"


def instances(encoded: Sequence[Encoded]) -> list[Instance]:
    """One `loglikelihood` request for each option of each question."""
    pairs = [(e.item.prompt, e.item.separator + c) for e in encoded for c in e.item.candidates]
    return [
        Instance("loglikelihood", {}, pair, place, metadata=("decisions", place, 1))
        for place, pair in enumerate(pairs)
    ]


def apart(tracer: Tracer, encoded: Sequence[Encoded], sums: Sequence[float]) -> float:
    """How far another's sums of log-probabilities are from ours, at most, in nats."""
    decisions = tracer.correct_encoded(encoded, Scope("base"))
    means = np.concatenate([d.base_scores for d in decisions])
    lengths = np.concatenate([e.candidate_tokens for e in encoded])
    return float(np.abs(means * lengths - np.array(sums)).max())


def measure(tracer: Tracer, others: dict[int, HFLM], shape: tuple[int, int]) -> dict[str, Any]:
    """CPU seconds of one request by each: a text that is new, its questions not (ours of 3)."""
    ready, text = tracer.prepare(made_up(random.Random(shape[1]), *shape)), f"{shape} {{}}. {TEXT}"
    items = [[tracer.trim(item) for item in ready.items(text.format(i))] for i in range(7)]
    encoded = [e for e in tracer.encode(items[0]) if isinstance(e, Encoded)]
    tracer.decide(text.format(0), ready)
    ours = {
        "the model": [seconds(base_scores, tracer, own) for own in items[1:4]],
        tracer.correction.name: [
            seconds(tracer.decide, text.format(i), ready) for i in range(4, 7)
        ],
    }
    taken = {name: min(each) for name, each in ours.items()}
    for batch, other in others.items():
        start = time.process_time()
        told = other.loglikelihood(instances(encoded), disable_tqdm=True)
        taken[f"hf, batches of {batch}"] = time.process_time() - start
        differ = apart(tracer, encoded, [u for u, _ in told])
        assert differ <= TOLERANCE, f"sums are {differ:.2g} nats apart"
    cpu = {name: round(each, 3) for name, each in taken.items()}
    shape_of = {"questions": shape[0], "options": shape[1]}
    return shape_of | {"nats_apart": differ, "cpu_seconds": cpu}


def base_scores(tracer: Tracer, items: Sequence[Item]) -> list[Decision]:
    return [*tracer.correct_many(items, read="base", blind="none")]


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("paths", type=Path, nargs=2, help="FOLDER and OUT")
    asked = parser.parse_args()
    folder, out = asked.paths
    tracer = Tracer.from_pretrained(asked.model, correction=CORRECTION)
    others = {
        batch: HFLM(
            str(folder), device="cpu", dtype="float32", batch_size=batch, softmax_dtype="float32"
        )
        for batch in BATCHES
    }
    for shape in SHAPES:
        told = measure(tracer, others, shape)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
