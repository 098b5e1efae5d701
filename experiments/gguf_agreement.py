"""Our base log-probabilities of a GGUF file beside llama.cpp's own, on the items of `everyday`.

    python experiments/gguf_agreement.py [FILE] [--items 50] [--reader VENV/bin/python]

llama.cpp runs in a virtual environment of its own, which is made for it: the package cyllama
carries it compiled. It reads the same token ids twice: from the file as it is, where its kernels
round activations to 8 bits, and from a copy whose weights are dequantised to float32, where they do
not. One JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

READER = "cyllama==0.2.18"
Matrix = list[list[float]]
Figures = dict[str, float | int]


def read(file: str, asked: dict[str, Any]) -> dict[str, Any]:
    """In the reader's environment: llama.cpp's token ids of the texts, and log-probabilities.

    Keys and values are kept in float32 and attention is the plain one, so that what is left of a
    difference is the matrix products'.
    """
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    llama_cpp.ggml_backend_load_all()

    class Model(llama_cpp.LlamaModel):
        """cyllama's own asks it for the size of its vocabulary, which it does not have."""

        n_vocab = property(lambda self: self.get_vocab().n_vocab)

    model = Model(file, llama_cpp.LlamaModelParams())
    options = llama_cpp.LlamaContextParams()
    options.n_ctx = options.n_batch = 512
    options.type_k = options.type_v = 0  # float32
    options.flash_attn_type = 0  # none
    context, vocabulary = llama_cpp.LlamaContext(model, options), model.get_vocab()
    return {
        "ggml": f"{llama_cpp.ggml_version()} ({llama_cpp.ggml_commit()})",
        "ids": [vocabulary.tokenize(text, True, True) for text in asked["texts"]],
        "log_probs": [_log_probs(llama_cpp, context, ids) for ids in asked["sequences"]],
    }


def _log_probs(llama_cpp: Any, context: Any, ids: list[int]) -> list[float]:
    """Of every token but the first, given those before it."""
    context.kv_cache_clear()
    batch = llama_cpp.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
    for place, token in enumerate(ids):
        batch.add(token, place, [0], True)
    assert context.decode(batch) == 0
    found = []
    for place, token in enumerate(ids[1:]):
        logits = np.array(context.get_logits_ith(place), float)
        peak = logits.max()
        found.append(float(logits[token] - peak - np.log(np.exp(logits - peak).sum())))
    return found


def dequantised(file: Path, folder: Path) -> Path:
    """A copy of the file whose tensors are all in float32."""
    import gguf

    reader = gguf.GGUFReader(file)
    path = folder / "float32.gguf"
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    own = ("GGUF.", "general.architecture")
    for name, field in reader.fields.items():
        if not name.startswith(own):
            kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        dense = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, dense)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def compare(ours: Matrix, theirs: Matrix, boundaries: list[int], places: list[int]) -> Figures:
    """How far the candidates' tokens and mean log-probabilities are apart, and the choices.

    Args:
        ours: Log-probabilities of every token but the first, a sequence a row.
        theirs: The reader's.
        boundaries: Where each candidate begins in its sequence.
        places: Which item each sequence is of.
    """
    apart: list[float] = []
    scores: dict[int, list[tuple[float, float]]] = {}
    for a, b, boundary, place in zip(ours, theirs, boundaries, places, strict=True):
        x, y = np.array(a[boundary - 1 :]), np.array(b[boundary - 1 :])
        apart.extend(np.abs(x - y))
        scores.setdefault(place, []).append((x.mean(), y.mean()))
    items = [np.array(pairs) for pairs in scores.values()]
    return {
        "tokens": len(apart),
        "token_median": float(np.median(apart)),
        "token_max": float(np.max(apart)),
        "score_max": float(max(np.abs(pairs[:, 0] - pairs[:, 1]).max() for pairs in items)),
        "same_choice": int(sum(np.ptp(pairs.argmax(0)) == 0 for pairs in items)),
    }


def _reader_environment(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", READER, "numpy"], check=True)
    return python


def _ask(python: str, file: Path, asked: Path) -> dict[str, Any]:
    command = [python, __file__, "--read", str(file), str(asked)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(file: Path, count: int, python: str | None) -> dict[str, Any]:
    """Ours against llama.cpp's on the first `count` items."""
    import torch

    from lastword import Tracer
    from lastword.benchmarks import find

    benchmark = find("everyday")
    items = benchmark.load(limit=count).items(benchmark.template("qa"), blind=False)[:count]
    tracer = Tracer.from_pretrained(file, device="cpu", dtype="float32")
    encoded: Any = tracer.encode(items)
    sequences = [list(ids) for e in encoded for ids in e.sequences]
    boundaries = [boundary for e in encoded for boundary in e.boundaries]
    places = [place for place, e in enumerate(encoded) for _ in e.sequences]
    texts = [item.prompt for item in items]
    ours = []
    for ids in sequences:
        with torch.no_grad():
            logits = tracer.backbone.model(torch.tensor([ids])).logits[0, :-1].double()
        ours.append(logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())
    with tempfile.TemporaryDirectory() as root:
        python = python or _reader_environment(Path(root, "venv"))
        asked = Path(root, "asked.json")
        asked.write_text(json.dumps({"texts": texts, "sequences": sequences}))
        as_stored = _ask(python, file, asked)
        in_float = _ask(python, dequantised(file, Path(root)), asked)
    return {
        "file": file.name,
        "ggml": as_stored["ggml"],
        "items": len(items),
        "sequences": len(sequences),
        "same_tokens": sum(
            ids == tracer.tokenizer(text).input_ids
            for ids, text in zip(as_stored["ids"], texts, strict=True)
        ),
        "as stored": compare(ours, as_stored["log_probs"], boundaries, places),
        "dequantised": compare(ours, in_float["log_probs"], boundaries, places),
    }


def main() -> None:
    if sys.argv[1:2] == ["--read"]:
        print(json.dumps(read(sys.argv[2], json.loads(Path(sys.argv[3]).read_text()))))
        return
    from lastword.model.named import locate

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--reader", help="python of an environment that has the reader")
    given = parser.parse_args()
    file = given.file or locate("smollm2-135m")
    print(json.dumps(measure(file, given.items, given.reader)))


if __name__ == "__main__":
    main()
