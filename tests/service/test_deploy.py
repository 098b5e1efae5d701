"""What deploys the service says the same as the service, and the Space starts and answers."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tracelm.service.guard import PROBES
from tracelm.service.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
# Of a shutdown, beyond the deadline, as the service's page has it.
LAST_SECONDS = 4 + Settings().drain_seconds
BODY = {
    "prompt": "Question: Which goods come from Baevwick? Answer:",
    "candidates": ["green wool combs", "pale cedar boats", "clay lamps"],
}


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def test_kubernetes_asks_the_probes_of_the_service():
    deployment, service, _ = yaml.safe_load_all(read("kubernetes.yaml"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    asked = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert {get["path"] for get in asked.values()} <= PROBES
    assert asked["readiness"]["path"] == "/readyz"
    (port,) = container["ports"]
    assert {get["port"] for get in asked.values()} == {port["name"]}
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels


def test_whoever_stops_it_waits_until_all_is_answered():
    pod = next(yaml.safe_load_all(read("kubernetes.yaml")))["spec"]["template"]["spec"]
    compose = yaml.safe_load(read("compose.yaml"))["services"]["tracelm"]
    (unit,) = re.findall(r"TimeoutStopSec=(\d+)", read("tracelm.service"))
    waits = [pod["terminationGracePeriodSeconds"], compose["stop_grace_period"].rstrip("s"), unit]
    assert min(map(int, waits)) > Settings().deadline_seconds + LAST_SECONDS


def test_all_of_them_are_of_one_port_and_one_user():
    dockerfile = read("Dockerfile")
    pod = next(yaml.safe_load_all(read("kubernetes.yaml")))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert f"EXPOSE {container['ports'][0]['containerPort']}" in dockerfile
    assert f":{Settings().port}/readyz" in dockerfile
    assert f"--uid {pod['securityContext']['runAsUser']}" in dockerfile
    assert [m["mountPath"] for m in container["volumeMounts"]][0] == "/models"
    assert "VOLUME /models" in dockerfile and "HF_HOME=/models" in dockerfile


def test_kubernetes_keeps_what_was_fetched():
    deployment, _, claim = yaml.safe_load_all(read("kubernetes.yaml"))
    assert claim["kind"] == "PersistentVolumeClaim" and claim["spec"]["resources"]["requests"]
    volumes = {v["name"]: v for v in deployment["spec"]["template"]["spec"]["volumes"]}
    kept = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert kept == claim["metadata"]["name"]
    # One node's at a time: a rolling update would wait for itself.
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_spaces_card_names_what_is_there():
    card = yaml.safe_load(read("space/README.md").split("---")[1])
    # The kind of Space that runs a Python file; the page itself needs nothing of Gradio.
    assert card["sdk"] == "gradio" and card["sdk_version"]
    assert (DEPLOY / "space" / card["app_file"]).is_file()
    assert len(card["short_description"]) <= 60


@pytest.mark.slow
def test_the_space_starts_and_answers_behind_its_proxy():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, DEPLOY / "space" / "app.py"],
        env=os.environ | {"PORT": str(port), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    proxied = {"host": "me.hf.space", "origin": "https://me.hf.space"}
    proxied |= {"x-forwarded-proto": "https"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            wait_for(client, process)
            client.headers.update(proxied)
            page = client.get("/")
            decision = client.post("/v1/correct", json=BODY).json()
    finally:
        process.kill()
        process.wait()
    assert page.status_code == 200 and "x-frame-options" not in page.headers
    assert (
        "frame-ancestors 'self' https://huggingface.co;"
        in (page.headers["content-security-policy"])
    )
    assert decision["answer"] == "pale cedar boats"


def wait_for(client: httpx.Client, process: subprocess.Popen) -> None:
    latest = time.monotonic() + 120
    while time.monotonic() < latest:
        assert process.poll() is None, "it ended"
        try:
            client.get("/readyz")
            return
        except httpx.ConnectError:
            time.sleep(0.2)
    raise AssertionError("it did not start")
