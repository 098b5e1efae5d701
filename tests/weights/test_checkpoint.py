"""Checkpoints as they come: sharded, pickled, quantised, damaged; each held to planted weights."""

import json
import math
import os
import struct
import time
import tracemalloc
from pathlib import Path

import planted
import pytest
import torch
from planted import LAYOUTS
from safetensors.torch import save_file

from lastword import Tracer
from lastword.errors import CheckpointError, InvariantError
from lastword.theta import Theta
from lastword.weights.checkpoint import LocalFiles, SafetensorsCheckpoint, open_local
from lastword.weights.dequantise import read_dense
from lastword.weights.invariant import read_invariant

EXACT = {"rel": 1e-9, "abs": 0.0}
LLAMA = LAYOUTS["llama"]
KEY = "model.layers.1.self_attn.k_proj"


def value(source: Path) -> float:
    return read_invariant(source, theta=Theta()).value


def refusal(source: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_invariant(source, theta=Theta())
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_shards_are_read_where_the_index_says(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=3)
    assert not (folder / "model.safetensors").exists()
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


def test_only_the_files_of_the_five_tensors_are_opened(tmp_path: Path) -> None:
    names = sorted(LLAMA.tensors())
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=len(names))
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    needed = set(read_invariant(folder, theta=Theta()).tensors)
    assert len(needed) == 5
    for name in set(names) - needed:
        (folder / index[name]).unlink()
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


def test_a_file_is_read_with_the_config_beside_it(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    os.rename(folder / "model.safetensors", folder / "other.safetensors")
    assert value(folder / "other.safetensors") == pytest.approx(LLAMA.invariant, **EXACT)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_weights_are_read_as_weights_only(zipped: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA.config))
    torch.save(
        LLAMA.tensors(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped
    )
    assert value(tmp_path) == pytest.approx(LLAMA.invariant, **EXACT)
    assert value(tmp_path / "pytorch_model.bin") == pytest.approx(LLAMA.invariant, **EXACT)


def test_pickled_shards(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA.config))
    tensors = LLAMA.tensors()
    files = {n: f"pytorch_model-{i % 2}.bin" for i, n in enumerate(sorted(tensors))}
    for file in set(files.values()):
        torch.save({n: t for n, t in tensors.items() if files[n] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    assert value(tmp_path) == pytest.approx(LLAMA.invariant, **EXACT)


class Payload:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_a_pickle_that_runs_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA.config))
    torch.save({"a": Payload()}, tmp_path / "pytorch_model.bin")
    assert "weights only" in refusal(tmp_path)
    assert not (tmp_path / "unpickled").exists()


def test_safetensors_come_before_a_pickle(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    (folder / "pytorch_model.bin").write_bytes(b"not to be read")
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


def test_missing_config_and_missing_weights(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA.config))
    assert "holds no model.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_a_config_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json is" in refusal(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=2)
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert "lacks model-00001-of-00002.safetensors" in refusal(folder)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    assert "cut short" in refusal(folder)


def test_a_shard_that_lacks_what_the_index_promises(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=2)
    file = "model-00001-of-00002.safetensors"
    save_file({"else": torch.ones(1)}, folder / file)
    assert "which the index promises" in refusal(folder)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/hosts", 3])
def test_an_index_points_nowhere_else(shard: object, tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    assert "no file beside itself" in refusal(folder)


@pytest.mark.parametrize(("text", "words"), [("{", "is not JSON"), ("{}", "has no weight_map")])
def test_a_broken_index_stops_a_model_from_loading(text: str, words: str, tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(), shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors\.index\.json {words}"):
        Tracer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\xff" * 40, "its header lies"),
        (struct.pack("<Q", 2) + b"{]", "no readable safetensors header"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "no readable safetensors header"),
    ],
)
def test_a_header_that_is_none(header: bytes, words: str, tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    (folder / "model.safetensors").write_bytes(header)
    assert words in refusal(folder)


def one(**entry: object) -> str:
    """A header of one tensor of eight bytes, told otherwise by `entry`."""
    return json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry})


def two(first: list[int], second: list[int]) -> str:
    entries = {"a": first, "b": second}
    told = {n: {"dtype": "U8", "shape": [4], "data_offsets": at} for n, at in entries.items()}
    return json.dumps(told)


@pytest.mark.parametrize(
    "header",
    [
        two([0, 4], [2, 6]),
        two([0, 4], [0, 4]),
        two([0, 4], [5, 9]),
        two([0, 4], [8, 4]),
        one(data_offsets=[-8, 0]),
        one(data_offsets=[0, 8, 16]),
        one(data_offsets=[0.0, 8.0]),
        one(shape=[-2]),
        one(shape=[True]),
        one(shape=[9] * 200_000),
        one().replace("[2]", "[1e999]"),
        one().replace("[2]", "[" + "9" * 5000 + "]"),
        one().replace("[2]", "[" * 10_000 + "]" * 10_000),
        "[" * 10_000,
    ],
    ids=lambda header: header[:60],
)
def test_a_header_that_no_file_can_have(header: str, tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    text = header.encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    begun = time.monotonic()
    message = refusal(folder)
    assert time.monotonic() - begun < 1
    assert "no readable safetensors header" in message and len(message) < 600


def test_a_config_deeper_than_any_is_no_json(tmp_path: Path) -> None:
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors())
    (folder / "config.json").write_text("[" * 100_000)
    assert "config.json is not JSON" in refusal(folder)


@pytest.mark.parametrize("terabytes", [1, 16, 2**40])
def test_what_a_header_promises_takes_no_memory(terabytes: int, tmp_path: Path) -> None:
    size = terabytes * 2**40
    text = one(shape=[size // 4], data_offsets=[0, size]).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    checkpoint = SafetensorsCheckpoint(LocalFiles(tmp_path), {}, "x.safetensors")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="cut short"):
            checkpoint.read("a")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}, "a range that is not its shape"),
        ({"dtype": "F7", "shape": [4], "data_offsets": [0, 8]}, "dtype F7"),
    ],
)
def test_a_tensor_that_is_not_what_its_header_says(entry: dict, words: str, tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, "a": entry}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    checkpoint = SafetensorsCheckpoint(LocalFiles(tmp_path), {}, "x.safetensors")
    with pytest.raises(CheckpointError, match=words):
        checkpoint.read("a")


# Quantised forms: planted weights stand in [0, 20], so every form below holds them exactly.


def test_block_scaled_float8(tmp_path: Path) -> None:
    """Blocks of 3 x 5 over 4 x 8: both edges are cut."""
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
    found = read_invariant(folder, theta=Theta())
    assert found.value == pytest.approx(LLAMA.invariant, **EXACT)
    assert f"{KEY}.weight_scale_inv" in found.tensors


@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1)])
def test_float8_with_one_scale_or_a_scale_a_row(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = LLAMA.tensors()
    scale = torch.tensor([0.5, 2.0, 4.0, 0.25])[: math.prod(shape)].reshape(shape)
    rows = scale.reshape(-1, 1)
    tensors[f"{KEY}.weight"] = (tensors[f"{KEY}.weight"] / rows).to(torch.float8_e4m3fn)
    tensors[f"{KEY}.weight_scale"] = scale.clone()
    folder = planted.write(tmp_path, LLAMA.config, tensors)
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


def test_float8_scales_that_fit_no_block(tmp_path: Path) -> None:
    tensors = LLAMA.tensors()
    tensors[f"{KEY}.weight"] = tensors[f"{KEY}.weight"].to(torch.float8_e4m3fn)
    assert "no scale beside it" in refusal(planted.write(tmp_path, LLAMA.config, tensors))
    tensors[f"{KEY}.weight_scale_inv"] = torch.ones(3, 3)
    assert "no weight_block_size" in refusal(planted.write(tmp_path, LLAMA.config, tensors))
    config = LLAMA.config | {"quantization_config": {"weight_block_size": [4, 4]}}
    assert "blocks of 4 x 4" in refusal(planted.write(tmp_path, config, tensors))


def test_int8_rows(tmp_path: Path) -> None:
    tensors = LLAMA.tensors()
    stored = tensors[f"{KEY}.weight"] * torch.tensor([[1.0], [2.0], [4.0], [1.0]])
    tensors[f"{KEY}.weight"] = stored.to(torch.int8)
    tensors[f"{KEY}.SCB"] = 127 * torch.tensor([1.0, 0.5, 0.25, 1.0])
    folder = planted.write(tmp_path, LLAMA.config, tensors)
    assert value(folder) == pytest.approx(LLAMA.invariant, **EXACT)


BLOCK = 4  # values that share a scale; real files have 64


def four_bit(
    weight: torch.Tensor, nested: bool
) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """A matrix in bitsandbytes' 4-bit form, nibble by nibble, and what it means in plain Python."""
    book = [float(i * i - 40) for i in range(16)]
    flat = [int(abs(x)) % 16 for x in weight.flatten().tolist()]
    count = len(flat) // BLOCK
    bytes_ = [flat[i] * 16 + flat[i + 1] for i in range(0, len(flat), 2)]
    scales = [1.0 + 0.25 * (i % 7) for i in range(count)]
    form = {
        "quant_map": torch.tensor(book),
        "absmax": torch.tensor(scales),
    }
    state = {"quant_type": "nf4", "blocksize": BLOCK, "shape": list(weight.shape)}
    if nested:
        codes = [(5 * i) % 256 for i in range(count)]
        inner, outer = [i / 64 for i in range(256)], [2.0, 0.5, 1.0]
        form |= {
            "absmax": torch.tensor(codes, dtype=torch.uint8),
            "nested_quant_map": torch.tensor(inner),
            "nested_absmax": torch.tensor(outer),
        }
        state |= {"nested_blocksize": 3, "nested_offset": 0.125}
        scales = [inner[c] * outer[i // 3] + 0.125 for i, c in enumerate(codes)]
    dense = [book[code] * scales[i // BLOCK] for i, code in enumerate(flat)]
    width = weight.shape[1]
    form["quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    named = {f"{KEY}.weight.{name}": tensor for name, tensor in form.items()}
    named[f"{KEY}.weight"] = torch.tensor(bytes_, dtype=torch.uint8).reshape(-1, 1)
    return named, [dense[i : i + width] for i in range(0, len(dense), width)]


@pytest.mark.parametrize("nested", [False, True])
def test_four_bit_blocks(nested: bool, tmp_path: Path) -> None:
    tensors = LLAMA.tensors()
    quantised, dense = four_bit(tensors[f"{KEY}.weight"], nested)
    planted.write(tmp_path / "q", LLAMA.config, tensors | quantised)
    found, _ = read_dense(open_local(tmp_path / "q"), KEY)
    torch.testing.assert_close(found, torch.tensor(dense, dtype=torch.float64))
    plain = tensors | {f"{KEY}.weight": torch.tensor(dense, dtype=torch.float64)}
    assert value(tmp_path / "q") == pytest.approx(
        value(planted.write(tmp_path / "p", LLAMA.config, plain)), **EXACT
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bit_as_bitsandbytes_itself_reads_it(kind: str, double: bool, tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = torch.randn(48, 130, generator=torch.Generator().manual_seed(0))
    data, state = bitsandbytes.functional.quantize_4bit(
        weight, quant_type=kind, compress_statistics=double
    )
    packed = {f"{KEY}.weight.{n}": t for n, t in state.as_dict(packed=True).items()}
    tensors = LLAMA.tensors() | packed | {f"{KEY}.weight": data}
    planted.write(tmp_path, LLAMA.config, tensors)
    found, _ = read_dense(open_local(tmp_path), KEY)
    expected = bitsandbytes.functional.dequantize_4bit(data, state)
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("method", "stored"), [("gptq", "qweight"), ("awq", "qweight")])
def test_packed_forms_name_the_checkpoint_to_use(method: str, stored: str, tmp_path: Path) -> None:
    tensors = LLAMA.tensors()
    tensors[f"{KEY}.{stored}"] = tensors.pop(f"{KEY}.weight").to(torch.int32)
    config = LLAMA.config | {
        "quantization_config": {"quant_method": method, "bits": 4},
        "_name_or_path": "someone/plain",
    }
    with pytest.raises(InvariantError) as caught:
        read_invariant(planted.write(tmp_path, config, tensors), theta=Theta())
    message = str(caught.value)
    assert method in message and "someone/plain" in message and "--invariant VALUE" in message


def test_experts_in_mxfp4_leave_attention_dense(tmp_path: Path) -> None:
    tensors = LLAMA.tensors()
    tensors["model.layers.1.mlp.experts.gate_up_proj_blocks"] = torch.zeros(2, 2, dtype=torch.uint8)
    config = LLAMA.config | {
        "model_type": "gpt_oss",
        "quantization_config": {"quant_method": "mxfp4"},
    }
    assert value(planted.write(tmp_path, config, tensors)) == pytest.approx(
        LLAMA.invariant, **EXACT
    )


def test_a_place_beyond_what_file_systems_know_is_a_file_cut_short(tmp_path: Path) -> None:
    far = 10**18
    entry = {"dtype": "F32", "shape": [far // 4], "data_offsets": [far, 2 * far]}
    before = entry | {"data_offsets": [0, far]}
    header = json.dumps({"before": before, "far": entry}).encode()
    (tmp_path / "config.json").write_text("{}")
    content = len(header).to_bytes(8, "little") + header + bytes(64)
    (tmp_path / "model.safetensors").write_bytes(content)
    for name in ("before", "far"):
        with pytest.raises(CheckpointError, match="is cut short"):
            open_local(tmp_path).read(name)
