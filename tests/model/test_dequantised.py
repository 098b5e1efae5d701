"""What is kept of GGUF files between loads: the same bits, whole or not at all, within bounds."""

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
import safetensors.torch
from gguf import GGML_QUANT_SIZES
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from lastword.errors import InputError
from lastword.model import dequantised, gguf_reader, loading
from lastword.model.gguf_reader import read_lightly
from lastword.model.loaded import Loaded
from lastword.model.options import LoadOptions
from lastword.weights import gguf as format
from lastword.weights.identity import tensors_digest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, in which small files are kept too."""
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(dequantised, "_LEAST", 0)
    return tmp_path / "cache" / "gguf"


def written(path: Path, kind: str = "llama", **options: Any) -> Path:
    return gguf_files.write(path, gguf_files.build(kind, **options), kind, stored="Q8_0")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return written(tmp_path / "llama.gguf")


def load(path: Path) -> Loaded:
    return loading.load(LoadOptions(path, device="cpu"))


def bits(loaded: Loaded) -> str:
    return tensors_digest(loaded.model.state_dict())


def words(loaded: Loaded) -> str:
    tokenizer: Any = loaded.tokenizer
    return str(tokenizer.backend_tokenizer.to_str())


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*")) + sorted(
        path.name for path in cache.glob(".*")
    )


def refuse_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a GGUF file's weights can be read from here on."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a tensor was dequantised again")

    monkeypatch.setattr(gguf_reader, "dequantise", refuse)


def refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be removed or renamed from here on, as in a folder of others."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("unlink", "rename", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)


KINDS = [
    kind
    for kind, (values, _) in GGML_QUANT_SIZES.items()
    if values > 1 and not kind.name.startswith(("Q8_1", "Q8_K", "NVFP4", "Q1_0", "IQ4"))
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_values_are_the_package_s_to_the_last_bit(kind):
    """Random bytes, so that scales are nan and infinite too; more rows than are taken at once."""
    _, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    for shape in ((3, 2 * size), (2, 300, 2 * size), (1, size)):
        rows = rng.integers(0, 256, shape, dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected, dense = gguf.dequantize(rows, kind), format.dequantise(rows, kind)
        assert dense.shape == expected.shape
        np.testing.assert_array_equal(dense.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", gguf_files.KINDS)
def test_config_and_weights_are_those_of_the_package_s_reader(kind, tmp_path):
    path = written(tmp_path / "m.gguf", kind)
    model = gguf_files.build(kind)
    plain = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    with read_lightly():
        light = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    assert light["config"] == plain["config"]
    assert tensors_digest(light["tensors"]) == tensors_digest(plain["tensors"])


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3moe", "gpt2", "bloom"])
def test_what_is_kept_is_what_was_read(kind, tmp_path, monkeypatch, cache):
    path = written(tmp_path / "m.gguf", kind)
    first = load(path)
    assert len(names(cache)) == 1
    refuse_reading(monkeypatch)
    again = load(path)
    assert bits(again) == bits(first)
    assert again.model.config.to_dict() == first.model.config.to_dict()
    assert again.model.generation_config.to_dict() == first.model.generation_config.to_dict()
    assert again.source == first.source
    assert again.origin == first.origin
    assert dequantised._said(again.tokenizer) == dequantised._said(first.tokenizer)
    assert words(again) == words(first)


def test_a_file_that_changed_is_another_one(llama, cache):
    first = load(llama)
    written(llama, seed=1)
    second = load(llama)
    assert bits(first) != bits(second)
    assert bits(load(llama)) == bits(second)
    assert len(names(cache)) == 2


@pytest.mark.parametrize("damage", ["cut", "config", "weights"])
def test_what_is_damaged_is_read_anew(damage, llama, cache):
    first = load(llama)
    (place,) = cache.glob("*")
    weights = place / "model.safetensors"
    if damage == "cut":
        os.truncate(weights, 3000)
    else:
        (weights if damage == "weights" else place / "generation_config.json").unlink()
    assert bits(load(llama)) == bits(first)
    assert safetensors.torch.load_file(weights)  # whole again


def test_a_tokenizer_that_reads_back_otherwise_is_read_from_the_file(llama, cache):
    first = load(llama)
    (place,) = cache.glob("*")
    kept = place / "tokenizer.json"
    kept.write_text(kept.read_text().replace('"<s>"', '"<S>"'))
    again = load(llama)
    assert words(again) == words(first) and bits(again) == bits(first)
    assert not kept.exists()  # nor looked into again
    assert words(load(llama)) == words(first)


@pytest.mark.parametrize("damage", ["tokenizer", "weights"])
def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(damage, llama, cache, monkeypatch):
    first = load(llama)
    (place,) = cache.glob("*")
    if damage == "tokenizer":
        kept = place / "tokenizer.json"
        kept.write_text(kept.read_text().replace('"<s>"', '"<S>"'))
        refuse_reading(monkeypatch)  # the weights are taken as they are kept
    else:
        os.truncate(place / "model.safetensors", 3000)
    refuse_writing(monkeypatch)
    again = load(llama)
    assert words(again) == words(first) and bits(again) == bits(first)


def test_what_an_earlier_version_kept_is_left_alone(llama, cache, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(dequantised, "_READING", 1)
        first = load(llama)
    (place,) = cache.glob("*")
    (place / "about.json").write_text('{"file": "llama.gguf"}')  # all that it said
    assert bits(load(llama)) == bits(first)
    assert place.exists() and len(dequantised.entries()) == 2


def test_a_full_disk_and_one_that_is_nearly_so_keep_nothing(llama, cache, monkeypatch, caplog):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        load(llama)
    assert "llama.gguf is not kept dequantised: No space left on device" in caplog.text
    assert names(cache) == []
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    load(llama)
    assert names(cache) == []


def test_two_at_once_leave_one_whole_folder(cache):
    cache.mkdir(parents=True)
    place = cache / "digest"
    with dequantised._whole(place) as one, dequantised._whole(place) as other:
        (one / "a").write_text("one")
        (other / "a").write_text("other")
    assert names(cache) == ["digest"]
    assert (place / "a").read_text() == "other"  # that block ended first


def test_half_of_a_folder_is_never_found(llama, cache):
    """A process that was killed leaves its draft: it is dropped after an hour, or by hand."""
    draft = cache / ".digest.0123abcd.tmp"
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(b"half")
    load(llama)
    assert draft.exists()  # somebody may be writing it
    assert len(dequantised.entries()) == 1
    old = time.time() - 7200
    os.utime(draft, (old, old))
    written(llama, seed=1)
    load(llama)
    assert not draft.exists()


def test_the_least_recently_used_goes(tmp_path, cache, monkeypatch):
    paths = [written(tmp_path / f"{seed}.gguf", seed=seed) for seed in range(3)]
    load(paths[0])
    (entry,) = dequantised.entries()
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, str(2.5 * entry.size / 1e9))
    load(paths[1])
    os.utime(entry.place, (time.time() + 60, time.time() + 60))  # it was read later
    load(paths[2])
    assert {own.file for own in dequantised.entries()} == {"0.gguf", "2.gguf"}
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, "0")
    load(written(tmp_path / "3.gguf", seed=3))
    assert len(dequantised.entries()) == 2
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, "much")
    with pytest.raises(InputError, match="expected a number of GB"):
        load(paths[0])
