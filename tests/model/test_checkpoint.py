"""Checkpoints: sharded, pickled, quantised and damaged ones, compared with planted weights."""

import json
import math
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import planted
import pytest
import torch
from planted import EXACT, LAYOUTS, refusal, value
from safetensors.torch import save_file

from lastword.errors import CheckpointError, InvariantError
from lastword.model.weights.checkpoint import SafetensorsCheckpoint, local_files, open_local
from lastword.model.weights.dequantise import read_dense
from lastword.model.weights.invariant import read_invariant
from lastword.rule.theta import Theta

LLAMA = LAYOUTS["llama"]
KEY = "model.layers.1.self_attn.k_proj"
HEADER = "no readable safetensors header"


def text(file: str, content: str | bytes) -> Callable[[Path], object]:
    """Return damage that replaces the content of a file in the folder."""
    data = content.encode("latin-1") if isinstance(content, str) else content
    return lambda folder: (folder / file).write_bytes(data)


def removed(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).unlink()


def index(shard: object) -> Callable[[Path], object]:
    return text(INDEX, json.dumps({"metadata": {}, "weight_map": {"a": shard}}))


INDEX, FIRST = "model.safetensors.index.json", "model-00001-of-00002.safetensors"


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def one(**entry: object) -> str:
    """Return the header of one tensor of eight bytes, changed by `entry`."""
    return json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry})


def test_only_the_shards_with_needed_tensors_are_read(tmp_path):
    names = sorted(LLAMA.tensors())
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=len(names))
    assert not (folder / "model.safetensors").exists()
    (folder / "pytorch_model.bin").write_bytes(b"not to be read")
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    needed = set(read_invariant(folder, theta=Theta()).tensors)
    assert len(needed) == 5
    for name in set(names) - needed:
        (folder / files[name]).unlink()
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


@pytest.mark.parametrize(
    ("shards", "damage", "words"),
    [
        (1, removed("config.json"), "no config.json"),
        (1, removed("model.safetensors"), "holds no model.safetensors"),
        *((1, text("config.json", t), "config.json is") for t in ("{", "[1]", "\xff", "[" * 10**5)),
        (1, lambda f: os.truncate(f / "model.safetensors", 900), "cut short"),
        (1, text("model.safetensors", b"\xff" * 40), "its header is too long"),
        *(
            (1, text("model.safetensors", header(content) + bytes(16)), HEADER)
            for content in (
                "{]",
                '{"a": 1}',
                one(data_offsets=[0, 8, 16]),
                one(shape=["a"]),
                one().replace("[2]", "[1e999]"),
                one().replace("[2]", "[" * 10_000 + "]" * 10_000),
                "[" * 10_000,
            )
        ),
        (2, removed(FIRST), f"lacks {FIRST}"),
        (2, lambda f: save_file({"else": torch.ones(1)}, f / FIRST), "not in the index"),
        (2, text(INDEX, "{"), f"{INDEX} is not JSON"),
        (2, text(INDEX, "{}"), f"{INDEX} has no weight_map"),
        *(
            (2, index(at), "not beside it")
            for at in ("../model.safetensors", "..", "/etc/hosts", 3)
        ),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(shards, damage, words, tmp_path):
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=shards)
    damage(folder)
    message = refusal(folder)
    assert words in message and len(message) < 600


FAR = 10**18  # beyond the limits of file systems


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"shape": [4]}, "range"),
        ({"shape": [4], "dtype": "F7"}, "dtype F7"),
        *(
            ({"shape": [size // 4], "data_offsets": [start, start + size]}, "cut short")
            for start, size in ((0, 2**40), (0, 2**80), (0, FAR), (FAR, FAR))
        ),
    ],
)
def test_a_tensor_that_contradicts_its_header_is_refused_before_memory_is_taken(
    entry, words, tmp_path
):
    before = {"dtype": "F32", "shape": [FAR // 4], "data_offsets": [0, FAR]}
    entries = {"__metadata__": {"format": "pt"}} | json.loads(one(**entry)) | {"b": before}
    (tmp_path / "x.safetensors").write_bytes(header(json.dumps(entries)) + bytes(8))
    checkpoint = SafetensorsCheckpoint(local_files(tmp_path), {}, "x.safetensors")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=words):
            checkpoint.read("a")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# Quantised forms: planted weights lie in [0, 20], so all forms below represent them exactly.


def test_block_scaled_float8(tmp_path):
    """Blocks of 3 x 5 over 4 x 8: partial blocks at both edges."""
    tensors, scale = LLAMA.tensors(), torch.tensor([[0.5, 2.0], [4.0, 0.25]])
    for name in list(tensors):
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            spread = torch.ones_like(tensors[name])
            for i in range(4):
                for j in range(8):
                    spread[i, j] = scale[i // 3, j // 5]
            tensors[name] = (tensors[name] / spread).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale.clone()
    config = LLAMA.config | {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [3, 5]}
    }
    folder = planted.write(tmp_path, config, tensors)
    result = read_invariant(folder, theta=Theta())
    assert result.value == pytest.approx(LLAMA.invariant, **EXACT)
    assert f"{KEY}.weight_scale_inv" in result.tensors


@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1), "int8"])
def test_one_scale_or_one_per_row(shape, tmp_path):
    tensors, scale = LLAMA.tensors(), torch.tensor([0.5, 2.0, 4.0, 0.25])
    if shape == "int8":
        scale = torch.tensor([1.0, 0.5, 0.25, 1.0])
        tensors[f"{KEY}.weight"] = (tensors[f"{KEY}.weight"] / scale[:, None]).to(torch.int8)
        tensors[f"{KEY}.SCB"] = 127 * scale
    else:
        scale = scale[: math.prod(shape)].reshape(shape)
        stored = tensors[f"{KEY}.weight"] / scale.reshape(-1, 1)
        tensors[f"{KEY}.weight"] = stored.to(torch.float8_e4m3fn)
        tensors[f"{KEY}.weight_scale"] = scale.clone()
    folder = planted.write(tmp_path, LLAMA.config, tensors)
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


def test_float8_scales_that_do_not_match_the_blocks_are_refused(tmp_path):
    tensors = LLAMA.tensors()
    tensors[f"{KEY}.weight"] = tensors[f"{KEY}.weight"].to(torch.float8_e4m3fn)
    assert "no scale" in refusal(planted.write(tmp_path, LLAMA.config, tensors))
    tensors[f"{KEY}.weight_scale_inv"] = torch.ones(3, 3)
    assert "no weight_block_size" in refusal(planted.write(tmp_path, LLAMA.config, tensors))
    config = LLAMA.config | {"quantization_config": {"weight_block_size": [4, 4]}}
    assert "blocks of 4 x 4" in refusal(planted.write(tmp_path, config, tensors))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bit_weights_are_read_like_by_bitsandbytes(kind, double, tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = torch.randn(200, 130, generator=torch.Generator().manual_seed(0))
    data, state = bitsandbytes.functional.quantize_4bit(
        weight, quant_type=kind, compress_statistics=double
    )
    packed = {f"{KEY}.weight.{n}": t for n, t in state.as_dict(packed=True).items()}
    tensors = LLAMA.tensors() | packed | {f"{KEY}.weight": data}
    planted.write(tmp_path, LLAMA.config, tensors)
    weights, _ = read_dense(open_local(tmp_path), KEY)
    expected = bitsandbytes.functional.dequantize_4bit(data, state)
    torch.testing.assert_close(weights.float(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_packed_formats_name_the_checkpoint_to_use(method, tmp_path):
    tensors = LLAMA.tensors()
    tensors[f"{KEY}.qweight"] = tensors.pop(f"{KEY}.weight").to(torch.int32)
    config = LLAMA.config | {
        "quantization_config": {"quant_method": method, "bits": 4},
        "_name_or_path": "someone/plain",
    }
    with pytest.raises(InvariantError) as caught:
        read_invariant(planted.write(tmp_path, config, tensors), theta=Theta())
    message = str(caught.value)
    assert method in message and "someone/plain" in message and "invariant=VALUE" in message
