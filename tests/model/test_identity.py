"""Identity of a model: digests of all bytes of its files, cached after the first reading."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lastword.model.weights.identity import file_digest, folder_digests, tensors_digest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "digests"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(np.random.default_rng(0).bytes(2_000_000))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "trainer_state.json").write_text("{}")
    return folder


def test_a_digest_is_cached_until_the_file_changes(model, cache, monkeypatch):
    path = model / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert file_digest(path) == digest and len(list(cache.iterdir())) == 1
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert file_digest(path) == digest
    monkeypatch.undo()
    # A change with equal size and modification time.
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest() != digest


def test_without_a_home_folder_nothing_is_stored(model, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "LASTWORD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    path = model / "model.safetensors"
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_any_changed_byte_changes_the_digest(model):
    before = folder_digests(model)
    assert set(before) == {"weights", "config", "tokenizer"}
    (model / "trainer_state.json").write_text("other")
    assert folder_digests(model) == before
    data = bytearray((model / "model.safetensors").read_bytes())
    data[1_234_567] ^= 1  # between the positions that a sample of 64 would read
    (model / "model.safetensors").write_bytes(data)
    after = folder_digests(model)
    assert {part for part in before if before[part] != after[part]} == {"weights"}
    (model / "tokenizer.json").write_text("[]")
    assert folder_digests(model)["tokenizer"] != before["tokenizer"]
    assert folder_digests(model / "absent") == {}


def test_unused_weights_do_not_change_the_digests(model):
    before = folder_digests(model)
    (model / "pytorch_model.bin").write_bytes(b"other")
    (model / "tokenizer").mkdir()
    assert folder_digests(model) == before
    (model / "model.safetensors").unlink()
    after = folder_digests(model)
    assert {part for part in before if before[part] != after[part]} == {"weights"}


def test_an_unwritable_cache_is_not_an_error(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "file"))
    path = model / "config.json"
    assert file_digest(path) == hashlib.sha256(b"{}").hexdigest()


def test_the_digest_of_tensors_covers_name_type_shape_and_bytes():
    tensors = {"a": torch.arange(6.0), "b": torch.tensor(1, dtype=torch.bfloat16)}
    digest = tensors_digest(tensors)
    assert digest == tensors_digest(dict(reversed(tensors.items())))
    others = (
        {"a": tensors["a"].flip(0)},
        {"a": tensors["a"].reshape(2, 3)},
        {"a": tensors["a"].view(torch.int32)},
        {"c": tensors["a"]},
    )
    for other in others:
        assert tensors_digest(tensors | other) != digest
