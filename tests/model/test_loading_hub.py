"""Models loaded in a separate process from a stand-in hub on this machine."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import hub_server
import pytest
from families import save
from forked import Forks

pytestmark = pytest.mark.slow

DESCRIBE = """
import json, sys
from lastword import Tracer
print(json.dumps(Tracer.from_pretrained("org/model", revision=sys.argv[1] or None).describe()))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[hub_server.Hub]:
    with hub_server.serve(save(tmp_path / "files")) as served:
        yield served


@pytest.fixture
def run(hub: hub_server.Hub, forks: Forks) -> Callable[..., CompletedProcess[str]]:
    """Return a function that runs Python with the stand-in hub and separate caches."""
    root = hub.folder.parent
    inherited = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    caches = {"HF_HOME": str(root / "hf"), "LASTWORD_CACHE": str(root / "i")}

    def call(*command: str, **environment: str) -> CompletedProcess[str]:
        defaults = inherited | caches | {"HF_ENDPOINT": hub.url}
        return forks.run(*command, env=defaults | environment)

    return call


def correct(*more: str) -> tuple[str, ...]:
    answers = ("--candidate", "w7", "--candidate", "w8 w9")
    return "-m", "lastword", "correct", "--model", "org/model", "--prompt", "w4", *answers, *more


@pytest.mark.parametrize("revision", ["", "v2"])
def test_all_files_come_from_one_recorded_commit(run, hub, revision):
    result = run("-c", DESCRIBE, revision)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["revision"] == hub_server.COMMIT
    files = [path.split("/resolve/")[1] for _, path, *_ in hub.requests if "/resolve/" in path]
    elsewhere = {file for file in files if not file.startswith(hub_server.COMMIT)}
    # One file is requested by branch: its response names the commit.
    assert elsewhere == {f"{revision or 'main'}/config.json"} and len(files) > 4


def test_hf_token_opens_a_gated_model(run, hub):
    hub.token = "hf_secret"
    opened = run(*correct("--json"), HF_TOKEN="hf_secret")
    assert opened.returncode == 0, opened.stderr
    files = [(role, token) for role, path, _, token in hub.requests if "/api/" not in path]
    assert set(files) == {("hub", "Bearer hf_secret"), ("store", None)}, hub.requests
    assert "hf_secret" not in opened.stdout + opened.stderr


def test_a_download_in_hf_home_is_enough_offline(run, hub, tmp_path):
    place = str(tmp_path / "elsewhere")
    online = run(*correct("--json"), HF_HOME=place)
    assert online.returncode == 0, online.stderr
    assert list(Path(place).rglob("model.safetensors"))
    assert not (hub.folder.parent / "hf").exists()  # the default of `run` is not used
    requests = len(hub.requests)
    offline = run(*correct("--json"), HF_HOME=place, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout) == json.loads(online.stdout)
    assert len(hub.requests) == requests
    empty = run(*correct("--json"), HF_HOME=place + "-empty", HF_HUB_OFFLINE="1")
    assert empty.returncode == 1 and "HF_HUB_OFFLINE is set" in empty.stderr
