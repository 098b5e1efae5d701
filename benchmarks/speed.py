"""The targets of speed: a random Llama of SmolLM-135M's shape on benchmark items.

    python benchmarks/speed.py --data DATA --tokenizer TOKENIZER [--setup NAME] [--dtype bfloat16]

DATA is a folder that holds `truthfulqa/mc_task.v0.json`, `halueval/qa_data.json` and
`fib/summarization_data.json`; TOKENIZER a folder with a small tokenizer.
Results are kept in benchmarks/results/, one JSON file a set-up, named in benchmarks/README.md.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tracelm.bench.run import AGAINST, bench
from tracelm.benchmarks import find, templates_for
from tracelm.items import Item
from tracelm.tokens import Encoded
from tracelm.tracer import Tracer

# The six-pair preamble of TruthfulQA is 385 tokens with a small tokenizer; a real-sized one makes
# about 220 of it.
REAL_PREAMBLE = 220
SETUPS = {
    # name: benchmark, I(M) (above 1 the mix branch, else early), tokens cut from the left
    "truthfulqa": ("truthfulqa", 0.5, 0),
    "truthfulqa-220": ("truthfulqa", 0.5, 385 - REAL_PREAMBLE),
    "truthfulqa-mix": ("truthfulqa", 2.0, 0),
    "halueval-qa": ("halueval-qa", 2.0, 0),
    "long-documents": ("fib", 2.0, 0),
}
# Items of random ids: number, tokens of the prompt, candidates, tokens of a candidate.
RANDOM = {
    "one-item": (1, 100, 6, 12),  # the latency of one call
    "documents": (8, 1200, 2, 70),  # the shape of HaluEval's summaries
}


def smollm(dtype: torch.dtype) -> LlamaForCausalLM:
    """A random model of SmolLM-135M's shape."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
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
) -> list[Encoded]:
    """Items of random ids, each with a prompt of its own."""
    draw = np.random.default_rng(0)
    item = Item("p", tuple(f"c{i}" for i in range(candidates)))
    items = []
    for _ in range(count):
        ids = draw.integers(vocabulary, size=(candidates, prompt + length))
        ids[:, :prompt] = ids[0, :prompt]
        items.append(Encoded(item, tuple(map(tuple, ids.tolist())), (prompt,) * candidates))
    return items


def benchmark_items(tracer: Tracer, options: argparse.Namespace) -> list[Encoded]:
    """The first questions of a benchmark, as ids."""
    name, _, left = SETUPS[options.setup]
    benchmark = find(name)
    [template] = templates_for([benchmark], [])[name]
    items = benchmark.load(options.data, limit=options.limit).items(template, blind=False)
    items = [i for i in items if not (i.id or "").endswith("mc2")]
    return [cut(e, left) for e in tracer.encode(items) if isinstance(e, Encoded)]


def cut(encoded: Encoded, tokens: int) -> Encoded:
    """The same item with `tokens` of its left end gone."""
    return replace(
        encoded,
        sequences=tuple(s[tokens:] for s in encoded.sequences),
        boundaries=tuple(b - tokens for b in encoded.boundaries),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--setup", choices=(*SETUPS, *RANDOM), default="truthfulqa")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--head-dtype", default="float32", choices=("float32", "model"))
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--against", action="append")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shape = RANDOM.get(options.setup)
    tracer = Tracer(
        smollm(getattr(torch, options.dtype)),
        AutoTokenizer.from_pretrained(options.tokenizer),
        invariant=2.0 if shape else SETUPS[options.setup][1],
        head_dtype=options.head_dtype,
        batch_tokens=options.batch_tokens,
    )
    result = bench(
        tracer,
        random_items(tracer.readout.vocabulary, *shape)
        if shape
        else benchmark_items(tracer, options),
        rounds=options.rounds,
        against=options.against or AGAINST,
        progress=lambda what: print(f"  {what}", flush=True),
    )
    record = {"setup": options.setup, "dtype": options.dtype, "head_dtype": options.head_dtype}
    record |= {"threads": torch.get_num_threads(), **result.to_dict()}
    print(json.dumps(record, indent=1))
    for other in options.against or AGAINST:
        for mine, seconds in result.seconds.items():
            if mine.startswith("ours"):
                print(f"{mine} / {other}: {seconds / result.seconds[other]:.3f}")
    for mine, meter in result.meters.items():
        print(f"{mine}: {meter.total / result.floors[mine].total:.2f} x floor")
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
