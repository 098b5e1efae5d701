"""Deployment files agree with the service, and the Space starts and answers."""

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from installation import COMMAND, environment, isolated

from lastword.service.guard import PROBES
from lastword.service.ledger import Ledger
from lastword.service.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
PAGE = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
# Duration of a shutdown after the deadline, as on the page of the service.
LAST_SECONDS = 6 + Settings().drain_seconds
BODY = {
    "prompt": "Question: Which goods come from Baevwick? Answer:",
    "candidates": ["green wool combs", "pale cedar boats", "clay lamps"],
}


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


DEPLOYMENT, SERVICE, CLAIM = yaml.safe_load_all(read("kubernetes.yaml"))
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_probes_of_kubernetes_are_routes_of_the_service():
    probes = {
        name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert {get["path"] for get in probes.values()} <= PROBES
    assert probes["readiness"]["path"] == "/readyz"
    (port,) = CONTAINER["ports"]
    assert {get["port"] for get in probes.values()} == {port["name"]}
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels


def test_a_stop_waits_until_every_request_is_answered():
    compose = yaml.safe_load(read("compose.yaml"))["services"]["lastword"]
    (unit,) = re.findall(r"TimeoutStopSec=(\d+)", read("lastword.service"))
    waits = [POD["terminationGracePeriodSeconds"], compose["stop_grace_period"].rstrip("s"), unit]
    assert min(map(int, waits)) > Settings().deadline_seconds + LAST_SECONDS


def test_environment_variables_of_deployments_are_options_of_serve():
    from typer.main import get_command

    from lastword.cli import app

    texts = [PAGE, *(p.read_text(encoding="utf-8") for p in DEPLOY.glob("*.*") if p.is_file())]
    named = {n for text in texts for n in re.findall(r"LASTWORD_SERVE_([A-Z_]+)", text)}
    commands: Any = get_command(app)
    serve = commands.commands["serve"]
    flags = {flag for option in serve.params for flag in option.opts}
    assert {"MODEL", "CERTIFICATE", "STATE"} <= named
    assert [n for n in named if f"--{n.lower().replace('_', '-')}" not in flags] == []


@pytest.mark.slow
def test_the_image_can_be_built_from_the_files_that_it_copies(tmp_path):
    context, output = tmp_path / "context", tmp_path / "output"
    context.mkdir()
    for line in re.findall(r"^COPY (?!--)(.+)$", read("Dockerfile"), re.MULTILINE):
        *sources, _ = line.split()
        for name in sources:
            source = REPOSITORY / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, context / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    subprocess.run(command, cwd=context, check=True, capture_output=True)
    (wheel,) = output.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(output / "wheel")
    (site := output / "site").mkdir()
    (extras,) = re.findall(r"'\.\[(.+)\]'", read("Dockerfile"))
    environment(output / "wheel", site, *extras.split(","))
    words = re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", read("Dockerfile"), re.MULTILINE)
    (program, *entry), command = map(json.loads, words)
    assert program == "lastword"
    with serving(isolated(site, COMMAND, *entry, *command), tmp_path, LASTWORD_TOKEN="a" * 32) as c:
        assert c.get("/v1/models").status_code == 401
        c.headers["authorization"] = f"Bearer {'a' * 32}"
        assert c.post("/v1/correct", json=BODY).json()["answer"] == "pale cedar boats"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "lastword.service"
    there = read("lastword.service").replace("/opt/lastword/bin/lastword", sys.executable)
    unit.write_text(there, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_state_file_can_be_backed_up_only_after_the_service_has_ended(tmp_path):
    """Before that it is locked, and new entries are in a separate file."""
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    ledger = Ledger(path, "fingerprint", items=10, seconds=10.0)
    assert (tmp_path / "state.db-wal").stat().st_size > 0
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        _back_up(path, copy)
    ledger.close()
    _back_up(path, copy)
    assert not (tmp_path / "state.db-wal").exists()
    restored = Ledger(copy, "fingerprint", items=10, seconds=10.0)
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
    here = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}
    proxied = {"host": "me.hf.space", "origin": "https://me.hf.space"}
    proxied |= {"x-forwarded-proto": "https"}
    with serving([sys.executable, str(tmp_path / "app.py")], tmp_path, **here) as client:
        client.headers.update(proxied)
        page = client.get("/")
        decision = client.post("/v1/correct", json=BODY).json()
    assert page.status_code == 200 and "x-frame-options" not in page.headers
    assert (
        "frame-ancestors 'self' https://huggingface.co;"
        in (page.headers["content-security-policy"])
    )
    assert decision["answer"] == "pale cedar boats"
    assert (package / "__pycache__").is_dir()  # the copy next to the app runs


@contextmanager
def serving(command: list[str], folder: Path, **variables: str) -> Iterator[httpx.Client]:
    """Start a service in a folder on a free port, and yield a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ports = {"PORT": port, "LASTWORD_SERVE_PORT": port, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | ports | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        ) as client:
            wait_for(client, process)
            yield client
    finally:
        process.kill()
        process.wait()


def wait_for(client: httpx.Client, process: subprocess.Popen) -> None:
    latest = time.monotonic() + 120
    while time.monotonic() < latest:
        assert process.poll() is None, "the service ended"
        try:
            client.get("/readyz")
            return
        except httpx.ConnectError:
            time.sleep(0.2)
    raise AssertionError("the service did not start")
