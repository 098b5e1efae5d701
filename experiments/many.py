"""What `lastword eval` takes of memory over very many items, before any of them is computed.

    python experiments/many.py MODEL [--items 100000] [--windows 5]

The items are made up: five candidates each, of 370 tokens with their prompt in the vocabulary of
stories260K. They are read from a file of JSON lines, rendered, and encoded and planned window by
window into a folder, as `eval` does it; a window is gone when the one after the next begins, so
that a few of them show what all take. One line of JSON: MiB of resident memory, and seconds.
"""

import argparse
import json
import random
import tempfile
import time
from functools import partial
from pathlib import Path

from lastword import Tracer
from lastword.benchmarks.jsonl import jsonl
from lastword.evaluation import runner
from lastword.evaluation.ahead import WINDOW, Ahead
from lastword.evaluation.work import Work
from lastword.records.run import Run

WORDS = "once upon a time there was little girl named Lily who loved to play in the park".split()


def write(path: Path, items: int) -> None:
    """Items of about 350 tokens of prompt and 20 of each candidate."""
    draw = random.Random(0)

    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    with path.open("w") as file:
        for place in range(items):
            candidates = [f"{words(9)} {place} {i}" for i in range(5)]
            item = {"id": str(place), "prompt": words(237), "candidates": candidates}
            file.write(json.dumps(item | {"truthful": [True, *[False] * 4]}) + "\n")


def measure(model: str, items: int, windows: int) -> dict[str, float]:
    """Resident memory and seconds, step by step."""
    found: dict[str, float] = {"items": items, "windows": windows, "window": WINDOW}

    def note(step: str) -> None:
        found[f"{step}_seconds"] = round(time.process_time(), 1)
        found[f"{step}_peak_mib"] = peak()

    tracer = Tracer.from_pretrained(model)
    note("model")
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, "many.jsonl")
        write(path, items)
        data = jsonl(path).load()
        job = runner.prepare(tracer, Work(data, data.benchmark.template()))
        note("items")
        encode = partial(runner.encode, tracer, job)
        with Run(job.cell(Path(root)), job.info) as run, Ahead(encode, items) as ahead:
            for _ in range(min(windows, -(-items // WINDOW))):
                batch = ahead.window(run.plan_size)
                run.extend(runner.plan(tracer, batch))
            lengths = [len(s) for e in batch.values() for s in getattr(e, "sequences", ())]
            found["tokens_a_sequence"] = round(sum(lengths) / len(lengths), 1)
    note("windows")
    return found


def peak() -> float:
    """The most memory that this process has had, in MiB, as the kernel tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) // 1024


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--windows", type=int, default=5)
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
