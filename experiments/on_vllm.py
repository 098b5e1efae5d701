"""vLLM beside this process on TruthfulQA: are the decisions the same, and how many items a second?

    VLLM_PYTHON -m pip install --constraint constraints.vllm.txt lm-eval
    python experiments/on_vllm.py VLLM_PYTHON --data DATA [--limit 100]

The questions of `mc1_targets`, under `truthfulqa/own6`. Each engine answers them with everything
read, which is what is compared, and as the rule asks. Decisions are compared where no gate is
within rounding of its threshold and no two scores are. Beside them stand base scores alone, by
lm-evaluation-harness's own `vllm` model on the same tokens, as it runs where nothing is said of it
(compiled). The result goes to `results/on-vllm.json`.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lastword import Item, LoadOptions, Tracer
from lastword.benchmarks import find
from lastword.engines.vllm.backend import open_tracer
from lastword.engines.vllm.settings import Settings
from lastword.records.decision import Decision

RESULT = Path(__file__).parent / "results" / "on-vllm.json"
SCRIPT = Path(__file__).with_name("harness_on_vllm.py")
ROUNDING = 1e-4  # nats
CACHE_BYTES = 2**30  # of keys and values, for the harness as for ours


@dataclass(frozen=True)
class Pythons:
    """Interpreters of the environments that have vLLM, and vLLM with lm-evaluation-harness."""

    vllm: Path
    harness: Path


def questions(data: Path, limit: int) -> list[Item]:
    """The first questions, each with its one true answer and its false ones."""
    benchmark = find("truthfulqa")
    items = benchmark.load(data).items(benchmark.template("own6"), blind=False)
    return [item for item in items if str(item.id).endswith("/mc1")][:limit]


def timed(tracer: Tracer, items: Sequence[Item], read: Any) -> tuple[float, list[Decision]]:
    """Seconds that all items take, and their decisions."""
    start = time.perf_counter()
    decisions = [*tracer.correct_many(items, read)]
    return time.perf_counter() - start, decisions


def harness(python: Path, tracer: Tracer, items: Sequence[Item]) -> tuple[float, list[np.ndarray]]:
    """Seconds that all items take lm-evaluation-harness's `vllm` model, and their base scores."""
    encoded = tracer.encode(items)
    pairs = [
        ([*ids[:boundary]], [*ids[boundary:]])
        for one in encoded
        for ids, boundary in zip(one.sequences, one.boundaries, strict=True)
    ]
    with tempfile.TemporaryDirectory() as place:
        told = _asked_of_harness(python, tracer, pairs, Path(place))
    log_probs = iter(told["log_probs"])
    scores = [np.array([next(log_probs) / m for m in one.candidate_tokens]) for one in encoded]
    return told["seconds"], scores


def _asked_of_harness(
    python: Path, tracer: Tracer, pairs: list[tuple[list[int], list[int]]], place: Path
) -> Any:
    folder, asked, answer = (place / name for name in ("model", "asked.json", "answer.json"))
    tracer.backbone.model.save_pretrained(folder)
    tracer.tokenizer.save_pretrained(folder)  # type: ignore[attr-defined] # transformers'
    arguments = {"dtype": "float32", "kv_cache_memory_bytes": CACHE_BYTES}
    given = {"folder": str(folder), "arguments": arguments, "pairs": pairs}
    asked.write_text(json.dumps(given), encoding="utf-8")
    subprocess.run([python, SCRIPT, asked, answer], check=True)
    return json.loads(answer.read_text(encoding="utf-8"))


def near(decision: Decision) -> bool:
    """Whether rounding may turn the decision."""
    gates = [g for g in decision.gates.values() if isinstance(g.value, float)]
    top = np.sort(decision.scores)[-2:]
    close = any(abs(float(g.value or 0) - float(g.threshold)) < ROUNDING for g in gates)
    return close or float(np.ptp(top)) < ROUNDING


def compare(here: Sequence[Decision], there: Sequence[Decision]) -> dict[str, Any]:
    """How far numbers and decisions of two engines are apart."""
    pairs = [*zip(here, there, strict=True)]
    told = ("regime", "operator", "index")
    differ = [
        a.id for a, b in pairs if not near(a) and any(getattr(a, n) != getattr(b, n) for n in told)
    ]
    return {
        "items": len(pairs),
        "within_rounding_of_a_threshold": sum(near(a) for a, _ in pairs),
        "decided_otherwise": differ,
        "largest_difference_of_S": max(
            float(np.abs(a.trajectory - b.trajectory).max()) for a, b in pairs
        ),
        "largest_difference_of_t": max(_t(a, b) for a, b in pairs),
        "operators": dict(Counter(a.operator for a in here)),
    }


def _t(a: Decision, b: Decision) -> float:
    assert a.t_scores is not None and b.t_scores is not None
    return float(np.abs(a.t_scores - b.t_scores).max())


def measure(pythons: Pythons, model: str, items: Sequence[Item]) -> dict[str, Any]:
    """The harness, then both engines in turn."""
    options = LoadOptions(model, dtype="float32")
    local = Tracer.open(options)
    seconds, scores = harness(pythons.harness, local, items)
    tracers = {"transformers": local, "vllm": open_tracer(options, Settings(pythons.vllm))}
    everything = {name: timed(tracer, items, "all") for name, tracer in tracers.items()}
    asked = {name: timed(tracer, items, "decide") for name, tracer in tracers.items()}
    return {
        "model": model,
        "engine": tracers["vllm"].describe()["engine"],
        "load": os.getloadavg()[1],
        "agreement": compare(*(decisions for _, decisions in everything.values())),
        "items_a_second_everything_read": _pace(everything, items),
        "items_a_second_as_the_rule_asks": _pace(asked, items),
        "items_a_second_base_scores_by_the_harness": len(items) / seconds,
        "largest_difference_of_base_scores_from_the_harness": {
            name: apart(scores, decisions) for name, (_, decisions) in everything.items()
        },
    }


def apart(scores: Sequence[np.ndarray], decisions: Sequence[Decision]) -> float:
    """Largest difference of base scores, in nats a token."""
    pairs = zip(scores, decisions, strict=True)
    return max(float(np.abs(s - d.base_scores).max()) for s, d in pairs)


def _pace(timings: dict[str, tuple[float, Any]], items: Sequence[Item]) -> dict[str, float]:
    return {name: len(items) / seconds for name, (seconds, _) in timings.items()}


def main() -> None:
    """Measure, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("python", type=Path)
    parser.add_argument("--harness-python", type=Path, help="The same, left out.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="lastword/smollm2-135m")
    parser.add_argument("--limit", type=int, default=100)
    given = parser.parse_args()
    pythons = Pythons(given.python, given.harness_python or given.python)
    result = measure(pythons, given.model, questions(given.data, given.limit))
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
