"""lm-evaluation-harness asks, its own `hf` model answers and ours: requests a second.

    python experiments/harness.py --data DATA --tokenizer TOKENIZER [--limit 40] [--out FILE]

A random Llama of SmolLM-135M's shape; TruthfulQA's choices as the harness's `loglikelihood`
requests, tokens and all. The sums agree before a time is told.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from speed import benchmark_items, smollm
from transformers import AutoTokenizer

from lastword.integrations.lm_eval import CorrectedLM
from lastword.tracer import Tracer

TOLERANCE = 1e-4  # nats a choice


def requests_of(data: Path, limit: int) -> list[Instance]:
    """One request a choice."""
    return [
        Instance(
            request_type="loglikelihood",
            doc={},
            arguments=(item.prompt, item.separator + candidate),
            idx=place,
            metadata=("truthfulqa_mc1", number, 1),
        )
        for number, item in enumerate(benchmark_items("truthfulqa", data, limit))
        for place, candidate in enumerate(item.candidates)
    ]


def timed(model: Any, requests: list[Instance]) -> tuple[float, list[float]]:
    """Seconds, and the answers' log-likelihoods."""
    start = time.perf_counter()
    answers = model.loglikelihood(requests, disable_tqdm=True)
    return time.perf_counter() - start, [float(score) for score, _ in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4, help="Of the harness's own model.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    tracer = Tracer(smollm(torch.float32), tokenizer, invariant=0.5)
    requests = requests_of(options.data, options.limit)
    models = {
        "base-sum": CorrectedLM(tracer, "base-sum"),
        "trace": CorrectedLM(tracer, "trace"),
        "hf": HFLM(
            pretrained=tracer.backbone.model,
            tokenizer=tokenizer,
            batch_size=options.batch_size,
            softmax_dtype="float32",
        ),
    }
    results = {name: timed(model, requests) for name, model in models.items()}
    own, theirs = results["base-sum"][1], results["hf"][1]
    apart = max(abs(a - b) for a, b in zip(own, theirs, strict=True))
    assert apart <= TOLERANCE, f"base-sum and hf are {apart:.2g} nats apart"
    record = {
        "requests": len(requests),
        "batch_size": options.batch_size,
        "nats_apart": apart,
        "seconds": {name: seconds for name, (seconds, _) in results.items()},
        "over_hf": {name: seconds / results["hf"][0] for name, (seconds, _) in results.items()},
    }
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
