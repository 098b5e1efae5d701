"""Checkpoints in all formats, loaded by the command, and checkpoints that are refused."""

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import formats
import numpy as np
import pytest
import torch
from families import build, random_items, save, tokenizer
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

import lastword.cli
from lastword import Tracer
from lastword.errors import InvariantError, ModelError, TooLargeError, TraceError
from lastword.model import loading
from lastword.model.backend import token_bytes
from lastword.model.options import LoadOptions
from lastword.model.weights.invariant import read_invariant
from lastword.rule.theta import Theta

ITEMS = random_items(1, 6)
# Multiples of 64, for blocks of NF4 and the tiles of bitsandbytes' CPU kernels.
WIDE = {"hidden_size": 128, "intermediate_size": 128}
SHAPES = {
    "llama": WIDE | {"head_dim": 32},
    "qwen3": WIDE | {"head_dim": 32},
    "gemma3": WIDE | {"head_dim": 32},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 64},
}


def bitsandbytes(test):
    """Mark a test that uses bitsandbytes: its import warns, and its CPU kernels are slow."""
    quiet = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    return pytest.mark.slow(quiet(test))


def needs_bitsandbytes(form: str) -> None:
    if form in ("nf4", "int8"):
        pytest.importorskip("bitsandbytes")
    if form in ("fp8", "mxfp4", "nf4", "int8"):
        pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that writes a family's random model once and returns its folder."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str) -> Path:
        path = root / family
        if not path.exists():
            model = build(family, **SHAPES.get(family, {"hidden_size": 128}))
            model.save_pretrained(path)
            tokenizer().save_pretrained(path)
        return path

    return folder


@pytest.fixture
def correct(tmp_path, monkeypatch, capsys):
    """Return a function that runs `lastword correct --full` on the items.

    It returns the trajectories, and the lines of stderr that name the model.
    """

    def run(folder: Path, *options: str) -> tuple[list[np.ndarray], str]:
        source, target = tmp_path / "items.jsonl", tmp_path / "decisions.jsonl"
        lines = [{"id": i.id, "prompt": i.prompt, "candidates": i.candidates} for i in ITEMS]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = ["correct", "--model", folder, "--input", source, "--out", target, "--full"]
        monkeypatch.setattr(sys, "argv", ["lastword", *map(str, command), *options])
        target.unlink(missing_ok=True)
        capsys.readouterr()
        try:
            lastword.cli.main()
        except SystemExit as stop:
            assert not stop.code, capsys.readouterr().err
        decisions = [json.loads(line) for line in target.read_text().splitlines()]
        lines = capsys.readouterr().err.splitlines(keepends=True)
        warnings = "".join(line for line in lines if str(folder) in line)
        return [np.array(d["trajectory"]) for d in decisions], warnings

    return run


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def trajectories(tracer: Tracer) -> list[np.ndarray]:
    return [d.trajectory for d in tracer.correct_many(ITEMS, read="all")]


# --- checkpoints that are stored quantised ---


# Maximum difference of the stored model from its dense twin. float8 and MXFP4 become plain
# weights, which are the twin's. bitsandbytes' 4-bit CPU kernel rounds scales and activations to
# bfloat16. test_tested.py has float8 and MXFP4 of all families.
@bitsandbytes
@pytest.mark.parametrize(
    ("family", "form", "tolerance"),
    [("llama", "fp8", 1e-5), ("gpt_oss", "mxfp4", 1e-5), ("gemma3", "nf4", 0.2)],
)
def test_a_stored_format_scores_like_its_dense_twin(
    family, form, tolerance, saved, correct, tmp_path
):
    needs_bitsandbytes(form)
    source, stored, twin = saved(family), tmp_path / "stored", tmp_path / "twin"
    getattr(formats, f"write_{form}")(source, stored, twin)
    options = ("--dtype", "float32")
    loaded, warnings = correct(stored, *options)
    dense, _ = correct(twin, *options)
    plain, _ = correct(source, *options)
    apart = difference(loaded, dense)
    assert apart <= tolerance
    assert difference(dense, plain) > 3 * max(apart, 0.05)  # the format itself changes more
    warning = f"lastword: {stored} is stored as {form}, which becomes float32 on cpu"
    assert warnings.splitlines() == ([warning] if form in ("fp8", "mxfp4") else [])


@bitsandbytes
@pytest.mark.parametrize("form", ["fp8", "mxfp4", "nf4", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_unquantised_parameters_have_the_requested_dtype(form, dtype, tmp_path):
    needs_bitsandbytes(form)
    family = "gpt_oss" if form == "mxfp4" else "llama"
    other = torch.bfloat16 if dtype == "float32" else torch.float32
    save(tmp_path / "source", family, dtype=other, **SHAPES[family])
    write = getattr(formats, f"write_{form}")
    write(tmp_path / "source", tmp_path / "stored", tmp_path / "twin")
    tracer = Tracer.from_pretrained(tmp_path / "stored", dtype=dtype)
    dtypes = {str(p.dtype) for p in tracer.backbone.model.parameters()}
    assert dtypes - {"torch.uint8", "torch.int8"} == {f"torch.{dtype}"}
    assert tracer.describe()["dtype"] == dtype


@bitsandbytes
def test_llm_int8_runs_with_threshold_zero(saved, tmp_path):
    needs_bitsandbytes("int8")
    stored = tmp_path / "stored"
    formats.write_int8(saved("llama"), stored, tmp_path / "twin")
    tracer = Tracer.from_pretrained(stored)
    assert tracer.describe()["quantisation"] == "int8 (bitsandbytes, threshold 0)"
    together = trajectories(tracer)
    alone = [next(tracer.correct_many([i], read="all")).trajectory for i in ITEMS]
    apart = [np.abs(a - b).ravel() for a, b in zip(together, alone, strict=True)]
    assert np.median(np.concatenate(apart)) < 1e-4


# --- quantised while loading ---


@bitsandbytes
def test_quantize_nf4_is_the_stored_format(saved, correct, tmp_path):
    needs_bitsandbytes("nf4")
    formats.write_nf4(saved("llama"), tmp_path / "stored", tmp_path / "twin")
    loaded, warnings = correct(saved("llama"), "--load", "quantize=nf4")
    assert warnings == "" and difference(loaded, correct(tmp_path / "twin")[0]) < 0.2


@bitsandbytes
def test_stored_int8_codes_are_used_and_quantize_int8_gives_the_same(saved, tmp_path):
    needs_bitsandbytes("int8")
    formats.write_int8(saved("llama"), tmp_path / "stored", tmp_path / "twin")
    written = formats.load_file(tmp_path / "stored" / formats.WEIGHTS)
    codes = {name: t.int() for name, t in written.items() if t.dtype == torch.int8}
    assert codes
    stored = Tracer.from_pretrained(tmp_path / "stored").backbone.model.state_dict()
    quantised = Tracer.from_pretrained(saved("llama"), quantize="int8").backbone.model.state_dict()
    for name, code in codes.items():
        assert torch.equal(stored[name].int(), code)
        apart = (quantised[name].int() - code).abs()  # rounded to float16 before int8
        assert apart.max() <= 1 and apart.float().mean() < 0.05, name


# --- what is refused before the weights are read ---


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


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    formats.write_copy(saved("llama"), tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, {"quantize": "nf4"}, "already (fp8)"),
        ({"model_type": "t5", "is_encoder_decoder": True}, {}, "is an encoder-decoder (t5)"),
        ({"model_type": "vit"}, {}, "is not a language model"),
        ({"num_hidden_layers": 2}, {}, "at least 3 blocks"),
    ],
)
def test_other_models_are_refused_by_their_config(copy, changes, options, words):
    assert words in refusal(rewrite(copy, **changes), **options)


def test_a_checkpoint_without_its_head_is_refused(saved, tmp_path):
    model = build("llama", **SHAPES["llama"])
    model.model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    message = refusal(tmp_path)
    assert "lacks 1 tensor of LlamaForCausalLM (lm_head.weight)" in message


def test_a_pickle_is_read_only_with_allow_bin(copy):
    weights = formats.load_file(copy / formats.WEIGHTS)
    (copy / formats.WEIGHTS).unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    assert "allow_bin=true" in refusal(copy)
    assert Tracer.from_pretrained(copy, allow_bin=True).backbone.depth == 6


@pytest.mark.parametrize(("option", "attention"), [("auto", "sdpa"), ("eager", "eager")])
def test_the_attention_option_is_applied(option, attention, saved):
    tracer = Tracer.from_pretrained(saved("llama"), attention=option)
    assert tracer.describe()["attention"] == attention


def test_an_attention_that_transformers_renames_is_accepted(saved, monkeypatch):
    # Flash attention has another name if a kernel from the hub replaces the package.
    load = loading.load

    def renamed(options):
        return load(replace(options, attention="eager"))

    monkeypatch.setattr(loading, "load", renamed)
    tracer = Tracer.from_pretrained(saved("llama"), attention="flash_attention_2")
    assert tracer.describe()["attention"] == "eager"


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(copy, monkeypatch):
    monkeypatch.setattr("lastword.model.memory.available", lambda _: 10_000)
    message = refusal(copy, TooLargeError)
    assert "GB are free" in message and "quantize=nf4" in message


def test_unknown_and_missing_devices_are_refused(monkeypatch):
    with pytest.raises(ModelError, match="unknown device abacus"):
        loading.load(LoadOptions("x", device="abacus"))
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(ModelError, match=f"there is no {absent} here"):
        loading.load(LoadOptions("x", device=absent))
    compile_for_cuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match="there is no cuda:2 here"):
        loading.load(LoadOptions("x", device="cuda:2"))


# --- torch compiled for CUDA on a machine without it, as a plain `pip install` gives ---


def compile_for_cuda(monkeypatch) -> None:
    """Make torch report that it was compiled for CUDA."""
    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@bitsandbytes
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("form", ["copy", "fp8", "mxfp4", "nf4", "int8"])
def test_a_cuda_build_of_torch_without_a_gpu_uses_the_cpu(form, saved, tmp_path, monkeypatch):
    needs_bitsandbytes(form)
    source = saved("gpt_oss" if form == "mxfp4" else "llama")
    folders = [tmp_path / "stored", tmp_path / "twin"][: 1 if form == "copy" else 2]
    getattr(formats, f"write_{form}")(source, *folders)
    expected = Tracer.from_pretrained(folders[0], device="cpu")
    compile_for_cuda(monkeypatch)
    tracer = Tracer.from_pretrained(folders[0])
    assert tracer.describe() == expected.describe() and tracer.describe()["device"] == "cpu"
    assert difference(trajectories(tracer), trajectories(expected)) == 0
    with pytest.raises(ModelError, match="there is no cuda"):
        Tracer.from_pretrained(folders[0], device="cuda:0")


def test_float16_becomes_float32_on_the_cpu_with_a_message(copy, correct, tmp_path):
    half = save(tmp_path / "half", dtype=torch.float16, **SHAPES["llama"])
    loaded, message = correct(half)
    assert message == f"lastword: {half} is stored in float16, which becomes float32 on the CPU\n"
    assert difference(loaded, correct(copy)[0]) < 0.2
    assert Tracer.from_pretrained(half).describe()["dtype"] == "float32"


# --- spread over devices, adapted ---


def test_offloading_to_disk_gives_the_same_decisions(saved):
    pytest.importorskip("accelerate")
    where = {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(6)}
    where |= {"model.embed_tokens": "disk", "model.norm": "disk", "model.rotary_emb": "cpu"}
    folder = saved("llama")
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 1e-5)):
        whole = Tracer.from_pretrained(folder, dtype=dtype)
        spread = Tracer.from_pretrained(folder, dtype=dtype, device_map=where | {"lm_head": "disk"})
        assert spread.backbone.model.lm_head.weight.is_meta
        assert "disk" in spread.describe()["device"]
        pairs = zip(spread.correct_many(ITEMS), whole.correct_many(ITEMS), strict=True)
        for a, b in pairs:
            assert (a.index, a.operator) == (b.index, b.operator)
            assert a.scores == pytest.approx(b.scores, abs=tolerance)
        assert spread.invariant == whole.invariant


def test_device_map_auto_is_an_option_of_the_command(saved, correct):
    pytest.importorskip("accelerate")
    spread, _ = correct(saved("llama"), "--load", "device_map=auto")
    assert difference(spread, correct(saved("llama"))[0]) < 1e-5


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_is_merged(saved, correct, tmp_path):
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
    merged = adapted.merge_and_unload()
    tracer = Tracer.from_pretrained(tmp_path / "adapter")
    expected = Tracer(merged, tokenizer())
    assert difference(trajectories(tracer), trajectories(expected)) < 1e-5
    assert tracer.invariant == pytest.approx(expected.invariant, rel=1e-6)
    assert difference(correct(tmp_path / "adapter")[0], correct(saved("llama"))[0]) > 0.1
    assert tracer.describe()["base"] == str(saved("llama"))
    assert "merge it and save" in refusal(tmp_path / "adapter", quantize="int8")


# --- one set of weights, all of it used ---


def changed(folder: Path, **tensors: torch.Tensor | None) -> Path:
    """Return the folder after adding tensors, or removing those that are None."""
    stored = load_file(file := folder / "model.safetensors") | tensors
    save_file({n: t for n, t in stored.items() if t is not None}, file, {"format": "pt"})
    return folder


def sharded(folder: Path, stale: str | None = None) -> Path:
    """Split the folder's weights into two shards, the second with a stale copy of a tensor."""
    stored = load_file(file := folder / "model.safetensors")
    names = sorted(stored)
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {name: parts[place % 2] for place, name in enumerate(names)}
    for part in parts:
        content = {
            n: t for n, t in stored.items() if index[n] == part or (n == stale and part == parts[1])
        }
        save_file(content, folder / part, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    file.unlink()
    return folder


def test_unused_tensors_are_refused(copy):
    for name in ("score.weight", "lm_head.bias", "model.layers.0.self_attn.k_proj.bias"):
        assert name in refusal(changed(copy, **{name: torch.ones(3)}))
        changed(copy, **{name: None})
    changed(copy, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)})
    loading.load(LoadOptions(str(copy)))
    depth = json.loads((copy / "config.json").read_text())["num_hidden_layers"]
    rewrite(copy, num_hidden_layers=depth - 1)
    assert f"model.layers.{depth - 1}." in refusal(copy)
    with pytest.raises(InvariantError, match=f"has {depth - 1} text blocks, and the checkpoint"):
        read_invariant(copy, theta=Theta())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_weights_of_8_bits_without_a_config_for_them_are_refused(copy, dtype):
    name = "model.layers.0.mlp.up_proj.weight"
    stored = load_file(copy / "model.safetensors")[name]
    changed(copy, **{name: (100 * stored).to(dtype)})
    message = refusal(copy, invariant=0.5)
    assert name in message and "no quantization_config" in message


def test_two_sets_of_weights_and_stale_shards_are_refused(copy, saved):
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


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"rms_norm_eps": "x"}, "rms_norm_eps"),
        ({"num_key_value_heads": 0}, "ZeroDivisionError"),
        ({"intermediate_size": 7}, "tensors of other shapes than its config says"),
        ({"hidden_size": -1}, "cannot load"),
        ({"hidden_size": 0}, "cannot load"),
        ({"num_hidden_layers": -3}, "-3 blocks"),
        ({"num_hidden_layers": 10**9}, "1000000000 blocks"),
        ({"intermediate_size": [64, 64]}, "intermediate_size"),
        ({"dtype": "auto"}, "cannot load"),
        ({"dtype": "load"}, "cannot load"),
        ({"text_config": 7}, "cannot load"),
        ({"quantization_config": "x"}, "cannot load"),
    ],
    ids=str,
)
def test_an_absurd_config_is_refused(copy, changes, word):
    assert word in refusal(rewrite(copy, **changes))
    with suppress(TraceError):
        read_invariant(copy, theta=Theta())


def test_the_largest_of_several_intermediate_sizes_counts():
    sizes = {"hidden_size": 16, "num_hidden_layers": 4}
    one, several = (
        token_bytes(SimpleNamespace(**sizes, intermediate_size=inner), torch.float32)
        for inner in (64, [32, 64, 32])
    )
    assert one == several
