"""Memory of a model on the CPU, compared with the estimate before loading.

    python experiments/memory.py [SHAPE ...]

Each shape is a random checkpoint, loaded and run in a separate fork on items that fill a batch. The
peak is the kernel's since loading, less the memory before it and unused pages of the file. The
output is one JSON line per shape.
"""

import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH_TOKENS = 512
# glibc does not return freed pieces below this size; how many depends on the order of calls.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
_LLAMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
# A large vocabulary in bfloat16, whose head is also stored in float32; a deep model in float16,
# which becomes float32; experts, which are stacked while loading.
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vocabulary": (
        "llama",
        "bfloat16",
        _LLAMA
        | {"vocab_size": 96000, "hidden_size": 768, "intermediate_size": 1024}
        | {"num_hidden_layers": 4},
    ),
    "deep": (
        "llama",
        "float16",
        _LLAMA
        | {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 2048}
        | {"num_hidden_layers": 24},
    ),
    "experts": (
        "qwen3_moe",
        "float32",
        _LLAMA
        | {
            "vocab_size": 16000,
            "hidden_size": 512,
            "moe_intermediate_size": 512,
            "intermediate_size": 1024,
        }
        | {"num_hidden_layers": 8, "num_experts": 16, "num_experts_per_tok": 2},
    ),
}


def write(shape: str, folder: Path) -> None:
    """Write a random checkpoint of the shape, with a tokenizer of one token per word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    kind, dtype, options = SHAPES[shape]
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).save_pretrained(folder)
    words = {f"w{i}": i for i in range(options["vocab_size"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="w0").save_pretrained(folder)


def measure(shape: str) -> dict[str, float]:
    """Load the shape, run a full batch, and compare the peak with the estimate; in MiB."""
    import torch
    from transformers import AutoConfig

    from lastword import Item, Tracer
    from lastword.model import memory
    from lastword.model.weights.checkpoint import open_local

    torch.set_num_threads(1)
    draw = random.Random(0)

    def words(count: int) -> str:
        return " ".join(f"w{draw.randrange(1, 8000)}" for _ in range(count))

    # Long answers: nearly all tokens of the batch are read, as the estimate assumes.
    item = Item(words(8), tuple(words(BATCH_TOKENS // 4) for _ in range(4)))
    with tempfile.TemporaryDirectory() as root:
        in_a_fork(write, shape, Path(root, shape))
        shutil.copytree(Path(root, shape), Path(root, "warm"))
        next(Tracer.from_pretrained(Path(root, "warm")).correct_many([Item("w1", ("w2", "w3"))]))
        before = _status("VmRSS"), _status("RssFile")
        tracer = Tracer.from_pretrained(Path(root, shape), batch_tokens=BATCH_TOKENS)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        next(tracer.correct_many([item], read="all"))
        model = tracer.backbone.model
        mapped = _mapped(model, Path(root, shape))
        idle = _status("RssFile") - before[1] - mapped  # unused pages of the file
        real = _status("VmHWM") - before[0] - idle
        config = AutoConfig.from_pretrained(Path(root, shape))
        estimate = memory.footprint(
            open_local(Path(root, shape)),
            config,
            memory.Storage(model.dtype),
            torch.device("cpu"),
            BATCH_TOKENS,
        )
    assert estimate is not None
    parts = {"weights": estimate.weights, "head": estimate.head, "batch": estimate.batch}
    figures = {"estimate": estimate.total, "peak": real, **parts}
    return {k: round(v / 2**20, 1) for k, v in figures.items()} | {"ratio": estimate.total / real}


def in_a_fork(do: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a fork, which does not count; torch is imported once for all forks."""
    import torch  # noqa: F401
    from transformers import AutoModelForCausalLM  # noqa: F401

    import lastword.decide.tracer  # noqa: F401

    fork = multiprocessing.get_context("fork").Process(target=do, args=arguments)
    fork.start()
    fork.join()
    if fork.exitcode:
        sys.exit(fork.exitcode)


def _status(name: str) -> int:
    """Return a figure of this process's memory in bytes, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


def _mapped(model: Any, folder: Path) -> int:
    """Return the bytes of weights that are mapped from the checkpoint's file."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            start, _, stop = line.split()[0].partition("-")
            spans.append((int(start, 16), int(stop, 16)))
    return sum(
        p.numel() * p.element_size()
        for p in model.parameters()
        if any(start <= p.data_ptr() < stop for start, stop in spans)
    )


def print_figures(shape: str) -> None:
    """Print the figures of a shape."""
    print(json.dumps({"shape": shape, **measure(shape)}), flush=True)


def main() -> None:
    """Measure the named shapes, or all; restart with glibc's settings if they are missing."""
    if not os.environ.keys() >= _MALLOC.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | _MALLOC)
    for shape in sys.argv[1:] or SHAPES:
        in_a_fork(print_figures, shape)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
