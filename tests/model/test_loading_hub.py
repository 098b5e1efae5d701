"""A model loaded in a separate process from a stand-in hub on this machine."""

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
def describe(hub: hub_server.Hub, forks: Forks) -> Callable[..., CompletedProcess[str]]:
    """Return a function that loads the model with the stand-in hub and separate caches."""
    kept = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    caches = {"HF_HOME": str(hub.folder.parent / "hf"), "LASTWORD_CACHE": str(hub.folder / "i")}
    env = kept | caches | {"HF_ENDPOINT": hub.url}
    return lambda revision, **more: forks.run("-c", DESCRIBE, revision, env=env | more)


@pytest.mark.parametrize("revision", ["", "v2"])
def test_all_files_come_from_one_recorded_commit_and_are_enough_offline(describe, hub, revision):
    online = describe(revision)
    assert online.returncode == 0, online.stderr
    described = json.loads(online.stdout)
    assert described["revision"] == hub_server.COMMIT
    files = [path.split("/resolve/")[1] for _, path, *_ in hub.requests if "/resolve/" in path]
    elsewhere = {file for file in files if not file.startswith(hub_server.COMMIT)}
    # One file is requested by branch: its response names the commit.
    assert elsewhere == {f"{revision or 'main'}/config.json"} and len(files) > 4
    hub.requests.clear()
    offline = describe(revision, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout) == described and not hub.requests
    empty = describe(revision, HF_HUB_OFFLINE="1", HF_HOME=str(hub.folder / "empty"))
    assert empty.returncode == 1 and "HF_HUB_OFFLINE is set" in empty.stderr
