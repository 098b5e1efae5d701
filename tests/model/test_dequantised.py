"""What is kept of GGUF files between loads: the same bits, whole or not at all, within bounds."""

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


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def refuse_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a GGUF file's config and weights can be read from here on."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(gguf, "GGUFReader", refuse)


def refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be removed or renamed from here on, as in a folder of others."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("unlink", "rename", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)


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


def test_a_file_that_changed_is_another_one(llama, cache):
    first = load(llama)
    written(llama, seed=1)
    second = load(llama)
    assert bits(first) != bits(second)
    assert bits(load(llama)) == bits(second)
    assert len(names(cache)) == 2


@pytest.mark.parametrize(
    "damage", ["cut", "config.json", "generation_config.json", "model.safetensors"]
)
def test_what_is_damaged_is_read_anew(damage, llama, cache):
    first = load(llama)
    (place,) = cache.glob("*")
    weights = place / "model.safetensors"
    if damage == "cut":
        os.truncate(weights, 3000)
    else:
        (place / damage).unlink()
    assert bits(load(llama)) == bits(first)
    assert safetensors.torch.load_file(weights)  # whole again


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(llama, cache, monkeypatch):
    first = load(llama)
    (place,) = cache.glob("*")
    os.truncate(place / "model.safetensors", 3000)
    refuse_writing(monkeypatch)
    assert bits(load(llama)) == bits(first)


def test_a_full_disk_and_one_that_is_nearly_so_keep_nothing(llama, cache, monkeypatch, caplog):
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


def test_a_folder_that_another_process_kept_meanwhile_stays(llama, cache):
    model = load(llama).model
    (place,) = cache.glob("*")
    (place / "theirs").touch()
    dequantised.keep(place, llama.name, model)
    assert (place / "theirs").exists() and names(cache) == [place.name]


def test_the_least_recently_used_goes_and_a_draft_that_was_left(tmp_path, cache, monkeypatch):
    paths = [written(tmp_path / f"{seed}.gguf", seed=seed) for seed in range(4)]
    load(paths[0])
    (place,) = cache.iterdir()
    size = sum(own.stat().st_size for own in place.iterdir())
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, str(2.5 * size / 1e9))
    draft = cache / ".draft"
    shutil.copytree(place, draft)
    os.utime(draft, (0, 0))
    os.utime(place, (1, 1))
    load(paths[1])
    assert len(names(cache)) == 2 and not draft.exists()
    load(paths[0])  # used again, and so the later one
    load(paths[2])
    assert len(names(cache)) == 2 and place.exists()
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, "0")
    load(paths[3])
    assert len(names(cache)) == 2
    monkeypatch.setenv(dequantised.LIMIT_VARIABLE, "much")
    with pytest.raises(InputError, match="expected GB, or 0"):
        load(paths[0])
