"""Checkpoints in all formats, and checkpoints that are refused."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import formats
import numpy as np
import pytest
import torch
from families import random_items, save, tokenizer
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from lastword import Tracer
from lastword.errors import InvariantError, ModelError, TooLargeError, TraceError
from lastword.model import loading, memory
from lastword.model.options import LoadOptions
from lastword.model.weights.checkpoint import open_local
from lastword.model.weights.invariant import read_invariant
from lastword.rule.theta import Theta

ITEMS = random_items(1, 6)
# Multiples of 64, for blocks of NF4 and the tiles of bitsandbytes' CPU kernels.
WIDE = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
SHAPES = {
    "llama": WIDE,
    "gemma3": WIDE,
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 64},
}


def bitsandbytes(test):
    """Mark a test that uses bitsandbytes: its import warns, and its CPU kernels are slow."""
    quiet = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    return pytest.mark.slow(quiet(test))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that writes a family's random model once and returns its folder."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str) -> Path:
        path = root / family
        return path if path.exists() else save(path, family, **SHAPES[family])

    return folder


@pytest.fixture
def stored(saved, tmp_path):
    """Return a function that writes a model in a quantised form, and its dense twin."""

    def write(form: str, source: Path | None = None) -> tuple[Path, Path]:
        for package in ("accelerate", "bitsandbytes"):
            pytest.importorskip(package)
        source = source or saved("gpt_oss" if form == "mxfp4" else "llama")
        folders = tmp_path / form, tmp_path / f"{form}-twin"
        formats.write(form, source, *folders)
        return folders

    return write


@pytest.fixture
def messages(monkeypatch) -> list[str]:
    """Return a list of the warnings of a load."""
    lines: list[str] = []
    monkeypatch.setattr(loading._log, "warning", lambda line, *facts: lines.append(line % facts))
    return lines


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    formats.write_copy(saved("llama"), tmp_path / "copy")
    return tmp_path / "copy"


def trajectories(source: Tracer | Path, **options) -> list[np.ndarray]:
    tracer = source if isinstance(source, Tracer) else Tracer.from_pretrained(source, **options)
    return [d.trajectory for d in tracer.correct_many(ITEMS, read="all")]


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


# --- quantised checkpoints; test_tested.py compares float8 and MXFP4 of all families ---


@bitsandbytes
def test_nf4_scores_like_its_dense_twin_stored_and_made_while_loading(saved, stored):
    # bitsandbytes' 4-bit CPU kernel rounds scales and activations to bfloat16.
    folder, twin = stored("nf4", saved("gemma3"))
    dense, plain = trajectories(twin), trajectories(saved("gemma3"))
    apart = difference(trajectories(folder, dtype="float32"), dense)
    assert apart <= 0.2 and difference(dense, plain) > 3 * max(apart, 0.05)
    assert difference(trajectories(saved("gemma3"), quantize="nf4"), dense) < 0.2


def size_of(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and of bitsandbytes' scales."""
    total = 0
    for parameter in model.parameters():
        total += parameter.numel() * parameter.element_size()
        for name in ("absmax", "SCB"):
            scales = getattr(getattr(parameter, "quant_state", parameter), name, None)
            total += 0 if scales is None else scales.numel() * 4
    return total


@bitsandbytes
@pytest.mark.parametrize("form", [None, "fp8", "mxfp4", "nf4", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_unquantised_parameters_have_the_requested_dtype_and_the_header_gives_the_memory(
    form, dtype, stored, tmp_path, messages
):
    family = "gpt_oss" if form == "mxfp4" else "llama"
    other = torch.bfloat16 if dtype == "float32" else torch.float32
    source = save(tmp_path / "source", family, dtype=other, **SHAPES[family])
    folder = source if form is None else stored(form, source)[0]
    tracer = Tracer.from_pretrained(folder, dtype=dtype)
    model, dequantised = tracer.backbone.model, form in ("fp8", "mxfp4")
    dtypes = {str(p.dtype) for p in model.parameters()}
    assert dtypes - {"torch.uint8", "torch.int8"} == {f"torch.{dtype}"}
    assert tracer.describe()["dtype"] == dtype
    warning = f"{folder} is stored as {form}, which becomes {dtype} on cpu"
    assert messages == [warning] * dequantised
    need = memory.weight_bytes(open_local(folder), getattr(torch, dtype), dequantised)
    assert need == pytest.approx(size_of(model), rel=0.03)


@bitsandbytes
def test_int8_codes_are_used_and_quantize_gives_the_same_without_outliers(saved, stored):
    folder, _ = stored("int8")
    written = load_file(folder / formats.WEIGHTS)
    codes = {name: t.int() for name, t in written.items() if t.dtype == torch.int8}
    tracer = Tracer.from_pretrained(folder)
    state = tracer.backbone.model.state_dict()
    quantised = Tracer.from_pretrained(saved("llama"), quantize="int8").backbone.model.state_dict()
    assert codes
    for name, code in codes.items():
        assert torch.equal(state[name].int(), code)
        apart = (quantised[name].int() - code).abs()  # rounded to float16 before int8
        assert apart.max() <= 1 and apart.float().mean() < 0.05, name
    assert tracer.describe()["quantisation"] == "int8 (bitsandbytes, threshold 0)"
    together = trajectories(tracer)
    alone = [next(tracer.correct_many([i], read="all")).trajectory for i in ITEMS]
    apart = [np.abs(a - b).ravel() for a, b in zip(together, alone, strict=True)]
    assert np.median(np.concatenate(apart)) < 1e-4


# --- refusals ---


def refusal(folder: Path, kind: type[ModelError] = ModelError, **options) -> str:
    with pytest.raises(kind) as caught:
        Tracer.from_pretrained(folder, **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def rewrite(folder: Path, **changes) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, {"quantize": "nf4"}, "already (fp8)"),
        ({"model_type": "t5", "is_encoder_decoder": True}, {}, "is an encoder-decoder (t5)"),
        ({"model_type": "vit"}, {}, "is not a language model"),
        ({"num_hidden_layers": 2}, {}, "at least 3 blocks"),
        ({"rms_norm_eps": "x"}, {}, "rms_norm_eps"),
        ({"num_key_value_heads": 0}, {}, "ZeroDivisionError"),
        ({"intermediate_size": 7}, {}, "tensors of other shapes than its config says"),
        ({"hidden_size": -1}, {}, "cannot load"),
        ({"hidden_size": 0}, {}, "cannot load"),
        ({"num_hidden_layers": -3}, {}, "-3 blocks"),
        ({"num_hidden_layers": 10**9}, {}, "1000000000 blocks"),
        ({"intermediate_size": [64, 64]}, {}, "intermediate_size"),
        ({"dtype": "auto"}, {}, "cannot load"),
        ({"dtype": "load"}, {}, "cannot load"),
        ({"text_config": 7}, {}, "cannot load"),
        ({"quantization_config": "x"}, {}, "cannot load"),
    ],
    ids=str,
)
def test_a_config_of_another_or_no_model_is_refused(copy, changes, options, words):
    assert words in refusal(rewrite(copy, **changes), **options)
    with suppress(TraceError):
        read_invariant(copy, theta=Theta())


def changed(folder: Path, **tensors: torch.Tensor | None) -> Path:
    """Return the folder after adding tensors, or removing those that are None."""
    contents = load_file(file := folder / "model.safetensors") | tensors
    save_file({n: t for n, t in contents.items() if t is not None}, file, {"format": "pt"})
    return folder


EIGHT_BITS = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"lm_head.weight": None}, "lacks 1 tensor of LlamaForCausalLM (lm_head.weight)"),
        *(
            ({name: torch.ones(3)}, name)
            for name in ("score.weight", "lm_head.bias", "model.layers.0.self_attn.k_proj.bias")
        ),
        *(
            ({EIGHT_BITS: torch.ones(128, 128, dtype=dtype)}, "no quantization_config")
            for dtype in (torch.int8, torch.float8_e4m3fn)
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_missing_unused_and_unscaled_tensors_are_refused(copy, tensors, words):
    assert words in refusal(changed(copy, **tensors), invariant=0.5)


def test_a_computed_buffer_is_harmless_but_a_block_more_than_the_config_says_is_not(copy):
    changed(copy, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)})
    loading.load(LoadOptions(str(copy)))
    rewrite(copy, num_hidden_layers=5)
    assert "model.layers.5." in refusal(copy)
    with pytest.raises(InvariantError, match="has 5 text blocks, and the checkpoint 6 in"):
        read_invariant(copy, theta=Theta())


def sharded(folder: Path, stale: str | None = None) -> Path:
    """Split the folder's weights into two shards, the second with a stale copy of a tensor."""
    contents = load_file(file := folder / "model.safetensors")
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {name: parts[place % 2] for place, name in enumerate(sorted(contents))}
    for part in parts:
        names = {n for n, shard in index.items() if shard == part}
        names |= {stale} if stale and part == parts[1] else set()
        save_file({name: contents[name] for name in names}, folder / part, {"format": "pt"})
    shards = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    file.unlink()
    return folder


def test_two_sets_of_weights_and_stale_shards_are_refused(copy):
    right = Tracer.from_pretrained(copy)
    whole = (copy / "model.safetensors").read_bytes()
    halves = Tracer.from_pretrained(sharded(copy))
    assert difference(trajectories(right), trajectories(halves)) == 0
    assert halves.invariant == right.invariant
    (copy / "model.safetensors").write_bytes(whole)
    for read in (loading.load, lambda options: read_invariant(copy, theta=Theta())):
        with pytest.raises(ModelError, match="two sets of weights"):
            read(LoadOptions(str(copy)))
    sharded(copy, stale := min(load_file(copy / "model.safetensors")))
    assert f"has {stale}, which is stored in model-00001" in refusal(copy)


def test_a_pickle_is_read_only_with_allow_bin(copy):
    torch.save(load_file(copy / formats.WEIGHTS), copy / "pytorch_model.bin")
    (copy / formats.WEIGHTS).unlink()
    assert "allow_bin=true" in refusal(copy)
    assert Tracer.from_pretrained(copy, allow_bin=True).backbone.depth == 6


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(copy, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: 10_000)
    message = refusal(copy, TooLargeError)
    assert "GB are free" in message and "quantize=nf4" in message


def test_a_lower_limit_of_the_container_applies(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 1500000\ninactive_file 400000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available(torch.device("cpu")) == 1_400_000
    (tmp_path / "memory.max").write_text("max\n")
    free = memory.available(torch.device("cpu"))
    assert free == pytest.approx(memory._free_memory(), rel=0.2)


# --- attention, dtype, devices, adapters ---


@pytest.mark.parametrize(
    ("asked", "used", "described"),
    # Flash attention has another name if a kernel from the hub replaces the package.
    [
        ("auto", "auto", "sdpa"),
        ("eager", "eager", "eager"),
        ("flash_attention_2", "eager", "eager"),
    ],
)
def test_the_attention_option_is_applied(asked, used, described, saved, monkeypatch):
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda o: load(replace(o, attention=used)))
    tracer = Tracer.from_pretrained(saved("llama"), attention=asked)
    assert tracer.describe()["attention"] == described


def test_float16_becomes_float32_on_the_cpu_with_a_message(copy, tmp_path, messages):
    half = save(tmp_path / "half", dtype=torch.float16, **WIDE)
    tracer = Tracer.from_pretrained(half)
    assert messages == [f"{half} is stored in float16, which becomes float32 on the CPU"]
    assert difference(trajectories(tracer), trajectories(copy)) < 0.2
    assert tracer.describe()["dtype"] == "float32"


def compile_for_cuda(monkeypatch) -> None:
    """Make torch report that it was compiled for CUDA, as that of a plain `pip install`."""
    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_unknown_and_missing_devices_are_refused(monkeypatch):
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    for device, words in (("abacus", "unknown device abacus"), (absent, f"no {absent} here")):
        with pytest.raises(ModelError, match=words):
            loading.load(LoadOptions("x", device=device))
    compile_for_cuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match="there is no cuda:2 here"):
        loading.load(LoadOptions("x", device="cuda:2"))


@bitsandbytes
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("form", [None, "fp8", "mxfp4", "nf4", "int8"])
def test_a_cuda_build_of_torch_without_a_gpu_uses_the_cpu(form, copy, stored, monkeypatch):
    folder = copy if form is None else stored(form)[0]
    expected = Tracer.from_pretrained(folder, device="cpu")
    compile_for_cuda(monkeypatch)
    tracer = Tracer.from_pretrained(folder)
    assert tracer.describe() == expected.describe() and tracer.describe()["device"] == "cpu"
    assert difference(trajectories(tracer), trajectories(expected)) == 0
    assert "there is no cuda" in refusal(folder, device="cuda:0")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloading_to_disk_gives_the_same_decisions(saved, dtype):
    pytest.importorskip("accelerate")
    where = {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(6)}
    where |= {"model.embed_tokens": "disk", "model.norm": "disk", "model.rotary_emb": "cpu"}
    whole, spread, auto = (
        Tracer.from_pretrained(saved("llama"), dtype=dtype, device_map=places)
        for places in (None, where | {"lm_head": "disk"}, "auto")
    )
    assert spread.backbone.model.lm_head.weight.is_meta
    assert spread.describe()["device"] == "cpu, disk"
    for tracer in (spread, auto):
        for a, b in zip(tracer.correct_many(ITEMS), whole.correct_many(ITEMS), strict=True):
            assert (a.index, a.operator) == (b.index, b.operator)
            assert a.scores == pytest.approx(b.scores, abs=1e-5)
        assert tracer.invariant == whole.invariant


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_is_merged(saved, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["k_proj", "v_proj", "o_proj"])
    base = AutoModelForCausalLM.from_pretrained(saved("llama"))
    adapted = peft.get_peft_model(base, options)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.2)
    adapted.peft_config["default"].base_model_name_or_path = str(saved("llama"))
    adapted.save_pretrained(tmp_path / "adapter")
    tracer = Tracer.from_pretrained(tmp_path / "adapter")
    expected = Tracer(adapted.merge_and_unload(), tokenizer())
    assert difference(trajectories(tracer), trajectories(expected)) < 1e-5
    assert tracer.invariant == pytest.approx(expected.invariant, rel=1e-6)
    assert difference(trajectories(tracer), trajectories(saved("llama"))) > 0.1
    assert tracer.describe()["base"] == str(saved("llama"))
    assert "merge it and save" in refusal(tmp_path / "adapter", quantize="int8")
