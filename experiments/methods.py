"""What all methods together cost beside TRACE with everything read, in one pass of each.

    python experiments/methods.py --data DATA --tokenizer TOKENIZER [--items 24] [--dtype bfloat16]

On a random Llama of SmolLM-135M's shape and the first items of TruthfulQA (DATA holds
`truthfulqa/mc_task.v0.json`, TOKENIZER a small tokenizer). The target is a ratio of at most 2.0.
The result, with where the time goes, is kept in experiments/results/methods.json.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from speed import smollm
from transformers import AutoTokenizer

from lastword.batch import Scope
from lastword.benchmarks import find
from lastword.methods import COMPARED, resolve
from lastword.text.tokens import Encoded
from lastword.tracer import Tracer

RESULTS = Path(__file__).parent / "results" / "methods.json"
TARGET = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--items", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    model = smollm(getattr(torch, options.dtype)).to(options.device)
    tracer = Tracer(model, AutoTokenizer.from_pretrained(options.tokenizer), invariant=2.0)
    encoded = items(tracer, options.data, options.items)
    result = measure(tracer, encoded, options.rounds)
    result |= {"items": options.items, "dtype": options.dtype, "device": device(options.device)}
    result |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps(result, indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def device(name: str) -> str:
    return torch.cuda.get_device_name() if name.startswith("cuda") else name


def items(tracer: Tracer, data: Path, count: int) -> list[Encoded]:
    benchmark = find("truthfulqa")
    dataset = benchmark.load(data, limit=count)
    wanted = dataset.items(benchmark.template("own6"), blind=False)[:count]
    return [e for e in tracer.encode(wanted) if isinstance(e, Encoded)]


def measure(tracer: Tracer, encoded: list[Encoded], rounds: int) -> dict[str, Any]:
    """Rounds in turn: TRACE with everything read, and the same pass with every method."""
    groups = [[encoded[i] for i in group] for group in tracer.plan(encoded)]
    methods = resolve([m for m in COMPARED if m != "question-blind"], tracer.facts)
    runs = {
        "trace": lambda: [tracer.decide_group(g, Scope("all")) for g in groups],
        "all methods": lambda: [
            tracer.decide_group(g, Scope("all", methods=methods)) for g in groups
        ],
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # warm
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds_of(run))
    stages: dict[str, float] = {}
    with timed(tracer, methods, stages):
        stages["total"] = seconds_of(runs["all methods"])
    # The fastest of each: other work on the machine only ever adds.
    fastest = {name: min(t) for name, t in times.items()}
    return {
        "seconds": fastest,
        "ratio": fastest["all methods"] / fastest["trace"],
        "all seconds": times,
        "target": TARGET,
        "stages of all methods": stages,
    }


def seconds_of(run: Callable[[], Any]) -> float:
    """Seconds of a run; without a GPU the processor's own, so that other work does not count."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    start = clock()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


@contextmanager
def timed(tracer: Tracer, methods: Any, stages: dict[str, float]) -> Iterator[None]:
    """Seconds of the forward pass, the heads, T and each peer's token scorer.

    What two peers share (DoLa's choice of layer, SLED's evolution) counts with the first.
    """
    owners: list[tuple[Any, str, str]] = [
        (tracer.backbone, "states", "forward"),
        (tracer.readout, "logits", "head"),
        (tracer.scorer, "log_probs", "T"),
    ]
    owners += [(m.needs.scorer, "log_probs", name) for name, m in methods.items() if m.needs.scorer]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in owners]

    def watch(call: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            results: list[Any] = []
            spent = seconds_of(lambda: results.append(call(*args, **kwargs)))
            stages[stage] = stages.get(stage, 0.0) + spent
            return results[0]

        return run

    for (owner, name, stage), (_, _, call) in zip(owners, originals, strict=True):
        object.__setattr__(owner, name, watch(call, stage))  # scorers are frozen
    try:
        yield
    finally:
        for owner, name, _ in originals:
            object.__delattr__(owner, name)


if __name__ == "__main__":
    main()
