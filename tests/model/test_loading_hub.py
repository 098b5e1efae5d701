"""Models loaded from a hub: the stand-in on this machine, asked by a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hub_server
import pytest
from families import build, tokenizer

pytestmark = pytest.mark.slow

DESCRIBE = """
import json, sys
from tracelm import Tracer
print(json.dumps(Tracer.from_pretrained("org/model", revision=sys.argv[1] or None).describe()))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[hub_server.Hub]:
    build("llama").save_pretrained(tmp_path / "files")
    tokenizer().save_pretrained(tmp_path / "files")
    with hub_server.serve(tmp_path / "files") as served:
        yield served


def run(hub: hub_server.Hub, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python command whose hub is the stand-in, with caches of its own."""
    root = hub.folder.parent
    kept = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(root / "hf"), "TRACELM_CACHE": str(root / "i")}
    everything = kept | own | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, env=everything
    )


def correct(*more: str) -> tuple[str, ...]:
    answers = ("--candidate", "w7", "--candidate", "w8 w9")
    return "-m", "tracelm", "correct", "--model", "org/model", "--prompt", "w4", *answers, *more


@pytest.mark.parametrize("revision", ["", "v2"])
def test_everything_comes_from_one_commit_which_is_recorded(hub, revision):
    result = run(hub, "-c", DESCRIBE, revision)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["revision"] == hub_server.COMMIT
    files = [path.split("/resolve/")[1] for _, path, *_ in hub.requests if "/resolve/" in path]
    elsewhere = {file for file in files if not file.startswith(hub_server.COMMIT)}
    # One file is asked for by the branch: what it answers says which commit that is.
    assert elsewhere == {f"{revision or 'main'}/config.json"} and len(files) > 4


def test_what_was_downloaded_is_enough_without_a_hub(hub):
    online = run(hub, *correct("--json"))
    assert online.returncode == 0, online.stderr
    asked = len(hub.requests)
    offline = run(hub, *correct("--json"), HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout) == json.loads(online.stdout)
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    ("refuse", "more", "said"),
    [
        ({"gated": True}, (), "org/model is gated (403)"),
        ({"token": "secret"}, (), "org/model is gated (401)"),
        ({}, ("--revision", "nope"), "org/model has no revision nope"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(hub, refuse, more, said):
    for name, value in refuse.items():
        setattr(hub, name, value)
    result = run(hub, *correct(*more))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"tracelm: {said}") and result.stderr.count("\n") == 1


def test_a_model_that_no_hub_has_is_one_line(hub):
    command = [part.replace("org/model", "org/other") for part in correct()]
    result = run(hub, *command)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "org/other does not exist" in result.stderr


def test_hf_token_opens_a_model_that_asks_for_a_login(hub):
    hub.token = "hf_secret"
    refused = run(hub, *correct("--json"))
    assert refused.returncode == 1 and "set HF_TOKEN" in refused.stderr
    hub.requests.clear()
    opened = run(hub, *correct("--json"), HF_TOKEN="hf_secret")
    assert opened.returncode == 0, opened.stderr
    files = [(role, token) for role, path, _, token in hub.requests if "/api/" not in path]
    assert set(files) == {("hub", "Bearer hf_secret"), ("store", None)}, hub.requests
    assert "hf_secret" not in opened.stdout + opened.stderr


def test_hf_home_is_where_downloads_are_kept_and_found_again(hub, tmp_path):
    place = str(tmp_path / "elsewhere")
    online = run(hub, *correct("--json"), HF_HOME=place)
    assert online.returncode == 0, online.stderr
    assert list(Path(place).rglob("model.safetensors"))
    assert not (hub.folder.parent / "hf").exists()  # what `run` says otherwise
    offline = run(hub, *correct("--json"), HF_HOME=place, HF_HUB_OFFLINE="1")
    assert offline.stdout == online.stdout
    empty = run(hub, *correct("--json"), HF_HOME=place + "-empty", HF_HUB_OFFLINE="1")
    assert empty.returncode == 1 and "HF_HUB_OFFLINE is set" in empty.stderr
