"""`eval --record decide` beside recording everything, on texts that are long: CPU seconds in turn.

    OMP_NUM_THREADS=1 python experiments/recording.py MODEL DATA [--rounds 2] [--out FILE]

Both write records of the same questions with the same tracer, which keeps nothing between them. The
decisions have to be the same before a ratio is told. It goes on where it was stopped.
"""

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from lastword import load_records
from lastword.benchmarks import find, templates_for
from lastword.evaluation.runner import execute, prepare
from lastword.evaluation.work import Work
from lastword.text.items import Recorded
from lastword.tracer import Tracer

QUESTIONS = {"halueval-qa": 8, "fib": 2}
RESULTS = Path(__file__).parent / "results"


def run(tracer: Tracer, work: Work) -> tuple[float, list[int]]:
    """CPU seconds of a run, and what it decided."""
    with TemporaryDirectory() as folder:
        start = time.process_time()
        execute(tracer, prepare(tracer, work), Path(folder))
        seconds = time.process_time() - start
        records = load_records(folder)
    assert records["error"].isna().all(), "items failed"
    return seconds, records.sort_values("id")["index"].tolist()


def compare(tracer: Tracer, name: str, data: Path, rounds: int) -> dict[str, Any]:
    """The least seconds of each way of recording, with and without the question-blind pass."""
    benchmark = find(name)
    [template] = templates_for([benchmark], [])[name]
    dataset = benchmark.load(data, limit=QUESTIONS[name])
    seconds: dict[str, float] = {}
    decisions = []
    for _ in range(rounds):
        for record in get_args(Recorded):
            for blind in ("base", "none"):
                took, answers = run(tracer, Work(dataset, template, blind, record=record))
                key = f"{record}, blind {blind}"
                seconds[key] = min(took, seconds.get(key, took))
                decisions.append(answers)
    assert all(answers == decisions[0] for answers in decisions), "they decide otherwise"
    ratios = {
        blind: seconds[f"decide, blind {blind}"] / seconds[f"all, blind {blind}"]
        for blind in ("base", "none")
    }
    items = len(decisions[0])
    return {"items": items, "rounds": rounds, "seconds": seconds, "decide_over_all": ratios}


def main() -> None:
    """Time every benchmark, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "recording.json")
    options = parser.parse_args()
    tracer = Tracer.from_pretrained(options.model, prefix_cache=0, blind_cache=0)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["model"] = options.model
    for name in QUESTIONS.keys() - results.keys():
        results[name] = compare(tracer, name, options.data, options.rounds)
        print(name, json.dumps(results[name]), flush=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
