"""Probes on the hub: the folder with its model card, and the download."""

import hub_server
import pytest
from huggingface_hub import ModelCard
from topics import probe_of

from lastword import Probe, Tracer
from lastword.errors import CheckpointError, InputError


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "served").mkdir()
    with hub_server.instead(tmp_path / "served", tmp_path, monkeypatch) as server:
        yield server


def test_a_saved_probe_has_a_card_and_is_downloaded(hub, tmp_path):
    probe = probe_of(Tracer.demo())
    for folder in (tmp_path, "org/model"):
        with pytest.raises((CheckpointError, InputError), match=r"No such file|has no file probe"):
            Probe.from_pretrained(folder)
    with pytest.raises(CheckpointError, match="org/model has no revision none"):
        Probe.from_pretrained("org/model", revision="none")
    probe.save_pretrained(tmp_path / "served")
    assert Probe.from_pretrained(tmp_path / "served").digest == probe.digest
    for revision in (None, hub_server.COMMIT):
        assert Probe.from_pretrained("org/model", revision=revision).digest == probe.digest
    card = ModelCard.load(tmp_path / "served" / "README.md")
    assert card.data.library_name == "lastword" and "probe" in card.data.tags
    assert "animal, money" in card.text and "labels: 8" in card.text
