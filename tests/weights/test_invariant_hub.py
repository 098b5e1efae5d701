"""I(M) from a stand-in hub: five tensors by byte range, faults survived or refused in one line."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hub_server
import huggingface_hub.utils
import planted
import pytest
import torch
from planted import LAYOUTS

from lastword.errors import CheckpointError
from lastword.theta import Theta
from lastword.weights.hub import HubFiles, UnreachableError, find_commit
from lastword.weights.invariant import Factors, read_invariant

EXACT = {"rel": 1e-9, "abs": 0.0}
LLAMA = LAYOUTS["llama"]
SHARDS = 3


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A sharded planted checkpoint behind the stand-in; caches of this test's own."""
    folder = planted.write(tmp_path / "files", LLAMA.config, LLAMA.tensors(), shards=SHARDS)
    with hub_server.serve(folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
        huggingface_hub.utils.close_session()
        yield hub
        huggingface_hub.utils.close_session()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    seconds: list[float] = []
    monkeypatch.setattr("lastword.weights.hub.time.sleep", seconds.append)
    return seconds


def read(name: str = "org/model", **options: Any) -> Factors:
    return read_invariant(name, theta=Theta(), **options)


def refusal(name: str = "org/model", **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def kept(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in tmp_path.glob("cache/**/*") if p.is_file())


def test_five_tensors_and_headers_are_all_that_is_fetched(
    hub: hub_server.Hub, tmp_path: Path
) -> None:
    """Real widths, so that the tensors outweigh the headers as they do in a real checkpoint."""
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
    found = read()
    files = sorted(hub.folder.glob("*.safetensors"))
    headers = sum(8 + int.from_bytes(f.read_bytes()[:8], "little") for f in files)
    needed = sum(tensors[name].nbytes for name in found.tensors)
    served = sum(count for file, count in hub.served.items() if file.endswith(".safetensors"))
    assert len(found.tensors) == 5
    assert needed < served <= 1.02 * needed + headers
    assert served < 0.2 * sum(f.stat().st_size for f in files)
    assert found.value == read_invariant(hub.folder, theta=Theta()).value


def test_one_file_without_an_index(hub: hub_server.Hub, tmp_path: Path) -> None:
    hub.folder = planted.write(tmp_path / "single", LLAMA.config, LLAMA.tensors())
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)


def test_a_mirror_that_serves_files_itself(hub: hub_server.Hub) -> None:
    hub.large = ()
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)


def test_a_revision_and_then_its_commit_are_asked_for(hub: hub_server.Hub) -> None:
    read(revision="v2")
    paths = [path for role, path, _, _ in hub.requests if role == "hub"]
    assert paths[0] == "/org/model/resolve/v2/config.json"
    assert all(f"/resolve/{hub.commit}/" in path for path in paths[1:])


def test_the_token_goes_to_the_hub_alone(hub: hub_server.Hub) -> None:
    hub.token = "hf_secret"
    assert read(token="hf_secret").value == pytest.approx(LLAMA.invariant, **EXACT)
    seen = {role: {t for r, _, _, t in hub.requests if r == role} for role in ("hub", "store")}
    assert seen == {"hub": {"Bearer hf_secret"}, "store": {None}}


def test_the_token_may_come_from_the_environment(
    hub: hub_server.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)


def test_busy_answers_are_waited_for(hub: hub_server.Hub, waits: list[float]) -> None:
    hub.busy, hub.retry_after = 3, "7"
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert waits == [7.0, 7.0, 7.0]


def test_busy_without_a_time_backs_off(hub: hub_server.Hub, waits: list[float]) -> None:
    hub.busy, hub.retry_after = 3, None
    read()
    assert waits == [1.0, 2.0, 4.0]


def test_busy_for_ever_is_refused(hub: hub_server.Hub, waits: list[float], tmp_path: Path) -> None:
    hub.busy = 1000
    assert "in 6 attempts (it is busy: status 429)" in refusal()
    assert len(waits) == 5 and kept(tmp_path) == []


def test_busy_for_too_long_is_refused_at_once(hub: hub_server.Hub, waits: list[float]) -> None:
    hub.busy, hub.retry_after = 1, "4000"
    assert "asks to wait 4000 s" in refusal()
    assert waits == []


def test_dropped_connections_go_on_where_they_broke_off(
    hub: hub_server.Hub, waits: list[float]
) -> None:
    read()
    whole = sum(hub.served.values())
    hub.served.clear()
    hub.commit, hub.drop = "f" * 40, 4
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert hub.drop == 0 and len(waits) == 4
    assert sum(hub.served.values()) == whole


def test_a_line_that_always_drops_ends_with_nothing_kept(
    hub: hub_server.Hub, waits: list[float], tmp_path: Path
) -> None:
    hub.mute = (".safetensors",)
    assert "did not give model-0000" in refusal()
    assert len(waits) == 5
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "name", "words"),
    [
        ({"gated": True}, "org/model", "gated (403)"),
        ({"token": "x"}, "org/model", "gated (401)"),
        ({}, "org/other", "does not exist"),
        ({"status": 404}, "org/model", "neither a folder here nor a model"),
        ({"status": 410}, "org/model", "answers 410 for config.json"),
    ],
)
def test_refusals_say_what_to_do(
    state: dict[str, Any], name: str, words: str, hub: hub_server.Hub, tmp_path: Path
) -> None:
    for key, value in state.items():
        setattr(hub, key, value)
    message = refusal(name)
    assert words in message
    assert ("log in" in message) == ("gated" in words or "exist" in words)
    assert len(hub.requests) == 1 and kept(tmp_path) == []


def test_a_model_that_is_not_there_with_a_login(hub: hub_server.Hub) -> None:
    assert "org/other is neither a folder here nor a model" in refusal("org/other", token="t")


def test_an_unknown_revision_is_named(hub: hub_server.Hub) -> None:
    assert "org/model has no revision v9" in refusal(revision="v9")


def test_a_bad_token_is_told_to_log_in(hub: hub_server.Hub) -> None:
    hub.token = "hf_secret"
    assert "log in" in refusal(token="hf_wrong")


def test_a_model_without_safetensors_is_to_be_downloaded(
    hub: hub_server.Hub, tmp_path: Path
) -> None:
    hub.folder = tmp_path / "pickled"
    hub.folder.mkdir()
    (hub.folder / "config.json").write_text(json.dumps(LLAMA.config))
    (hub.folder / "pytorch_model.bin").write_bytes(b"x")
    assert "no safetensors" in refusal()


def test_a_server_without_ranges_is_not_let_send_everything(hub: hub_server.Hub) -> None:
    hub.ranges = False
    assert "does not serve byte ranges" in refusal()


def test_a_file_that_ends_too_early(hub: hub_server.Hub, waits: list[float]) -> None:
    for file in hub.folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    assert "cut short" in refusal()
    assert waits == []


def test_no_server_at_all(
    hub: hub_server.Hub, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 did not give config.json" in refusal()


def test_a_value_is_kept_by_commit(hub: hub_server.Hub, tmp_path: Path) -> None:
    first = read()
    count = len(hub.requests)
    assert len(kept(tmp_path)) == 1 and kept(tmp_path)[0].startswith(hub_server.COMMIT)
    assert read() == first
    assert [path for _, path, _, _ in hub.requests[count:]] == [
        "/org/model/resolve/main/config.json"
    ]
    count = len(hub.requests)
    assert read(revision=hub_server.COMMIT) == first
    assert len(hub.requests) == count


def test_the_same_name_at_another_commit_is_read_anew(hub: hub_server.Hub, tmp_path: Path) -> None:
    first = read()
    tensors = LLAMA.tensors()
    tensors[LLAMA.norm] *= 2
    planted.write(hub.folder, LLAMA.config, tensors, shards=SHARDS)
    hub.commit = "f" * 40
    assert read().value == pytest.approx(2 * first.value, **EXACT)
    assert len(kept(tmp_path)) == 2


def test_other_constants_are_another_value(hub: hub_server.Hub, tmp_path: Path) -> None:
    read()
    other = read_invariant("org/model", theta=Theta.from_dict({"invariant": {"block": "depth"}}))
    assert other.blocks == (0, 1) and len(kept(tmp_path)) == 2


def test_without_a_commit_nothing_is_kept(hub: hub_server.Hub, tmp_path: Path) -> None:
    hub.commit = None
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert kept(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"blocks": 3}'])
def test_a_damaged_kept_value_is_read_again(text: str, hub: hub_server.Hub, tmp_path: Path) -> None:
    first = read()
    (file,) = tmp_path.glob("cache/**/*.json")
    whole = file.read_text()
    file.write_text(text)
    assert read() == first
    assert file.read_text() == whole


def test_a_write_that_fails_leaves_no_half_file(
    hub: hub_server.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert kept(tmp_path) == []


def test_what_was_downloaded_is_read_in_place_of_the_hub(
    hub: hub_server.Hub, tmp_path: Path
) -> None:
    snapshot = tmp_path / "hf" / "models--org--model" / "snapshots" / hub_server.COMMIT
    planted.write(snapshot, LLAMA.config, LLAMA.tensors())
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert set(hub.served) == {"config.json"}


def test_where_nobody_answers_it_is_soon_said(
    hub: hub_server.Hub, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.socket()) as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        said = refusal()
        assert "in 3 attempts" in said and "lastword get smollm2-135m" in said
        assert waits == [1.0, 2.0]
        with pytest.raises(UnreachableError):
            find_commit("org/model", None)
        folder = tmp_path / "hf" / "models--org--model"
        planted.write(folder / "snapshots" / hub_server.COMMIT, LLAMA.config, LLAMA.tensors())
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(hub_server.COMMIT)
        assert find_commit("org/model", None) == hub_server.COMMIT


def test_offline_reads_the_download_or_says_so(
    hub: hub_server.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal()
    folder = tmp_path / "hf" / "models--org--model"
    planted.write(folder / "snapshots" / hub_server.COMMIT, LLAMA.config, LLAMA.tensors())
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(hub_server.COMMIT)
    assert read().value == pytest.approx(LLAMA.invariant, **EXACT)
    assert hub.requests == []


def test_a_folder_comes_before_the_hub(
    hub: hub_server.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("org")
    planted.write(Path("org/model"), LLAMA.config, LLAMA.tensors())
    read()
    assert hub.requests == []


def test_ranges_are_exactly_what_was_asked(hub: hub_server.Hub) -> None:
    file = next(hub.folder.glob("*.safetensors"))
    files = HubFiles("org/model", None, None)
    assert files.read(file.name, 3, 11) == file.read_bytes()[3:11]
    assert files.read("config.json") == (hub.folder / "config.json").read_bytes()
    assert files.read("absent.json") is None
