"""The result of the check at load is stored for the next start of the same model."""

from pathlib import Path

import pytest
import torch
from families import save

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
