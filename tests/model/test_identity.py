"""Identity of a model: digests of all its bytes, and what is cached by them."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from families import save

from lastword import Tracer
from lastword.model import check
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions
from lastword.model.weights.identity import file_digest, folder_digests, tensors_digest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "digests"


@pytest.fixture
def model(tmp_path):
    (folder := tmp_path / "model").mkdir()
    (folder / "model.safetensors").write_bytes(np.random.default_rng(0).bytes(2_000_000))
    for name in ("config.json", "tokenizer.json", "trainer_state.json"):
        (folder / name).write_text("{}")
    return folder


def test_a_digest_is_cached_until_the_file_changes(model, cache, monkeypatch):
    path = model / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert file_digest(path) == digest and len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert file_digest(path) == digest
    # A change with equal size and modification time.
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest() != digest


@pytest.mark.parametrize("why", ["homeless", "unwritable"])
def test_without_a_cache_a_digest_is_computed(model, tmp_path, monkeypatch, why):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "file"))
    if why == "homeless":
        for name in ("XDG_CACHE_HOME", "LASTWORD_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", homeless)
    assert file_digest(model / "config.json") == hashlib.sha256(b"{}").hexdigest()


def test_any_changed_byte_of_a_part_changes_its_digest_alone(model):
    def differing() -> set[str]:
        now = folder_digests(model)
        return {part for part in before if before[part] != now[part]}

    before = folder_digests(model)
    assert set(before) == {"weights", "config", "tokenizer"} and folder_digests(model / "x") == {}
    (model / "trainer_state.json").write_text("other")
    (model / "pytorch_model.bin").write_bytes(b"not used beside safetensors")
    (model / "tokenizer").mkdir()
    assert not differing()
    data = bytearray((model / "model.safetensors").read_bytes())
    data[1_234_567] ^= 1  # between the positions that a sample of 64 would read
    (model / "model.safetensors").write_bytes(data)
    assert differing() == {"weights"}
    (model / "model.safetensors").unlink()
    assert differing() == {"weights"}
    (model / "tokenizer.json").write_text("[]")
    assert differing() == {"weights", "tokenizer"}


def test_the_digest_of_tensors_covers_name_type_shape_and_bytes():
    tensors = {"a": torch.arange(6.0), "b": torch.tensor(1, dtype=torch.bfloat16)}
    digest, a = tensors_digest(tensors), tensors["a"]
    assert digest == tensors_digest(dict(reversed(tensors.items())))
    for other in ({"a": a.flip(0)}, {"a": a.reshape(2, 3)}, {"a": a.view(torch.int32)}, {"c": a}):
        assert tensors_digest(tensors | other) != digest


# --- the check at load is stored for the next start of the same model ---


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the attention of each check that runs, also for small models."""
    attentions: list[str] = []
    real = check.check

    def recording(backbone, readout, attention="auto"):
        attentions.append(attention)
        return real(backbone, readout, attention)

    monkeypatch.setattr(check, "check", recording)
    monkeypatch.setattr(check, "_LEAST", 0)
    return attentions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "model")


def start(folder: Path, **options: object) -> Tracer:
    return Tracer.from_pretrained(LoadOptions(folder, **options))


def test_a_second_start_does_not_check_again(checks, folder):
    first, second = start(folder), start(folder)
    assert checks == ["auto"]
    assert first.describe() == second.describe()
    assert second.backbone.prefixes is not None
    Tracer(second.backbone.model, second.tokenizer, source=second.source)  # one in memory
    assert len(checks) == 2


CHANGES = ["attention", "dtype", "weights", "packages", "precision"]
ALWAYS = {"code": {"trust_remote_code": True}, "spread": {"device_map": "cpu"}}


@pytest.mark.parametrize("change", [*CHANGES, *ALWAYS, "unwritable", "small"])
def test_a_changed_start_and_some_models_are_checked(checks, folder, tmp_path, monkeypatch, change):
    if change in CHANGES:
        model = start(folder).backbone.model
    if change == "weights":
        with torch.no_grad():
            model.lm_head.weight[0] += 1
        model.save_pretrained(folder)
    elif change == "packages":
        monkeypatch.setattr(check, "version", lambda name: "0")
    elif change == "precision":
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    elif change == "unwritable":
        (tmp_path / "file").touch()
        monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "file"))
    elif change == "small":
        monkeypatch.setattr(check, "_LEAST", 10_000_000)
    options = ALWAYS | {"attention": {"attention": "eager"}, "dtype": {"dtype": "bfloat16"}}
    for _ in range(2):
        start(folder, **options.get(change, {}))
    assert len(checks) == 2
    assert (tmp_path / "cache" / "checks").exists() == (change in CHANGES)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"road": "packed"}'])
def test_a_damaged_entry_is_replaced(checks, folder, tmp_path, content):
    start(folder)
    (file,) = (tmp_path / "cache" / "checks").glob("*.json")
    whole = file.read_text()
    file.write_text(content)
    start(folder)
    assert len(checks) == 2 and file.read_text() == whole


def test_an_adapter_has_no_digest_because_its_base_is_elsewhere(folder):
    assert load_digest(LoadOptions(folder)) is not None
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    assert load_digest(LoadOptions(folder)) is None
