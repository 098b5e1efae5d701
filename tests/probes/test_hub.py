"""Probes on the hub: upload, download, and the model card with the verdict."""

from dataclasses import replace

import hub_server
import pytest
from huggingface_hub import ModelCard
from topics import LABELS, TEXTS, probe_of

from lastword import Probe, Tracer
from lastword.errors import CheckpointError, InputError
from lastword.tryout.run import try_labels


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


@pytest.fixture(scope="module")
def probe(tracer):
    return probe_of(tracer)


@pytest.fixture(scope="module")
def verdict(tracer):
    rows = [
        {"text": f"{text} {i}", "label": label}
        for i in range(6)
        for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    return try_labels(rows, tracer, budget=0.0).to_dict()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "served").mkdir()
    with hub_server.instead(tmp_path / "served", tmp_path, monkeypatch) as server:
        yield server


def test_a_saved_probe_is_loaded_and_its_card_has_the_verdict(probe, verdict, tmp_path):
    probe.save_pretrained(tmp_path / "probe", verdict)
    assert Probe.from_pretrained(tmp_path / "probe").digest == probe.digest
    card = ModelCard.load(tmp_path / "probe" / "README.md")
    assert card.data.library_name == "lastword" and "probe" in card.data.tags
    assert card.data.base_model is None  # the embedded model is not on the hub
    for line in (verdict["advice"]["headline"], *verdict["advice"]["chart"], "animal, money"):
        assert line in card.text
    assert "fitted with lastword to 8 labels" in card.text
    lone = replace(probe, subject=replace(probe.subject, model="org/model"))
    lone.save_pretrained(tmp_path / "lone")
    card = ModelCard.load(tmp_path / "lone" / "README.md")
    assert card.data.base_model == "org/model" and "## Results" not in card.text


def test_a_pushed_probe_is_downloaded(probe, hub, verdict):
    address = probe.push_to_hub("org/model", verdict, commit_message="Fit it")
    assert address.endswith(f"/commit/{hub_server.COMMIT}")
    assert hub.commits == [("main", "Fit it")]
    for revision in (None, "v2", hub_server.COMMIT):
        assert Probe.from_pretrained("org/model", revision=revision).digest == probe.digest
    assert verdict["advice"]["headline"] in (hub.folder / "README.md").read_text()
    probe.push_to_hub("org/model", revision="v2")
    assert hub.commits[1:] == [("v2", "Upload a probe")]


def test_missing_probes_and_failed_uploads_are_errors(probe, hub, tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot download probe.safetensors of org/model"):
        Probe.from_pretrained("org/model")
    with pytest.raises(CheckpointError, match="of org/model"):
        Probe.from_pretrained("org/model", revision="none")
    with pytest.raises(InputError, match="cannot read a probe from .*No such file"):
        Probe.from_pretrained(tmp_path)
    hub.token = "secret"
    with pytest.raises(InputError, match="cannot upload the probe to org/model: .*401"):
        probe.push_to_hub("org/model")
