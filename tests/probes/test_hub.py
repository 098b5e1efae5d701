"""Probes on the hub: upload, download, and the model card."""

import hub_server
import pytest
from huggingface_hub import ModelCard
from topics import probe_of

from lastword import Probe, Tracer
from lastword.errors import CheckpointError, InputError


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


@pytest.fixture(scope="module")
def probe(tracer):
    return probe_of(tracer)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "served").mkdir()
    with hub_server.instead(tmp_path / "served", tmp_path, monkeypatch) as server:
        yield server


def test_a_saved_probe_is_loaded_and_has_a_card(probe, tmp_path):
    probe.save_pretrained(tmp_path / "probe")
    assert Probe.from_pretrained(tmp_path / "probe").digest == probe.digest
    card = ModelCard.load(tmp_path / "probe" / "README.md")
    assert card.data.library_name == "lastword" and "probe" in card.data.tags
    assert "animal, money" in card.text and "labels: 8" in card.text


def test_a_pushed_probe_is_downloaded(probe, hub):
    assert probe.push_to_hub("org/model").endswith(f"/commit/{hub_server.COMMIT}")
    for revision in (None, hub_server.COMMIT):
        assert Probe.from_pretrained("org/model", revision=revision).digest == probe.digest


def test_missing_probes_and_failed_uploads_are_errors(probe, hub, tmp_path):
    with pytest.raises(CheckpointError, match=r"org/model has no file probe.safetensors"):
        Probe.from_pretrained("org/model")
    with pytest.raises(CheckpointError, match="org/model has no revision none"):
        Probe.from_pretrained("org/model", revision="none")
    with pytest.raises(InputError, match="cannot read a probe from .*No such file"):
        Probe.from_pretrained(tmp_path)
    hub.token = "secret"
    with pytest.raises(InputError, match="cannot upload the probe to org/model: .*401"):
        probe.push_to_hub("org/model")
