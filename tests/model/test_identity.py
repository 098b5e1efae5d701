"""What tells a model from another of its name: every byte of its files, kept once it was read."""

import hashlib
import os

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


def test_a_file_is_read_once_and_again_when_it_was_written(model, cache, monkeypatch):
    path = model / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert file_digest(path) == digest and len(list(cache.iterdir())) == 1
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert file_digest(path) == digest
    monkeypatch.undo()
    # Of the same size, and with its time set back.
    was = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest() != digest


def test_any_byte_of_any_part_is_another_model(model):
    was = folder_digests(model)
    assert set(was) == {"weights", "config", "tokenizer"}
    (model / "trainer_state.json").write_text("other")
    assert folder_digests(model) == was
    data = bytearray((model / "model.safetensors").read_bytes())
    data[1_234_567] ^= 1  # between the places that a sample of 64 would read
    (model / "model.safetensors").write_bytes(data)
    now = folder_digests(model)
    assert {part for part in was if was[part] != now[part]} == {"weights"}
    (model / "tokenizer.json").write_text("[]")
    assert folder_digests(model)["tokenizer"] != was["tokenizer"]
    assert folder_digests(model / "absent") is None


def test_weights_that_are_not_read_make_no_other_model(model):
    was = folder_digests(model)
    (model / "pytorch_model.bin").write_bytes(b"other")
    (model / "tokenizer").mkdir()
    assert folder_digests(model) == was
    (model / "model.safetensors").unlink()
    now = folder_digests(model)
    assert {part for part in was if was[part] != now[part]} == {"weights"}


def test_a_folder_that_cannot_be_written_keeps_nothing(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "file"))
    path = model / "config.json"
    assert file_digest(path) == hashlib.sha256(b"{}").hexdigest()


def test_tensors_in_memory_are_known_by_name_type_shape_and_bytes():
    own = {"a": torch.arange(6.0), "b": torch.tensor(1, dtype=torch.bfloat16)}
    digest = tensors_digest(own)
    assert digest == tensors_digest(dict(reversed(own.items())))
    others = (
        {"a": own["a"].flip(0)},
        {"a": own["a"].reshape(2, 3)},
        {"a": own["a"].view(torch.int32)},
        {"c": own["a"]},
    )
    for other in others:
        assert tensors_digest(own | other) != digest
