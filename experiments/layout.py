"""A trunk whose weights are laid out for oneDNN, beside the same as torch keeps it.

    OMP_NUM_THREADS=1 python experiments/layout.py [--model lastword/smollm2-135m] [--items 20]

Base scores of questions of `everyday`, all at once and one alone, by two tracers in turn. Agreement
comes first; times are CPU seconds, ratios of the shortest within the run. Which is faster is the
processor's to say: MKL_ENABLE_INSTRUCTIONS=AVX2 shows what MKL does on others than Intel's. The
result is added to experiments/results/layout.json under the instructions that MKL may use.
"""

import argparse
import json
import os
import time
from pathlib import Path

from prefixes import questions

from lastword import Item, Tracer

RESULTS = Path(__file__).parent / "results" / "layout.json"
AGREE = 1e-4  # nats
LAYOUTS = ("stored", "onednn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="lastword/smollm2-135m")
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tracers = {
        name: Tracer.from_pretrained(options.model, layout=name, prefix_cache=0) for name in LAYOUTS
    }
    tried = tracers["onednn"].checked.layout
    assert tried is not None
    result = {"model": options.model, "products": tried.seconds / tried.own_seconds}
    items = questions(options.items)
    for name, some in (("together", items), ("alone", items[:1])):
        result[name], result[f"{name}_agreement_nats"] = ratio(tracers, some, options.rounds)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept[os.environ.get("MKL_ENABLE_INSTRUCTIONS", "all")] = result
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(kept, indent=1))


def ratio(tracers: dict[str, Tracer], items: list[Item], rounds: int) -> tuple[float, float]:
    """Seconds laid out over seconds as stored, and how far their scores are apart."""
    seconds: dict[str, list[float]] = {name: [] for name in tracers}
    scores = {}
    for _ in range(rounds):
        for name, tracer in tracers.items():
            start = time.process_time()
            scores[name] = [d.base_scores for d in tracer.correct_many(items, read="base")]
            seconds[name].append(time.process_time() - start)
    apart = max(float(abs(a - b).max()) for a, b in zip(*scores.values(), strict=True))
    assert apart <= AGREE, f"the layout moves scores by {apart:.2g} nats"
    return min(seconds["onednn"]) / min(seconds["stored"]), apart


if __name__ == "__main__":
    main()
