"""The cache of dequantised GGUF files: same bits, damaged and changed files, limits."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import pytest
import safetensors.torch
import transformers.modeling_utils
from safetensors import SafetensorError

from lastword.errors import InputError
from lastword.model import dequantised, loading
from lastword.model.loaded import Loaded
from lastword.model.options import LoadOptions
from lastword.model.weights.identity import tensors_digest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a cache folder for the test that also stores small files."""
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(dequantised, "_LEAST", 0)
    return tmp_path / "cache" / "gguf"


def write(path: Path, kind: str = "llama", **options: Any) -> Path:
    return gguf_files.write(path, gguf_files.build(kind, **options), kind, stored="Q8_0")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write(tmp_path / "llama.gguf")


def load(path: Path) -> Loaded:
    return loading.load(LoadOptions(path, device="cpu"))


def bits(loaded: Loaded) -> str:
    return tensors_digest(loaded.model.state_dict())


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def refuse_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make reading a GGUF file's config and weights an error from now on."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(gguf, "GGUFReader", refuse)


def refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make deleting and renaming files an error from now on."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("unlink", "rename", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3moe", "gpt2", "bloom"])
def test_the_cache_returns_the_same_model(kind, tmp_path, monkeypatch, cache):
    path = write(tmp_path / "m.gguf", kind)
    first = load(path)
    assert len(names(cache)) == 1
    refuse_reading(monkeypatch)
    again = load(path)
    assert bits(again) == bits(first)
    assert again.model.config.to_dict() == first.model.config.to_dict()
    assert again.model.generation_config.to_dict() == first.model.generation_config.to_dict()
    assert again.source == first.source
    assert again.origin == first.origin


def test_a_changed_file_gets_another_entry(llama, cache):
    first = load(llama)
    write(llama, seed=1)
    second = load(llama)
    assert bits(first) != bits(second)
    assert bits(load(llama)) == bits(second)
    assert len(names(cache)) == 2


@pytest.mark.parametrize(
    "damage", ["cut", "config.json", "generation_config.json", "model.safetensors"]
)
def test_a_damaged_entry_is_replaced(damage, llama, cache):
    first = load(llama)
    (place,) = cache.glob("*")
    weights = place / "model.safetensors"
    if damage == "cut":
        os.truncate(weights, 3000)
    else:
        (place / damage).unlink()
    assert bits(load(llama)) == bits(first)
    assert safetensors.torch.load_file(weights)  # complete again


def test_a_read_only_cache_is_not_an_error(llama, cache, monkeypatch):
    first = load(llama)
    (place,) = cache.glob("*")
    os.truncate(place / "model.safetensors", 3000)
    refuse_writing(monkeypatch)
    assert bits(load(llama)) == bits(first)


def test_nothing_is_stored_on_a_full_or_nearly_full_disk(llama, cache, monkeypatch, caplog):
    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.modeling_utils, "safe_save_file", full)
        load(llama)
    assert "llama.gguf is not kept dequantised: I/O error: No space left on device" in caplog.text
    assert names(cache) == []
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    load(llama)
    assert names(cache) == []


def test_an_entry_of_another_process_is_not_replaced(llama, cache):
    model = load(llama).model
    (place,) = cache.glob("*")
    (place / "theirs").touch()
    dequantised.keep(place, llama.name, model)
    assert (place / "theirs").exists() and names(cache) == [place.name]


def test_the_least_recently_used_entry_and_old_drafts_are_deleted(tmp_path, cache, monkeypatch):
    paths = [write(tmp_path / f"{seed}.gguf", seed=seed) for seed in range(4)]
    load(paths[0])
    (place,) = cache.iterdir()
    size = sum(file.stat().st_size for file in place.iterdir())
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, str(2.5 * size / 1e9))
    draft = cache / ".draft"
    shutil.copytree(place, draft)
    os.utime(draft, (0, 0))
    os.utime(place, (1, 1))
    load(paths[1])
    assert len(names(cache)) == 2 and not draft.exists()
    load(paths[0])  # now the most recently used
    load(paths[2])
    assert len(names(cache)) == 2 and place.exists()
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, "0")
    load(paths[3])
    assert len(names(cache)) == 2
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, "much")
    with pytest.raises(InputError, match="expected GB, or 0"):
        load(paths[0])
