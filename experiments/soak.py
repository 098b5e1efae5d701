"""Evaluation with kept prefixes under a small budget, against the same without, for an hour.

    OMP_NUM_THREADS=1 python experiments/soak.py [--minutes 60] [--mib 8] [--model MODEL]

Round after round, questions of `everyday` after preambles that go and come back are evaluated into
two folders, as `lastword eval` does it: by a tracer that keeps prefixes, one and the same all the
time, and by one that keeps none. The records are compared; evictions and memory are counted. The
result is kept in experiments/results/soak.json after every round; where records differ, it says so
and the exit code is 1.
"""

import argparse
import json
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import psutil
from prefixes import AGREE, SYSTEM

from lastword import Tracer, load_records
from lastword.benchmarks import find
from lastword.benchmarks.jsonl import jsonl
from lastword.evaluation import runner
from lastword.evaluation.work import Work
from lastword.model.prefixes import Prefixes, Row
from lastword.text.forest import Forest

RESULTS = Path(__file__).parent / "results" / "soak.json"
QUESTIONS = 24  # of a round
ALIVE = 12  # preambles that a round draws from; each round a new one comes and an old one goes
NUMBERS = ("trajectory", "t_scores", "blind_scores", "base_scores", "scores")
DECIDED = ("id", "index", "base_index", "operator", "regime", "decisive_layer", "error")


class Watched(Prefixes):
    """Prefixes that count what they save and what they let go."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.nodes = self.computed = self.evicted = self.most = 0

    def row(self, forest: Forest, rope: int, depth: int) -> Row:
        row = super().row(forest, rope, depth)
        self.nodes, self.computed = self.nodes + len(forest), self.computed + len(row.nodes)
        return row

    def keep(self, row: Row, depth: int) -> None:
        held = {*self._kept, *row.wanted}
        super().keep(row, depth)
        self.evicted += len(held) - len(self)
        self.most = max(self.most, self.bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--model", default="lastword/smollm2-135m")
    options = parser.parse_args()
    keeping, plain = (
        Tracer.from_pretrained(options.model, prefix_cache=mib, batch_tokens=2048)
        for mib in (options.mib, 0)
    )
    keeping.backbone.prefixes = watched = Watched(options.mib * 2**20)
    found: dict[str, Any] = {**vars(options), "rounds": 0, "items": 0, "failed": 0, "differing": 0}
    found |= {"apart_nats": 0.0, "memory_mb": []}
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        with TemporaryDirectory() as root:
            records = [evaluate(t, Path(root), found["rounds"]) for t in (keeping, plain)]
        compare(found, *records)
        found |= {
            "evicted_blocks": watched.evicted,
            "kept_mib": round(watched.most / 2**20, 2),
            "computed": round(watched.computed / watched.nodes, 3),
        }
        found["memory_mb"].append(round(psutil.Process().memory_info().rss / 1e6))
        RESULTS.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps(found))
    alike = found["differing"] == 0 and found["apart_nats"] <= AGREE
    raise SystemExit(0 if alike and watched.evicted else 1)


def evaluate(tracer: Tracer, root: Path, number: int) -> pd.DataFrame:
    """The records of one round, from the disk."""
    path = root / f"round-{number}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(number)), encoding="utf-8")
    data = jsonl(path).load()
    out = root / ("plain" if tracer.backbone.prefixes is None else "kept")
    runner.execute(tracer, runner.prepare(tracer, Work(data, data.benchmark.template())), out)
    return load_records(out)


def rows(number: int) -> list[dict[str, Any]]:
    """The items of a round: the same in each run of the script."""
    draw = random.Random(number)
    benchmark = find("everyday")
    examples = benchmark.load(None, limit=QUESTIONS, seed=number)
    return [
        {
            "id": item.id,
            "prompt": f"{preamble(number + draw.randrange(ALIVE))}\n\n{item.prompt}",
            "candidates": item.candidates,
            "truthful": item.truthful,
        }
        for item in examples.items(benchmark.template(None), blind=False)
    ]


def preamble(number: int) -> str:
    """Rules in an order of their own; three preambles in a row begin alike."""
    rules = SYSTEM.split("\n")
    random.Random(number // 3).shuffle(rules)
    return "\n".join(rules[: 4 + 4 * (number % 3)])


def compare(found: dict[str, Any], kept: pd.DataFrame, plain: pd.DataFrame) -> None:
    """Add what a round has shown."""
    assert len(kept) == len(plain) >= QUESTIONS, (len(kept), len(plain))
    decided = [frame[list(DECIDED)].astype(object).fillna("") for frame in (kept, plain)]
    differing = (decided[0] != decided[1]).any(axis=1)
    found["rounds"] += 1
    found["items"] += len(kept)
    found["failed"] += int(kept["error"].notna().sum())
    found["differing"] += int(differing.sum())
    apart = [distance(kept[name], plain[name]) for name in NUMBERS]
    found["apart_nats"] = max(found["apart_nats"], *apart)


def distance(kept: pd.Series, plain: pd.Series) -> float:
    """How far any two numbers of a column are apart; infinitely where one alone is undefined."""
    pairs = zip(kept, plain, strict=True)
    known = [(np.asarray(a, float), np.asarray(b, float)) for a, b in pairs if a is not None]
    assert all(np.array_equal(np.isnan(a), np.isnan(b)) for a, b in known)
    return max((float(np.nanmax(np.abs(a - b), initial=0.0)) for a, b in known), default=0.0)


if __name__ == "__main__":
    main()
