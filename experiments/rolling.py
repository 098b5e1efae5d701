"""Stock clients during rolling restarts of two services behind haproxy.

    OMP_NUM_THREADS=1 python experiments/rolling.py [--model lastword/demo-organism] [--seconds 60]

OpenAI's, Google's and TypeSafe's clients, from `make clients`, with default settings, send one
question after the other. The services, behind deploy/haproxy.cfg, are stopped by SIGTERM and
started again in turn, as soon as the other one answers. A client ends at an error that it does not
retry. The result goes to experiments/results/rolling.MODEL.json.
"""

import argparse
import json
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from attacks import RESULTS, ROOT, balanced
from serving import serving

PYTHON = ROOT / ".venv-clients" / "bin" / "python"
ASK = """
import sys, time
url, model, until = sys.argv[1], sys.argv[2], time.time() + float(sys.argv[3])
TEAMS, TEXT = ["billing", "returns", "shipping"], "My parcel is not here."
"""
LOOP = """
count, longest = 0, 0.0
while time.time() < until:
    begun = time.time()
    ask()
    count, longest = count + 1, max(longest, time.time() - begun)
print(count, longest)
"""
CLIENTS = {
    "openai": """
from openai import OpenAI
client = OpenAI(base_url=url + "/v1", api_key="none")
options = [{"value": team} for team in TEAMS]
questions = [{"type": "choice", "instructions": "Which team?", "choices": options}]
def ask(): client.decisions.create(model=model, input=TEXT, questions=questions)
""",
    "google-genai": """
from google import genai
from google.genai import types
options = types.HttpOptions(base_url=url)
client = genai.Client(api_key="none", http_options=options)
team = {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(TEAMS, "")}
def ask(): client.decisions.create(model="models/" + model, input=TEXT, questions={"team": team})
""",
    "typesafe-sdk": """
from typesafe_sdk import Choice, TypeSafeClient
client = TypeSafeClient(api_key="none", base_url=url)
team = Choice(instructions="Which team?", criteria=dict.fromkeys(TEAMS))
def ask(): client.system_one(state=TEXT, questions={"team": team})
""",
}


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def count_answers(url: str) -> float:
    """Return the number of decisions that a service has answered since its start."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    metric = 'lastword_requests_total{route="/v1/decisions",status="200"}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))


def start_client(name: str, url: str, model: str, seconds: float) -> "subprocess.Popen[str]":
    """Start a client that sends questions for some seconds."""
    command = [str(PYTHON), "-c", ASK + CLIENTS[name] + LOOP, url, model, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(client: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return a client's result after it has ended."""
    out, error = client.communicate()
    if client.returncode:
        return {"ended": error.strip().splitlines()[-1]}
    count, longest = out.split()
    return {"answers": int(count), "longest_seconds": round(float(longest), 2)}


def main() -> None:
    """Restart in turn while clients send questions; print the result of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="lastword/demo-organism")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    services = [ExitStack(), ExitStack()]
    for stack, port in zip(services, ports, strict=True):
        stack.enter_context(serving(options.model, "--port", str(port)))
    results: dict[str, Any] = {"seconds": options.seconds, "restarts": 0}
    with balanced(*urls) as front:
        until = time.monotonic() + options.seconds
        clients = {
            name: start_client(name, front, options.model, options.seconds) for name in CLIENTS
        }
        while time.monotonic() < until:
            for stack, port, url in zip(services, ports, urls, strict=True):
                stack.close()
                stack.enter_context(serving(options.model, "--port", str(port)))
                results["restarts"] += 1
                while not count_answers(url) and time.monotonic() < until:
                    time.sleep(0.1)
        results |= {name: result_of(client) for name, client in clients.items()}
    for stack in services:
        stack.close()
    path = RESULTS / f"rolling.{Path(options.model).name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
