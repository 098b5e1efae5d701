"""The targets of speed: a random Llama of SmolLM-135M's shape on benchmark items.

    python benchmarks/speed.py --data DATA --tokenizer TOKENIZER [--setup NAME] [--dtype bfloat16]

DATA is a folder that holds `truthfulqa/mc_task.v0.json`, `halueval/qa_data.json` and
`fib/summarization_data.json`; TOKENIZER a folder with a small tokenizer.
Results are kept in benchmarks/results/, one JSON file a set-up, named in benchmarks/README.md.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tracelm.benchmarks import find, templates_for
from tracelm.text.items import Item
from tracelm.text.tokens import Encoded
from tracelm.timing.run import AGAINST, bench
from tracelm.tracer import Tracer

BPE_VOCABULARY = 8000  # of a byte-pair encoding of a benchmark's own texts


@dataclass(frozen=True)
class Setup:
    """Items of a benchmark: I(M) above 1 takes the mix branch, tokens may be cut from the left."""

    benchmark: str
    invariant: float
    cut: int = 0
    bpe: bool = False


SETUPS = {
    "truthfulqa": Setup("truthfulqa", 0.5),
    # The six-pair preamble is 385 tokens with a small tokenizer.
    "truthfulqa-220": Setup("truthfulqa", 0.5, cut=385 - 220),
    # Tokens as long as a real tokenizer's: a preamble of 153, candidates of 11.
    "truthfulqa-bpe": Setup("truthfulqa", 0.5, bpe=True),
    "truthfulqa-mix": Setup("truthfulqa", 2.0),
    "halueval-qa": Setup("halueval-qa", 2.0),
    "long-documents": Setup("fib", 2.0),
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


def benchmark_items(name: str, data: Path, limit: int | None = None) -> list[Item]:
    """The first questions of a benchmark."""
    benchmark = find(name)
    [template] = templates_for([benchmark], [])[name]
    items = benchmark.load(data, limit=limit).items(template, blind=False)
    return [i for i in items if not (i.id or "").endswith("mc2")]


def cut(encoded: Encoded, tokens: int) -> Encoded:
    """The same item with `tokens` of its left end gone."""
    return replace(
        encoded,
        sequences=tuple(s[tokens:] for s in encoded.sequences),
        boundaries=tuple(b - tokens for b in encoded.boundaries),
    )


def trained(items: list[Item]) -> PreTrainedTokenizerFast:
    """A byte-pair encoding of the items' own texts."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_VOCABULARY,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for item in items for text in (item.prompt, *item.candidates)]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


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
    setup = SETUPS.get(options.setup)
    if setup and setup.bpe:
        tokenizer: Any = trained(benchmark_items(setup.benchmark, options.data))
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    tracer = Tracer(
        smollm(getattr(torch, options.dtype)),
        tokenizer,
        invariant=setup.invariant if setup else 2.0,
        head_dtype=options.head_dtype,
        batch_tokens=options.batch_tokens,
    )
    if setup:
        items = benchmark_items(setup.benchmark, options.data, options.limit)
        encoded = [cut(e, setup.cut) for e in tracer.encode(items) if isinstance(e, Encoded)]
    else:
        encoded = random_items(tracer.readout.vocabulary, *RANDOM[options.setup])
    result = bench(
        tracer,
        encoded,
        rounds=options.rounds,
        against=options.against or AGAINST,
        progress=lambda what: print(f"  {what}", flush=True),
    )
    record = {"setup": options.setup, "dtype": options.dtype, "head_dtype": options.head_dtype}
    record |= {"threads": torch.get_num_threads(), **result.to_dict()}
    print(json.dumps(record, indent=1))
    for other in options.against or AGAINST:
        for mine in result.meters:
            ratio = result.ratio(mine, other)
            print(f"{mine} / {other}: {'they do not agree' if ratio is None else f'{ratio:.3f}'}")
    for mine, meter in result.meters.items():
        print(f"{mine}: {meter.total / result.floors[mine].total:.2f} x floor")
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
