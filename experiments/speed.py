"""Benchmarks of speed: a model on benchmark items, with and without correction, and others.

    python experiments/speed.py --data DATA [--model NAME] [--setup NAME ...] [--out FOLDER]

DATA is a folder with `truthfulqa/mc_task.v0.json`, `halueval/qa_data.json` and
`fib/summarization_data.json`. The default model is a random Llama of SmolLM-135M's shape, with the
tokenizer that --tokenizer names. A set-up writes one JSON file into the folder, and is skipped if
the file exists. --table prints the table of the folder's files.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lastword.decide.batch import Read
from lastword.decide.decider import Decider
from lastword.decide.tracer import Tracer
from lastword.lab.benchmarks import find, templates_for
from lastword.lab.timing import AGAINST, NAMES, bench, ours
from lastword.model.readout import HiddenStates
from lastword.text.forest import Branch, build
from lastword.text.items import Item
from lastword.text.tokens import Encoded, EncodedItem

RESULTS = Path(__file__).parent / "results"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Setup:
    """Items of a benchmark.

    Attributes:
        benchmark: Name of the benchmark.
        invariant: I(M) of the random model: above 1 it uses the mix branch.
        joined: Number of neighbours' prompts before an item's prompt.
        prompt: Maximum tokens of a prompt, counted from its end; 0 for all.
    """

    benchmark: str
    invariant: float
    joined: int = 0
    prompt: int = 0


SETUPS = {
    "truthfulqa": Setup("truthfulqa", 0.5),
    "truthfulqa-mix": Setup("truthfulqa", 2.0),
    "truthfulqa-short": Setup("truthfulqa", 0.5, prompt=60),
    "halueval-qa": Setup("halueval-qa", 2.0),
    "fib": Setup("fib", 2.0),
    "documents": Setup("fib", 2.0, joined=5, prompt=1200),
}
# Items of random ids: number, tokens of the prompt, candidates, tokens of a candidate.
RANDOM = {
    "one-item": (1, 100, 6, 12),  # the latency of one call
    "short": (6, 60, 5, 10),
    "short-answers": (6, 60, 5, 3),
    "long-answers": (3, 60, 5, 30),
    "long-prompts": (3, 400, 5, 10),
}
PASS = 25  # tokens that a pass costs on top of its own


def smollm(dtype: torch.dtype, vocabulary: int) -> LlamaForCausalLM:
    """Return a random model of SmolLM-135M's shape with a vocabulary."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def random_items(
    vocabulary: int, count: int, prompt: int, candidates: int, length: int
) -> list[EncodedItem]:
    """Return items of random ids, each with a different prompt."""
    draw = np.random.default_rng(0)
    item = Item("p", tuple(f"c{i}" for i in range(candidates)))
    items = []
    for _ in range(count):
        ids = draw.integers(vocabulary, size=(candidates, prompt + length))
        ids[:, :prompt] = ids[0, :prompt]
        branches = tuple(Branch(tuple(row), prompt) for row in ids.tolist())
        items.append(EncodedItem(item, Encoded(branches)))
    return items


def benchmark_items(name: str, data: Path, limit: int | None = None) -> list[Item]:
    """Return the first questions of a benchmark."""
    benchmark = find(name)
    [template] = templates_for([benchmark], [])[name]
    items = benchmark.load(data, limit=limit).items(template, blind=False)
    return [i for i in items if not (i.id or "").endswith("mc2")]


def joined(items: Sequence[Item], count: int) -> list[Item]:
    """Return each item with the prompts of its `count` neighbours before its prompt."""
    prompts = [item.prompt for item in items]
    longer = ["\n\n".join([*prompts[i + 1 :], *prompts[:i]][:count]) for i in range(len(items))]
    return [replace(i, prompt=f"{p}\n\n{i.prompt}") for i, p in zip(items, longer, strict=True)]


def cut(encoded: EncodedItem, prompt: int) -> EncodedItem:
    """Return the item with at most `prompt` tokens before its candidates."""
    whole = encoded.prompt
    gone = max(0, whole.prompt_tokens - prompt) if prompt else 0
    branches = tuple(Branch(b.tokens[gone:], b.boundary - gone) for b in whole.branches)
    return replace(encoded, prompt=replace(whole, branches=branches))


def items_of(name: str, tracer: Tracer, data: Path, limit: int) -> list[EncodedItem]:
    """Return the items of a set-up, for a model."""
    if name in RANDOM:
        return random_items(tracer.readout.vocabulary, *RANDOM[name])
    setup = SETUPS[name]
    items = benchmark_items(setup.benchmark, data, limit + setup.joined)
    if setup.joined:
        items = joined(items, setup.joined)
    items = items[:limit]
    return [cut(e, setup.prompt) for e in tracer.encode(items) if isinstance(e, EncodedItem)]


def tracer_of(options: argparse.Namespace, name: str) -> Tracer:
    """Return the model of the options."""
    if options.model:
        return Tracer.from_pretrained(
            options.model,
            dtype=options.dtype,
            head_dtype=options.head_dtype,
            batch_tokens=options.batch_tokens,
            prefix_cache=0,
        )
    return Tracer(
        smollm(getattr(torch, options.dtype), options.vocabulary),
        AutoTokenizer.from_pretrained(options.tokenizer),
        invariant=SETUPS[name].invariant if name in SETUPS else 2.0,
        head_dtype=options.head_dtype,
        batch_tokens=options.batch_tokens,
    )


def label(options: argparse.Namespace) -> str:
    """Return the model's name for file names."""
    model = (options.model or f"random-{options.vocabulary}").rpartition("/")[2]
    half = "" if options.dtype == "float32" else f"-{options.dtype}"
    return model + half + ("-head-model" if options.head_dtype == "model" else "")


def stage(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Time one set-up."""
    tracer = tracer_of(options, name)
    items = items_of(name, tracer, options.data, options.limit)
    result = bench(
        Decider(tracer),
        items,
        rounds=options.rounds,
        against=options.against or AGAINST,
        clock=CLOCKS[options.clock],
    )
    record = {"model": label(options), "setup": name, "dtype": options.dtype}
    record |= {"head_dtype": options.head_dtype, "invariant": tracer.invariant}
    record |= {"clock": options.clock, "threads": torch.get_num_threads(), "rounds": options.rounds}
    return record | result.to_dict() | {"predicted": predicted(tracer, items)}


def predicted(tracer: Tracer, items: Sequence[EncodedItem]) -> dict[str, float]:
    """Return our costs over a pass per candidate by the formula of docs/speed.md."""
    blocks = sum(weights.numel() for weights in tracer.backbone.parts.blocks.parameters())
    head = tracer.profile.width * tracer.profile.vocabulary
    groups = [[b for i in g for b in items[i].prompt.branches] for g in tracer.plan(items)]
    fed = [len(branch.fed) + PASS for group in groups for branch in group]
    tokens = sum(len(build(group)) + PASS for group in groups)
    costs = {}
    for read, name in NAMES.items():
        reads = head_reads(tracer, items, read)
        costs[name] = (tokens * blocks + reads * head) / (sum(fed) * (blocks + head))
    return costs


def head_reads(tracer: Tracer, items: Sequence[EncodedItem], mode: Read) -> int:
    """Return the number of states that the head reads."""
    read, counts = tracer.readout.read, list[int]()

    def counted(
        states: HiddenStates, targets: np.ndarray, depths: Sequence[int], *more: Any
    ) -> Any:
        counts.append(len(np.unique(states.reads.row[targets])) * len(depths))
        return read(states, targets, depths, *more)

    with patch.object(tracer.readout, "read", counted):
        ours(Decider(tracer), items, mode)
    return sum(counts)


def rows(record: dict[str, Any]) -> Iterator[str]:
    """Yield rows of a table: seconds over another's, by the formula, and over ours."""
    items = f"{record['setup']}, {record['items']} item" + "s" * (record["items"] > 1)
    for name in NAMES.values():
        packed = record["seconds"][name] / record["seconds"][NAMES["base"]]
        formula = f"{record['predicted'][name]:.3f}" if "predicted" in record else "–"
        reading = name.removeprefix("ours, ")
        ratios = f"{over(record, name)} | {formula} | {packed:.2f}"
        yield f"| {record['model']} | {items} | {reading} | {ratios} |"


def over(record: dict[str, Any], name: str) -> str:
    """Return seconds over those of lm-eval, or of the first other, or a dash if they disagree."""
    seconds, agreement = record["seconds"], record["agreement"]
    others = [other for other in seconds if other not in NAMES.values()]
    other = "lm-eval hf" if "lm-eval hf" in others else others[0]
    if not record["same_decisions"] or agreement[other] > record["tolerance"]:
        return "–"
    return f"{seconds[name] / seconds[other]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", help="Name or folder; without it a random one.")
    parser.add_argument("--tokenizer", help="Folder of a tokenizer, for the random model.")
    parser.add_argument("--setup", choices=(*SETUPS, *RANDOM), action="append")
    parser.add_argument("--vocabulary", type=int, default=49152, help="Of the random model.")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--head-dtype", default="float32", choices=("float32", "model"))
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--against", action="append")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print what is kept, time nothing.")
    options = parser.parse_args()
    for name in () if options.table else options.setup or SETUPS:
        file = options.out / f"speed-{label(options)}-{name}.json"
        if not file.exists():
            print(name, flush=True)
            text = json.dumps(stage(options, name), indent=1)
            file.write_text(text + "\n", encoding="utf-8")
    for file in sorted(options.out.glob("speed-*.json")):
        print(*rows(json.loads(file.read_text(encoding="utf-8"))), sep="\n")


if __name__ == "__main__":
    main()
