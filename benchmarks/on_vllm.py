"""vLLM beside this process on TruthfulQA: are the decisions the same, and how many items a second?

    python benchmarks/on_vllm.py VLLM_PYTHON --data DATA [--limit 100]

The questions of `mc1_targets`, under `truthfulqa/own6`. Each engine answers them with everything
read, which is what is compared, and as the rule asks. Decisions are compared where no gate is
within rounding of its threshold and no two scores are. Beside them stand base scores alone, as vLLM
itself gives them: the log-probabilities of every candidate behind its prompt, which is what
lm-evaluation-harness asks of vLLM. The result goes to `results/on-vllm.json`.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracelm import Item, LoadOptions, Tracer
from tracelm.benchmarks import find
from tracelm.engines.vllm.settings import Settings
from tracelm.engines.vllm.tracer import VllmTracer
from tracelm.rule.decision import Decision

RESULT = Path(__file__).parent / "results" / "on-vllm.json"
ROUNDING = 1e-4  # nats


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


def timed_own(tracer: Any, items: Sequence[Item]) -> tuple[float, list[np.ndarray]]:
    """Seconds that vLLM's own log-probabilities of all candidates take, and their means."""
    start = time.perf_counter()
    encoded = tracer.encode(items)
    sequences = [[*ids] for e in encoded for ids in e.sequences]
    told, _ = tracer.backbone.process.call("own", sequences=sequences)
    known = iter(told["log_probs"])
    scores = [np.array([np.mean(next(known)[b - 1 :]) for b in e.boundaries]) for e in encoded]
    return time.perf_counter() - start, scores


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


def measure(python: Path, model: str, items: Sequence[Item]) -> dict[str, Any]:
    """Both engines, one after the other in turn."""
    options = LoadOptions(model, dtype="float32")
    tracers = {"transformers": Tracer.open(options), "vllm": VllmTracer(options, Settings(python))}
    everything = {name: timed(tracer, items, "all") for name, tracer in tracers.items()}
    asked = {name: timed(tracer, items, "decide") for name, tracer in tracers.items()}
    own, scores = timed_own(tracers["vllm"], items)
    apart = [
        np.abs(s - d.base_scores).max() for s, d in zip(scores, everything["vllm"][1], strict=True)
    ]
    return {
        "model": model,
        "engine": tracers["vllm"].describe()["engine"],
        "load": os.getloadavg()[1],
        "agreement": compare(*(decisions for _, decisions in everything.values())),
        "items_a_second_everything_read": _pace(everything, items),
        "items_a_second_as_the_rule_asks": _pace(asked, items),
        "items_a_second_base_scores_by_vllm_itself": len(items) / own,
        "largest_difference_of_base_scores": float(max(apart)),
    }


def _pace(timings: dict[str, tuple[float, Any]], items: Sequence[Item]) -> dict[str, float]:
    return {name: len(items) / seconds for name, (seconds, _) in timings.items()}


def main() -> None:
    """Measure, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("python", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="tracelm/smollm2-135m")
    parser.add_argument("--limit", type=int, default=100)
    given = parser.parse_args()
    result = measure(given.python, given.model, questions(given.data, given.limit))
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
