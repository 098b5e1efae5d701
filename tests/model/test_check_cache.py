"""The result of the check at load is stored for the next start of the same model."""

from pathlib import Path

import pytest
import torch
from families import build, tokenizer

from lastword import Tracer
from lastword.model import check
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a list of the attention of each check that runs, also for small models."""
    attentions: list[str] = []
    real = check.check

    def recording(backbone, readout, attention="auto"):
        attentions.append(attention)
        return real(backbone, readout, attention)

    monkeypatch.setattr(check, "check", recording)
    monkeypatch.setattr(check, "_LEAST", 0)
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    return attentions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def entry(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache" / "checks").glob("*.json")
    return file


def test_a_second_start_does_not_check_again(checks, folder):
    first = Tracer.from_pretrained(LoadOptions(folder))
    second = Tracer.from_pretrained(LoadOptions(folder))
    assert checks == ["auto"]
    assert first.describe() == second.describe()
    assert second.backbone.prefixes is not None


@pytest.mark.parametrize("change", ["attention", "dtype", "weights", "packages", "precision"])
def test_a_changed_start_is_checked(checks, folder, monkeypatch, change):
    model = Tracer.from_pretrained(LoadOptions(folder)).backbone.model
    options = {"attention": {"attention": "eager"}, "dtype": {"dtype": "bfloat16"}}.get(change, {})
    if change == "weights":
        with torch.no_grad():
            model.lm_head.weight[0] += 1
        model.save_pretrained(folder)
    if change == "packages":
        monkeypatch.setattr(check, "version", lambda name: "0")
    before = torch.get_float32_matmul_precision()
    try:
        if change == "precision":
            torch.set_float32_matmul_precision("high")
        for _ in range(2):
            Tracer.from_pretrained(LoadOptions(folder, **options))
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(checks) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"road": "packed"}'])
def test_a_damaged_entry_is_replaced(checks, folder, tmp_path, content):
    Tracer.from_pretrained(LoadOptions(folder))
    whole = entry(tmp_path).read_text()
    entry(tmp_path).write_text(content)
    Tracer.from_pretrained(LoadOptions(folder))
    assert len(checks) == 2
    assert entry(tmp_path).read_text() == whole


@pytest.mark.parametrize("why", ["code", "spread", "unwritable", "small"])
def test_some_models_are_always_checked(checks, folder, monkeypatch, tmp_path, why):
    options = {"code": {"trust_remote_code": True}, "spread": {"device_map": "cpu"}}.get(why, {})
    if why == "unwritable":
        (tmp_path / "file").touch()
        monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "file"))
    if why == "small":
        monkeypatch.setattr(check, "_LEAST", 10_000_000)
    for _ in range(2):
        Tracer.from_pretrained(LoadOptions(folder, **options))
    assert len(checks) == 2 and not (tmp_path / "cache" / "checks").exists()


def test_models_in_memory_are_always_checked(checks, folder):
    tracer = Tracer.from_pretrained(LoadOptions(folder))
    Tracer(tracer.backbone.model, tracer.tokenizer, source=tracer.source)
    assert len(checks) == 2


def test_an_adapter_has_no_digest_because_its_base_is_elsewhere(folder):
    assert load_digest(LoadOptions(folder)) is not None
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    assert load_digest(LoadOptions(folder)) is None
