"""Models loaded from GGUF files: equal to the written models, or refused before loading."""

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf_files
import hub_server
import numpy as np
import populations
import pytest
import torch
from families import CONTEXT, DEPTH, VOCAB
from gguf_files import KINDS
from transformers import PreTrainedModel

from lastword import Decider, Tracer
from lastword.errors import CertificateError, ModelError
from lastword.model import loading
from lastword.model.gguf import settle_splitter
from lastword.model.options import LoadOptions
from lastword.model.weights.invariant import model_invariant
from lastword.rule.theta import Theta
from lastword.trust.policy import Policy
from lastword.trust.terms import Terms

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the cache of converted files, apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LASTWORD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["LASTWORD_CACHE"]) / "gguf"


def load(path: Path | str, **options: Any) -> loading.Loaded:
    return loading.load(LoadOptions(path, device="cpu", **options))


def logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.randint(3, VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(ids).logits


def refusal(path: Path | str, kind: type[Exception] = ModelError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return gguf_files.write(folder / "llama.gguf", gguf_files.build("llama"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_loaded_model_equals_the_written_one(kind, tmp_path):
    model = gguf_files.build(kind)
    path = gguf_files.write(tmp_path / "model.gguf", model, kind)
    loaded = load(path)
    torch.testing.assert_close(logits(loaded.model), logits(model), rtol=0, atol=1e-4)
    factors, truth = (model_invariant(m, theta=Theta()) for m in (loaded.model, model))
    assert factors.value == pytest.approx(truth.value, rel=1e-6)
    assert (factors.tensors, factors.layout) == (truth.tensors, truth.layout)


# Maximum rounding of each format, relative to the largest weight.
STEPS = {"Q8_0": 1 / 220, "Q4_1": 1 / 15, "Q4_0": 1 / 8, "F16": 2**-11, "BF16": 2**-8}


@pytest.mark.parametrize("stored", STEPS)
def test_tracer_of_a_file(stored, tmp_path):
    """Weights equal the written ones up to rounding, and the record names the file."""
    model = gguf_files.build("llama")
    path = gguf_files.write(tmp_path / "m.gguf", model, stored=stored)
    tracer = Tracer.from_pretrained(path, device="cpu", dtype="float32")
    about = tracer.describe()
    plain = stored in ("F16", "BF16")
    assert about["quantisation"] == (stored if plain else f"{stored} (GGUF), dequantised")
    assert about["gguf_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (about["model"], about["gguf"]) == (str(path), "m.gguf")
    assert (about["depth"], about["context"]) == (DEPTH, CONTEXT)
    read = tracer.backbone.model.state_dict()
    for name, tensor in model.state_dict().items():
        assert (read[name] - tensor).abs().max() <= STEPS[stored] * tensor.abs().max(), name
    decision = tracer.correct("the", ["tea", "rat or a tin"])
    assert np.isfinite(decision.scores).all()


@pytest.mark.parametrize(
    ("stored", "dtype", "expected"),
    [
        ("Q8_0", "auto", torch.float32),
        ("F16", "auto", torch.float32),  # as always on the CPU
        ("BF16", "auto", torch.bfloat16),
        ("Q8_0", "bfloat16", torch.bfloat16),
    ],
)
def test_dtype(stored, dtype, expected, tmp_path):
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.build("llama"), stored=stored)
    loaded = load(path, dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {expected}
    assert loaded.source["dtype"] == str(expected).removeprefix("torch.")
    # Otherwise the check at load would allow the rounding of the quantised format.
    assert getattr(loaded.model, "hf_quantizer", None) is None
    assert not hasattr(loaded.model.config, "quantization_config")


def test_tokenizer_and_chat_template_come_from_the_file(llama):
    loaded = load(llama.parent, gguf="llama.gguf")
    assert (loaded.source["model"], loaded.source["gguf"]) == (str(llama), "llama.gguf")
    tokenizer: Any = loading.load_tokenizer(LoadOptions(llama))
    tokens, _ = gguf_files.vocabulary()
    assert tokenizer.convert_ids_to_tokens(list(range(VOCAB))) == tokens
    assert tokenizer.decode(tokenizer("note it ö").input_ids) == "note it ö"
    messages = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>hi<|assistant|>"


def test_rotary_factors_are_applied(tmp_path):
    """transformers ignores them, so positions of a Llama 3.1 file would be wrong."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rotary = {"rope_type": "llama3", "rope_theta": 10000.0, **scaling}
    rotary |= {"original_max_position_embeddings": 64}
    model = gguf_files.build("llama", rope_parameters=rotary, head_dim=16)
    # llama.cpp's factors.
    waves = 2 * np.pi * 10000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = (64 / waves - 1.0) / (4.0 - 1.0)
    blended = 1 / ((1 - smooth) / 8.0 + smooth)
    factors = np.where(waves < 64 / 4, 1.0, np.where(waves > 64, 8.0, blended))
    assert len({*factors.round(3)}) >= 3  # all three branches occur
    path = tmp_path / "model.gguf"
    gguf_files.write(path, model, extra={"rope_freqs.weight": factors})
    torch.testing.assert_close(logits(load(path).model), logits(model), rtol=0, atol=1e-4)
    gguf_files.write(path, model)
    assert (logits(load(path).model) - logits(model)).abs().max() > 1e-2


def test_one_file_of_a_commit_on_a_hub_is_loaded(tmp_path, monkeypatch):
    (folder := tmp_path / "files").mkdir()
    gguf_files.write(folder / "tiny.Q8_0.gguf", gguf_files.build("qwen2"), "qwen2", stored="Q8_0")
    with hub_server.instead(folder, tmp_path, monkeypatch) as hub:
        hub.large = (".gguf",)
        options = LoadOptions("org/model", gguf="tiny.Q8_0.gguf", device="cpu")
        about = Tracer.from_pretrained(options).describe()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert Tracer.from_pretrained(options).describe() == about
    assert about["revision"] == hub_server.COMMIT
    assert (about["gguf"], about["model"]) == ("tiny.Q8_0.gguf", "org/model/tiny.Q8_0.gguf")


def test_a_missing_or_too_large_file_is_refused(llama, tmp_path, monkeypatch):
    assert "there is no file" in refusal(tmp_path, gguf="none.gguf")
    assert "org/x" in refusal("org/x", gguf="../none.gguf")
    monkeypatch.setattr("lastword.model.memory.available", lambda _: 1000)
    assert "GB are free" in refusal(llama)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"values": {"llama.rope.scaling.type": "yarn"}}, "scales its positions (yarn)"),
        ({"kind": "grok"}, "grok, which is not read"),
        ({"extra": {"rope_freqs.weight": np.ones(3)}}, "3 rotary factors for 4"),
        ({"extra": {f"blk.{i}.attn_q.bias": np.ones(32) for i in range(6)}}, "6 tensors "),
        ({"values": {"llama.feed_forward_length": 96}}, "18 tensors of other shapes"),
    ],
)
def test_files_that_transformers_would_misread_are_refused(tmp_path, written, words):
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.build("llama"), **written)
    assert words in refusal(path)


def test_a_certificate_refuses_other_weights(tmp_path):
    model = gguf_files.build("llama")
    path = gguf_files.write(tmp_path / "tiny.gguf", model)
    subject = Decider.from_pretrained(str(path), invariant=1.0).subject
    certificate = populations.certificate(subject, Policy(("decisive", "mix"), 1.0), Terms(), 9)
    options: dict[str, Any] = {"certificate": certificate, "invariant": 1.0}
    assert Decider.from_pretrained(str(path), **options).certificate is certificate
    gguf_files.write(path, gguf_files.build("llama", seed=1))
    with pytest.raises(CertificateError, match="for the weights of tiny '"):
        Decider.from_pretrained(str(path), **options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", "Don|'t| (|hi|)| 1234"),
        ("smollm", "Don|'t| (|hi|)| |1|2|3|4"),
        ("stablelm2", "Don|'t| (|hi|)| |1|2|3|4"),
        ("default", "Don|'|t| |(|hi|)| |123|4"),
    ],
)
def test_text_is_split_as_by_llama_cpp(name, expected):
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name}
    tokenizer = SimpleNamespace(backend_tokenizer=SimpleNamespace(pre_tokenizer=None))
    settle_splitter(tokenizer, values, "m.gguf")
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("Don't (hi) 1234")
    assert "|".join(piece for piece, _ in pieces).replace("Ġ", " ") == expected


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: whole[: int(0.999 * len(whole))], "cut short"),
        (lambda whole: whole[:500], "no readable GGUF header"),
        (lambda whole: b"version https://git-lfs.github.com", "no readable GGUF header"),
        (lambda whole: b"GGUF" + struct.pack("<I", 1) + whole[8:], "GGUF v1"),
        (lambda whole: whole[:24] + struct.pack("<Q", 2**62) + whole[32:], "GGUF header"),
        (lambda whole: b"", "no readable GGUF header"),
        (lambda whole: whole.replace(b"default", b"made-up"), "splits its text as 'made-up'"),
        (lambda whole: whole.replace(b"ggml.pre", b"ggml.prx"), "by a rule that it omits"),
        (lambda whole: whole.replace(b"ggml.merges", b"ggml.mergez"), "no tokenizer.ggml.merges"),
    ],
)
def test_a_damaged_or_unreadable_file_is_refused(llama, tmp_path, damage, words):
    (path := tmp_path / "damaged.gguf").write_bytes(damage(llama.read_bytes()))
    assert words in refusal(path)


def test_a_file_is_converted_once(tmp_path, cache, monkeypatch):
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.build("llama", seed=5))
    before = {*cache.iterdir()}
    first = load(path)
    with monkeypatch.context() as patch:
        patch.setattr("lastword.model.gguf.read_header", None)
        again = load(path)
    assert torch.equal(logits(again.model), logits(first.model)) and again.source == first.source
    gguf_files.write(path, gguf_files.build("llama", seed=6))
    assert (logits(load(path).model) - logits(first.model)).abs().max() > 1e-2
    assert len({*cache.iterdir()} - before) == 2


def test_an_unwritable_cache_is_refused(tmp_path, monkeypatch):
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.build("llama", seed=7))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "file"))
    assert "set LASTWORD_CACHE to another folder" in refusal(path)
    assert not list(tmp_path.glob(".*"))
