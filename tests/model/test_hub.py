"""Models of a stand-in hub: I(M) by byte range, whole loads, and refusals."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import hub_server
import planted
import pytest
import torch
from families import save
from planted import EXACT, LAYOUTS, refusal

from lastword import Tracer
from lastword.errors import CheckpointError
from lastword.model.loading import load, load_tokenizer
from lastword.model.options import LoadOptions
from lastword.model.weights.hub import download, hub_files
from lastword.model.weights.invariant import Factors, read_invariant
from lastword.rule.theta import Theta

LLAMA = LAYOUTS["llama"]
NAME, SHARDS = "org/model", 3


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """Yield a stand-in hub with a sharded planted checkpoint, and set caches for the test."""
    folder = planted.write(tmp_path / "files", LLAMA.config, LLAMA.tensors(), shards=SHARDS)
    with hub_server.instead(folder, tmp_path, monkeypatch) as hub:
        yield hub


def read(readings: bool = False) -> Factors:
    return read_invariant(NAME, theta=Theta(), readings=readings)


@pytest.mark.parametrize("readings", [False, True])
def test_only_headers_and_the_needed_tensors_are_downloaded(readings, hub, tmp_path):
    # Realistic widths, so that tensors are larger than headers.
    draw = torch.Generator().manual_seed(0)
    shapes = {"q_proj": (256, 256), "k_proj": (64, 256), "v_proj": (64, 256), "o_proj": (256, 256)}
    tensors = {
        f"model.layers.{block}.self_attn.{name}.weight": torch.randn(shape, generator=draw)
        for block in range(10)
        for name, shape in shapes.items()
    }
    tensors["model.norm.weight"] = torch.randn(256, generator=draw)
    config = LLAMA.config | {"num_hidden_layers": 10, "hidden_size": 256}
    hub.folder = planted.write(tmp_path / "large", config, tensors, shards=SHARDS)
    factors, files = read(readings), [*hub.folder.glob("*.safetensors")]
    headers = sum(8 + int.from_bytes(f.read_bytes()[:8], "little") for f in files)
    served = sum(n for file, n in hub.served.items() if file.endswith(".safetensors"))
    # Under all readings, blocks e and m are counted from 0 and from 1: four tensors more.
    blocks = ((2, "kv"), (5, "vo"), (1, "kv"), (4, "vo")) if readings else ()
    names = {f"model.layers.{b}.self_attn.{x}_proj.weight" for b, both in blocks for x in both}
    needed = sum(tensors[name].nbytes for name in names | {*factors.tensors})
    assert len(factors.tensors) == 5 and needed < served <= 1.02 * needed + headers
    assert factors.value == read_invariant(hub.folder, theta=Theta()).value
    for name, value in factors.readings.items():
        rows, block, norm = name.split("/")
        theta = Theta.from_dict({"invariant": {"output_rows": rows, "block": block, "norm": norm}})
        assert read_invariant(hub.folder, theta=theta).value == value
    # Norms without offset are equal.
    assert (len(factors.readings), len({*factors.readings.values()})) == (
        (8, 4) * readings or (0, 0)
    )


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
    # The token is sent only to the hub, not to the store.
    sent = {(role, token) for role, _, _, token in hub.requests}
    assert sent <= {("hub", "Bearer hf_secret"), ("store", None)}


def test_a_revision_is_resolved_to_its_commit_and_byte_ranges_are_exact(hub):
    read_invariant(NAME, theta=Theta(), revision="v2")
    paths = [path for role, path, *_ in hub.requests if role == "hub"]
    tensors = [path for path in paths if path.endswith(".safetensors")]
    assert tensors and all(f"/resolve/{hub_server.COMMIT}/" in path for path in tensors)
    files, file = hub_files(NAME, hub_server.COMMIT), next(hub.folder.glob("*.safetensors"))
    assert files.read(file.name, 3, 11) == file.read_bytes()[3:11]
    assert files.read("config.json", 0, None) == (hub.folder / "config.json").read_bytes()
    assert files.read("absent.json", 0, None) is None


@pytest.mark.parametrize(
    ("state", "query", "words", "login"),
    [
        ({"gated": True}, {}, "is gated", True),
        ({"token": "x"}, {}, "is gated", True),
        ({"token": "x"}, {"token": "hf_wrong"}, "log in", True),
        ({}, {"name": "org/other"}, "does not exist", True),
        ({}, {"revision": "v9"}, "no revision v9", False),
        ({"status": 410}, {}, "did not give config.json", False),
        ({"cut": "*.safetensors"}, {}, "cut short", False),
        ({"removed": "*.safetensors*"}, {}, "no safetensors", False),
    ],
)
def test_refusals_advise_what_to_do(state, query, words, login, hub, monkeypatch):
    vars(hub).update(state)
    for file in hub.folder.glob(state.get("cut", "-")):
        file.write_bytes(file.read_bytes()[:-4])
    for file in hub.folder.glob(state.get("removed", "-")):
        file.unlink()
    if "token" in query:
        monkeypatch.setenv("HF_TOKEN", query["token"])
    message = refusal(query.get("name", NAME), revision=query.get("revision"))
    assert words in message and ("log in" in message) == login


@pytest.mark.parametrize(
    "text",
    ["..", "../../x", "a/../b", "/etc", "a//b", "a\\b", "v\n2", "\x1b[1m", "\ud800", "", "x" * 300],
)
def test_invalid_revisions_and_file_names_are_not_requested(text, hub):
    assert "names no revision of org/model" in refusal(NAME, revision=text)
    for door in (load, load_tokenizer):
        with pytest.raises(CheckpointError, match="names no revision of org/model"):
            door(LoadOptions(NAME, revision=text))
    with pytest.raises(CheckpointError, match="names no file of org/model"):
        download(NAME, text, None)
    assert not hub.requests


def put(cache: Path) -> None:
    """Put the model into the cache of the hub's client."""
    folder = cache / "models--org--model"
    planted.write(folder / "snapshots" / hub_server.COMMIT, LLAMA.config, LLAMA.tensors())
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(hub_server.COMMIT)


def test_a_download_or_a_local_folder_is_preferred_to_the_hub(hub, tmp_path, monkeypatch):
    put(tmp_path / "hf")
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert not any(file.endswith(".safetensors") for file in hub.served)
    hub.requests.clear()
    monkeypatch.chdir(tmp_path)
    os.makedirs("org")
    planted.write(Path(NAME), LLAMA.config, LLAMA.tensors())
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert hub.requests == []


@pytest.mark.parametrize("offline", [False, True])
def test_without_a_hub_the_download_is_read_or_an_error(offline, hub, tmp_path, monkeypatch):
    with closing(socket.socket()) as unused:  # bound, not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://user:secret@127.0.0.1:{port}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        message = refusal(NAME)
        assert ("HF_HUB_OFFLINE is set" if offline else "did not give config.json") in message
        assert "lastword get smollm2-135m" in message and "secret" not in message
        put(tmp_path / "hf")
        assert download(NAME, "config.json", None)[1] == hub_server.COMMIT
        assert read().value == pytest.approx(LLAMA.invariant, **EXACT)


@pytest.mark.parametrize("revision", [None, "v2"])
def test_all_files_of_a_model_come_from_one_recorded_commit(revision, hub, tmp_path, monkeypatch):
    hub.folder = save(tmp_path / "model")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    described = Tracer.from_pretrained(NAME, revision=revision).describe()
    assert described["revision"] == hub_server.COMMIT
    files = [path.split("/resolve/")[1] for _, path, *_ in hub.requests if "/resolve/" in path]
    elsewhere = {file for file in files if not file.startswith(hub_server.COMMIT)}
    # One file is requested by branch: its response names the commit.
    assert elsewhere == {f"{revision or 'main'}/config.json"} and len(files) > 4
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Tracer.from_pretrained(NAME, revision=revision).describe() == described
    assert not hub.requests
