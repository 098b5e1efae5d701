"""A state can be backed up as docs/operations.md says, and the Space starts and answers."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from served import free_port, wait_until

from lastword.service.ledger import Ledger

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
BODY = {
    "prompt": "Question: Which goods come from Baevwick? Answer:",
    "candidates": ["green wool combs", "pale cedar boats", "clay lamps"],
}


def test_a_state_file_can_be_backed_up_only_after_the_service_has_ended(tmp_path):
    """Before that it is locked, and new entries are in a separate file."""
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    ledger = Ledger(path, "fingerprint", 10)
    assert (tmp_path / "state.db-wal").stat().st_size > 0
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        _back_up(path, copy)
    ledger.close()
    _back_up(path, copy)
    assert not (tmp_path / "state.db-wal").exists()
    restored = Ledger(copy, "fingerprint", 10)
    assert restored.state("certificate") == "fingerprint"
    restored.close()


def _back_up(path: Path, copy: Path) -> None:
    source, target = sqlite3.connect(path, timeout=0), sqlite3.connect(copy)
    try:
        source.execute("SELECT name FROM state")  # the backup alone would wait for ever
        source.backup(target)
    finally:
        source.close()
        target.close()


@pytest.mark.slow
def test_the_space_starts_and_answers_behind_its_proxy(tmp_path):
    shutil.copytree(DEPLOY / "space", tmp_path, dirs_exist_ok=True)
    package = tmp_path / "lastword"
    left = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "src" / "lastword", package, ignore=left)
    port = str(free_port())
    here = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": "", "OMP_NUM_THREADS": "1"}
    variables = os.environ | here | {"PORT": port, "LASTWORD_SERVE_PORT": port}
    proxied = {"host": "me.hf.space", "origin": "https://me.hf.space"}
    proxied |= {"x-forwarded-proto": "https"}
    command = [sys.executable, str(tmp_path / "app.py")]
    with (
        subprocess.Popen(
            command, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client,
    ):
        try:
            wait_until(lambda: is_ready(client), 120.0, pause=0.2)
            client.headers.update(proxied)
            page = client.get("/")
            decision = client.post("/v1/correct", json=BODY).json()
        finally:
            process.kill()
    assert page.status_code == 200 and "x-frame-options" not in page.headers
    policy = page.headers["content-security-policy"]
    assert "frame-ancestors 'self' https://huggingface.co;" in policy
    assert decision["answer"] == "pale cedar boats"
    assert (package / "__pycache__").is_dir()  # the copy next to the app runs


def is_ready(client: httpx.Client) -> bool:
    try:
        return bool(client.get("/readyz"))
    except httpx.ConnectError:
        return False
