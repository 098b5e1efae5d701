"""I(M) from a stand-in hub: five tensors by byte range, faults survived or refused in one line."""

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
from lastword.model.forecast import forecast
from lastword.model.loading import load, load_tokenizer
from lastword.model.options import LoadOptions
from lastword.model.weights.hub import HubFiles, UnreachableError, find_commit, open_gguf
from lastword.model.weights.invariant import Factors, read_invariant
from lastword.rule.theta import Theta

LLAMA = LAYOUTS["llama"]
SHARDS = 3


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A sharded planted checkpoint behind the stand-in; caches of this test's own."""
    folder = planted.write(tmp_path / "files", LLAMA.config, LLAMA.tensors(), shards=SHARDS)
    with hub_server.instead(folder, tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    seconds: list[float] = []
    monkeypatch.setattr("lastword.model.weights.hub.time.sleep", seconds.append)
    return seconds


def read(name: str = "org/model", **options: Any) -> Factors:
    return read_invariant(name, theta=Theta(), **options)


def refusal(name: str = "org/model", **options: Any) -> str:
    return planted.refusal(name, **options)


def large(hub: hub_server.Hub, tmp_path: Path) -> dict[str, torch.Tensor]:
    """Serve real widths, so that the tensors outweigh the headers as in a real checkpoint."""
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


def weighed(hub: hub_server.Hub) -> tuple[int, int]:
    """Bytes of the headers, and those that were served of the weights' files."""
    files = hub.folder.glob("*.safetensors")
    headers = sum(8 + int.from_bytes(f.read_bytes()[:8], "little") for f in files)
    return headers, sum(n for file, n in hub.served.items() if file.endswith(".safetensors"))


def test_every_reading_costs_four_tensors_more(hub, tmp_path):
    tensors = large(hub, tmp_path)
    found = read(readings=True)
    headers, served = weighed(hub)
    blocks = ((2, "kv"), (5, "vo"), (1, "kv"), (4, "vo"))  # e and m, counted from 0 and as depths
    names = [f"model.layers.{b}.self_attn.{x}_proj.weight" for b, both in blocks for x in both]
    needed = sum(tensors[name].nbytes for name in names)
    assert needed < served <= 1.02 * needed + headers
    for name, value in found.readings.items():
        rows, block, norm = name.split("/")
        theta = Theta.from_dict({"invariant": {"output_rows": rows, "block": block, "norm": norm}})
        assert read_invariant(hub.folder, theta=theta).value == value
    assert len(found.readings) == 8 and len(set(found.readings.values())) == 4  # no offset norm


def test_a_forecast_fetches_headers_alone(hub, tmp_path):
    tensors = large(hub, tmp_path)
    own = forecast(LoadOptions("org/model", device="cpu"))
    headers, served = weighed(hub)
    assert served <= 1.02 * headers
    assert own.disk == sum(tensor.nbytes for tensor in tensors.values()) and own.depth == 10
    missing = forecast(LoadOptions("org/nothing", device="cpu")).missing
    assert len(missing) == 1 and missing[0].startswith("org/nothing does not exist")


def test_five_tensors_and_headers_are_all_that_is_fetched(hub, tmp_path):
    tensors = large(hub, tmp_path)
    found = read()
    headers, served = weighed(hub)
    files = sorted(hub.folder.glob("*.safetensors"))
    needed = sum(tensors[name].nbytes for name in found.tensors)
    assert len(found.tensors) == 5
    assert needed < served <= 1.02 * needed + headers
    assert served < 0.2 * sum(f.stat().st_size for f in files)
    assert found.value == read_invariant(hub.folder, theta=Theta()).value


@pytest.mark.parametrize(
    "state",
    [
        {"shards": 1},  # one file without an index
        {"large": ()},  # a mirror that serves files itself
        {"token": "hf_secret"},  # which comes from the environment
        {"commit": None},
    ],
)
def test_the_same_value_from_every_hub(state, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if "shards" in state:
        hub.folder = planted.write(tmp_path / "single", LLAMA.config, LLAMA.tensors())
    vars(hub).update(state)
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)


def test_a_revision_and_then_its_commit_are_asked_for(hub):
    read(revision="v2")
    paths = [path for role, path, _, _ in hub.requests if role == "hub"]
    assert paths[0] == "/org/model/resolve/v2/config.json"
    assert all(f"/resolve/{hub.commit}/" in path for path in paths[1:])


def test_the_token_goes_to_the_hub_alone(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.token = "hf_secret"
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    seen = {role: {t for r, _, _, t in hub.requests if r == role} for role in ("hub", "store")}
    assert seen == {"hub": {"Bearer hf_secret"}, "store": {None}}


@pytest.mark.parametrize(
    ("busy", "retry_after", "waited"),
    [
        (3, "7", [7.0, 7.0, 7.0]),
        (3, None, [1.0, 2.0, 4.0]),
        (1000, "7", "status 429"),
        (1, "4000", "asks to wait 4000 s"),
    ],
)
def test_busy_answers_are_waited_for_and_not_for_ever(busy, retry_after, waited, hub, waits):
    hub.busy, hub.retry_after = busy, retry_after
    if isinstance(waited, list):
        assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
        assert waits == waited
    else:
        assert waited in refusal()
        assert len(waits) == (5 if busy == 1000 else 0)


def test_dropped_connections_go_on_where_they_broke_off(hub, waits):
    read()
    whole = sum(hub.served.values())
    hub.served.clear()
    hub.commit, hub.drop = "f" * 40, 4
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert hub.drop == 0 and len(waits) == 4
    assert sum(hub.served.values()) == whole


def test_a_line_that_always_drops_has_an_end(hub, waits):
    hub.mute = (".safetensors",)
    assert "did not give model-0000" in refusal()
    assert len(waits) == 5


@pytest.mark.parametrize(
    ("state", "asked", "words", "login"),
    [
        ({"gated": True}, {}, "gated (403)", True),
        ({"token": "x"}, {}, "gated (401)", True),
        ({"token": "x"}, {"HF_TOKEN": "hf_wrong"}, "log in", True),
        ({}, {"name": "org/other"}, "does not exist", True),
        ({}, {"name": "org/other", "HF_TOKEN": "t"}, "org/other", False),
        ({}, {"revision": "v9"}, "no revision v9", False),
        ({"status": 404}, {}, "neither a folder", False),
        ({"status": 410}, {}, "answers 410", False),
    ],
)
def test_refusals_say_what_to_do(state, asked, words, login, hub, monkeypatch):
    vars(hub).update(state)
    if (token := asked.get("HF_TOKEN")) is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    message = refusal(**{name: own for name, own in asked.items() if name != "HF_TOKEN"})
    assert words in message and ("log in" in message) == login
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    "text",
    ["..", "../../x", "a/../b", "/etc", "a//b", "a\\b", "v\n2", "\x1b[1m", "\ud800", "", "x" * 300],
)
def test_a_revision_or_a_file_that_leads_elsewhere_is_not_asked_for(text, hub):
    assert "names no revision of org/model" in refusal(revision=text)
    for read in (load, load_tokenizer):
        with pytest.raises(CheckpointError, match="names no revision of org/model"):
            read(LoadOptions("org/model", revision=text))
    with pytest.raises(CheckpointError, match="names no file of org/model"):
        open_gguf("org/model", text)
    assert not hub.requests


def test_a_model_without_safetensors_is_to_be_downloaded(hub, tmp_path):
    hub.folder = tmp_path / "pickled"
    hub.folder.mkdir()
    (hub.folder / "config.json").write_text(json.dumps(LLAMA.config))
    (hub.folder / "pytorch_model.bin").write_bytes(b"x")
    assert "no safetensors" in refusal()


def test_a_server_without_ranges_is_not_let_send_everything(hub):
    hub.ranges = False
    assert "byte ranges" in refusal()


def test_a_file_that_ends_too_early(hub, waits):
    for file in hub.folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    assert "cut short" in refusal()
    assert waits == []


def download(cache: Path) -> None:
    """Put the model where the hub's own client keeps it."""
    folder = cache / "models--org--model"
    planted.write(folder / "snapshots" / hub_server.COMMIT, LLAMA.config, LLAMA.tensors())
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(hub_server.COMMIT)


def test_what_was_downloaded_is_read_in_place_of_the_hub(hub, tmp_path):
    download(tmp_path / "hf")
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert set(hub.served) == {"config.json"}


def test_where_nobody_answers_it_is_soon_said(hub, waits, tmp_path, monkeypatch):
    with closing(socket.socket()) as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://user:secret@127.0.0.1:{port}")
        said = refusal()
        assert "in 3 attempts" in said and "lastword get smollm2-135m" in said
        assert "secret" not in said
        assert waits == [1.0, 2.0]
        with pytest.raises(UnreachableError):
            find_commit("org/model", None)
        download(tmp_path / "hf")
        assert find_commit("org/model", None) == hub_server.COMMIT


def test_offline_reads_the_download_or_says_so(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal()
    download(tmp_path / "hf")
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert hub.requests == []


def test_a_folder_comes_before_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("org")
    planted.write(Path("org/model"), LLAMA.config, LLAMA.tensors())
    read()
    assert hub.requests == []


def test_ranges_are_exactly_what_was_asked(hub):
    file = next(hub.folder.glob("*.safetensors"))
    files = HubFiles("org/model", None)
    assert files.read(file.name, 3, 11) == file.read_bytes()[3:11]
    assert files.read("config.json") == (hub.folder / "config.json").read_bytes()
    assert files.read("absent.json") is None
