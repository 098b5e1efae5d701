"""What an answer costs by the shape of the work: seconds and memory, each against one number.

    python experiments/laws.py [--rounds 3] [--out FILE] [--figure FILE]

A small random Llama and random token ids, so that every number can be moved alone.
Writes the seconds and draws them; prints each law's exponent: the slope of its seconds between its
last two points on logarithmic axes, 1 where twice the work takes twice the time.
"""

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lastword.batch import Read
from lastword.model import embedded
from lastword.report import draw
from lastword.report.figure_parts import Figure, Line, Panel
from lastword.text.items import Item
from lastword.text.tokens import Encoded
from lastword.timing.contenders import ours
from lastword.timing.meter import Meter, metered, peak_bytes
from lastword.tracer import Tracer

READS: dict[Read, str] = {"base": "base only", "decide": "staged", "all": "everything read"}


@dataclass(frozen=True)
class Work:
    """One shape of the work; lengths are in tokens."""

    items: int = 32
    candidates: int = 4
    candidate: int = 12
    common: int = 0  # tokens with which all candidates of an item begin
    prompt: int = 64
    preamble: int = 128  # tokens with which all prompts begin
    blocks: int = 12
    vocabulary: int = 8192

    def encoded(self) -> list[Encoded]:
        """Items of random ids."""
        draw = np.random.default_rng(0)

        def ids(count: int) -> tuple[int, ...]:
            return tuple(draw.integers(self.vocabulary, size=count).tolist())

        names = tuple(f"c{i}" for i in range(self.candidates))
        preamble, items = ids(self.preamble), []
        for _ in range(self.items):
            prompt, common = preamble + ids(self.prompt), ids(self.common)
            own = self.candidate - self.common
            sequences = tuple(prompt + common + ids(own) for _ in names)
            items.append(Encoded(Item("p", names), sequences, (len(prompt),) * len(names)))
        return items

    def tracer(self, batch_tokens: int | None = None) -> Tracer:
        """A model of this depth and vocabulary."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=self.blocks,
            num_attention_heads=4,
            max_position_embeddings=16384,
        )
        model = LlamaForCausalLM(config).eval()
        tokenizer = embedded.load("organism")[1]
        return Tracer(model, tokenizer, invariant=2.0, batch_tokens=batch_tokens)


LAWS: dict[str, tuple[str, tuple[int, ...]]] = {
    "items": ("items", (32, 64, 128, 256)),
    "candidates": ("candidates an item", (2, 4, 8, 16)),
    "candidate": ("tokens a candidate", (4, 8, 16, 32)),
    "prompt": ("tokens of a prompt", (64, 128, 256, 512)),
    "blocks": ("blocks", (6, 12, 24)),
    "vocabulary": ("vocabulary", (4096, 8192, 16384)),
}
SHARED = (0, 8, 16, 20)  # of 24 tokens of each of 16 candidates
BUDGETS = (1024, 2048, 4096, 8192)


def time(work: Work, rounds: int) -> dict[Read, Meter]:
    """The fastest of a few interleaved runs of each reading."""
    tracer, encoded = work.tracer(), work.encoded()
    ours(tracer, encoded[:2], "all")
    best: dict[Read, Meter] = {}
    for _ in range(rounds):
        for read in READS:
            with metered(tracer) as meter:
                ours(tracer, encoded, read)
            if read not in best or meter.total < best[read].total:
                best[read] = meter
    return best


def law(works: Sequence[Work], at: Callable[[Work], int], rounds: int) -> dict[str, Any]:
    """Seconds of each reading by one number, with the distinct tokens and the exponents."""
    timed = [time(work, rounds) for work in works]
    seconds = {name: [t[read].total for t in timed] for read, name in READS.items()}
    x = [at(work) for work in works]
    rise = {name: math.log(s[-1] / s[-2]) / math.log(x[-1] / x[-2]) for name, s in seconds.items()}
    tokens = [t["base"].tokens for t in timed]
    return {"x": x, "seconds": seconds, "distinct_tokens": tokens, "exponent": rise}


def memory() -> dict[str, Any]:
    """Peak memory above the loaded model by the token budget: medians of three fresh processes."""
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        peaks = list(processes.map(peak, BUDGETS * 3))
    medians = [median(peaks[i :: len(BUDGETS)]) for i in range(len(BUDGETS))]
    return {"x": list(BUDGETS), "mebibytes": medians}


def peak(budget: int) -> float:
    """Peak memory of many items above the loaded model, in MiB."""
    work = Work(items=256)
    tracer, encoded = work.tracer(budget), work.encoded()
    return peak_bytes(lambda: ours(tracer, encoded, "all"), torch.device("cpu")) / 2**20


def panel(title: str, found: dict[str, Any]) -> Panel:
    """One law as curves."""
    roles = {"base only": "base", "staged": "corrected", "everything read": "other"}
    x = tuple(map(float, found["x"]))
    top = max(max(seconds) for seconds in found["seconds"].values())
    marks = tuple(
        Line(x, tuple(seconds), roles[name], name, markers=True)
        for name, seconds in found["seconds"].items()
    )
    return Panel("", marks, title, "seconds", y_range=(0, 1.1 * top))


def figure(results: dict[str, Any]) -> Figure:
    """All laws."""
    panels = [panel(title, results[name]) for name, (title, _) in LAWS.items()]
    panels.append(panel("distinct tokens, as candidates share more", results["distinct"]))
    found = results["memory"]
    line = Line(tuple(map(float, found["x"])), tuple(found["mebibytes"]), "chosen", markers=True)
    top = 1.1 * max(found["mebibytes"])
    panels.append(Panel("", (line,), "--batch-tokens", "peak MiB", y_range=(0, top)))
    return Figure("laws", "Cost laws", "", tuple(panels), columns=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/laws.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/images/laws.svg"))
    options = parser.parse_args()
    results: dict[str, Any] = {"threads": torch.get_num_threads()}
    for name, (title, values) in LAWS.items():
        works = [replace(Work(), **{name: value}) for value in values]
        results[name] = law(works, attrgetter(name), options.rounds)
        print(title, json.dumps(results[name]), flush=True)
    sharing = [Work(candidates=16, candidate=24, common=common) for common in SHARED]
    tokens = {work: sum_of_distinct(work) for work in sharing}
    results["distinct"] = law(sharing[::-1], tokens.__getitem__, options.rounds)
    print("distinct tokens", json.dumps(results["distinct"]), flush=True)
    half, none = Work(candidates=13, candidate=24, common=12), Work(candidates=8, candidate=24)
    pair = [time(work, options.rounds) for work in (half, none)]
    results["13_sharing_half_over_8_sharing_none"] = {
        name: pair[0][read].total / pair[1][read].total for read, name in READS.items()
    }
    print("13 sharing half / 8 sharing none", results["13_sharing_half_over_8_sharing_none"])
    results["memory"] = memory()
    print("memory", json.dumps(results["memory"]))
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        drawn = {path.suffix: path for path in draw.save(figure(results), Path(folder))}
        shutil.copy(drawn[".svg"], options.figure)


def sum_of_distinct(work: Work) -> int:
    """Distinct tokens fed of one shape of work."""
    own = work.candidates * (work.candidate - work.common - 1) + work.common
    return work.preamble + work.items * (work.prompt + own)


if __name__ == "__main__":
    main()
