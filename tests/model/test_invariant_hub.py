"""I(M) from a stand-in hub: tensors by byte range, temporary faults, and refusals."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hub_server
import planted
import pytest
import torch
from planted import EXACT, LAYOUTS

from lastword.errors import CheckpointError
from lastword.model.loading import load, load_tokenizer
from lastword.model.options import LoadOptions
from lastword.model.weights.hub import download, hub_files
from lastword.model.weights.invariant import Factors, read_invariant
from lastword.rule.theta import Theta

LLAMA = LAYOUTS["llama"]
SHARDS = 3


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """Yield a stand-in hub with a sharded planted checkpoint, and set caches for the test."""
    folder = planted.write(tmp_path / "files", LLAMA.config, LLAMA.tensors(), shards=SHARDS)
    with hub_server.instead(folder, tmp_path, monkeypatch) as hub:
        yield hub


def read(name: str = "org/model", **options: Any) -> Factors:
    return read_invariant(name, theta=Theta(), **options)


def refusal(name: str = "org/model", **options: Any) -> str:
    return planted.refusal(name, **options)


def large(hub: hub_server.Hub, tmp_path: Path) -> dict[str, torch.Tensor]:
    """Serve realistic widths, so that tensors are larger than headers."""
    torch.manual_seed(0)
    shapes = {"q_proj": (256, 256), "k_proj": (64, 256), "v_proj": (64, 256), "o_proj": (256, 256)}
    tensors = {
        f"model.layers.{block}.self_attn.{name}.weight": torch.randn(shape)
        for block in range(10)
        for name, shape in shapes.items()
    }
    tensors["model.norm.weight"] = torch.randn(256)
    config = LLAMA.config | {"num_hidden_layers": 10, "hidden_size": 256}
    hub.folder = planted.write(tmp_path / "large", config, tensors, shards=SHARDS)
    return tensors


def traffic(hub: hub_server.Hub) -> tuple[int, int]:
    """Return the bytes of the headers, and the bytes served from weight files."""
    files = hub.folder.glob("*.safetensors")
    headers = sum(8 + int.from_bytes(f.read_bytes()[:8], "little") for f in files)
    return headers, sum(n for file, n in hub.served.items() if file.endswith(".safetensors"))


def test_all_readings_need_four_more_tensors(hub, tmp_path):
    tensors = large(hub, tmp_path)
    factors = read(readings=True)
    headers, served = traffic(hub)
    blocks = ((2, "kv"), (5, "vo"), (1, "kv"), (4, "vo"))  # blocks e and m under both readings
    names = [f"model.layers.{b}.self_attn.{x}_proj.weight" for b, both in blocks for x in both]
    needed = sum(tensors[name].nbytes for name in names)
    assert needed < served <= 1.02 * needed + headers
    for name, value in factors.readings.items():
        rows, block, norm = name.split("/")
        theta = Theta.from_dict({"invariant": {"output_rows": rows, "block": block, "norm": norm}})
        assert read_invariant(hub.folder, theta=theta).value == value
    values = set(factors.readings.values())
    assert len(factors.readings) == 8 and len(values) == 4  # norms without offset are equal


def test_only_headers_and_five_tensors_are_downloaded(hub, tmp_path):
    tensors = large(hub, tmp_path)
    factors = read()
    headers, served = traffic(hub)
    files = sorted(hub.folder.glob("*.safetensors"))
    needed = sum(tensors[name].nbytes for name in factors.tensors)
    assert len(factors.tensors) == 5
    assert needed < served <= 1.02 * needed + headers
    assert served < 0.2 * sum(f.stat().st_size for f in files)
    assert factors.value == read_invariant(hub.folder, theta=Theta()).value


@pytest.mark.parametrize(
    "state",
    [
        {"shards": 1},  # one file without an index
        {"large": ()},  # a mirror that serves files without redirect
        {"token": "hf_secret"},  # set in the environment below
        {"ranges": False},
    ],
)
def test_all_kinds_of_hub_give_the_same_value(state, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if "shards" in state:
        hub.folder = planted.write(tmp_path / "single", LLAMA.config, LLAMA.tensors())
    vars(hub).update(state)
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)


def test_a_revision_is_resolved_to_its_commit(hub):
    read(revision="v2")
    paths = [path for role, path, _, _ in hub.requests if role == "hub"]
    tensors = [path for path in paths if path.endswith(".safetensors")]
    assert tensors and all(f"/resolve/{hub.commit}/" in path for path in tensors)


def test_the_token_is_sent_only_to_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.token = "hf_secret"
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    tokens = {role: {t for r, _, _, t in hub.requests if r == role} for role in ("hub", "store")}
    assert tokens == {"hub": {"Bearer hf_secret"}, "store": {None}}


@pytest.mark.parametrize(
    ("state", "query", "words", "login"),
    [
        ({"gated": True}, {}, "is gated", True),
        ({"token": "x"}, {}, "is gated", True),
        ({"token": "x"}, {"HF_TOKEN": "hf_wrong"}, "log in", True),
        ({}, {"name": "org/other"}, "does not exist", True),
        ({}, {"revision": "v9"}, "no revision v9", False),
        ({"status": 410}, {}, "did not give config.json", False),
    ],
)
def test_refusals_advise_what_to_do(state, query, words, login, hub, monkeypatch):
    vars(hub).update(state)
    if (token := query.get("HF_TOKEN")) is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    message = refusal(**{name: value for name, value in query.items() if name != "HF_TOKEN"})
    assert words in message and ("log in" in message) == login


@pytest.mark.parametrize(
    "text",
    ["..", "../../x", "a/../b", "/etc", "a//b", "a\\b", "v\n2", "\x1b[1m", "\ud800", "", "x" * 300],
)
def test_invalid_revisions_and_file_names_are_not_requested(text, hub):
    assert "names no revision of org/model" in refusal(revision=text)
    for read in (load, load_tokenizer):
        with pytest.raises(CheckpointError, match="names no revision of org/model"):
            read(LoadOptions("org/model", revision=text))
    with pytest.raises(CheckpointError, match="names no file of org/model"):
        download("org/model", text, None)
    assert not hub.requests


def test_a_model_without_safetensors_is_refused(hub, tmp_path):
    hub.folder = tmp_path / "pickled"
    hub.folder.mkdir()
    (hub.folder / "config.json").write_text(json.dumps(LLAMA.config))
    (hub.folder / "pytorch_model.bin").write_bytes(b"x")
    assert "no safetensors" in refusal()


def test_a_truncated_file_is_refused(hub):
    for file in hub.folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    assert "cut short" in refusal()


def put(cache: Path) -> None:
    """Put the model into the cache of the hub's client."""
    folder = cache / "models--org--model"
    planted.write(folder / "snapshots" / hub_server.COMMIT, LLAMA.config, LLAMA.tensors())
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(hub_server.COMMIT)


def test_a_downloaded_model_is_read_from_disk(hub, tmp_path):
    put(tmp_path / "hf")
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert not any(file.endswith(".safetensors") for file in hub.served)


def test_an_unreachable_hub_is_an_error_unless_the_model_was_downloaded(hub, tmp_path, monkeypatch):
    with closing(socket.socket()) as unused:  # bound, not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://user:secret@127.0.0.1:{port}")
        message = refusal()
        assert "did not give config.json" in message and "lastword get smollm2-135m" in message
        assert "secret" not in message
        put(tmp_path / "hf")
        assert download("org/model", "config.json", None)[1] == hub_server.COMMIT


def test_offline_reads_the_download_or_is_an_error(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal()
    put(tmp_path / "hf")
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert hub.requests == []


def test_a_local_folder_is_preferred_to_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("org")
    planted.write(Path("org/model"), LLAMA.config, LLAMA.tensors())
    read()
    assert hub.requests == []


def test_byte_ranges_are_exact(hub):
    file = next(hub.folder.glob("*.safetensors"))
    files = hub_files("org/model", hub_server.COMMIT)
    assert files.read(file.name, 3, 11) == file.read_bytes()[3:11]
    assert files.read("config.json", 0, None) == (hub.folder / "config.json").read_bytes()
    assert files.read("absent.json", 0, None) is None
