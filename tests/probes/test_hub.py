"""Probes on the hub: the folder with its model card, and the download."""

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


def test_an_uploaded_probe_is_downloaded_and_a_missing_one_is_an_error(probe, hub, tmp_path):
    for folder in (tmp_path, "org/model"):
        with pytest.raises((CheckpointError, InputError), match=r"No such file|has no file probe"):
            Probe.from_pretrained(folder)
    with pytest.raises(CheckpointError, match="org/model has no revision none"):
        Probe.from_pretrained("org/model", revision="none")
    probe.save_pretrained(tmp_path / "served")
    for revision in (None, hub_server.COMMIT):
        assert Probe.from_pretrained("org/model", revision=revision).digest == probe.digest
