"""`/v1/decisions` under load: 32 clients of one question set, and the same beside large requests.

    python experiments/deciding.py MODEL [--seconds 40] [--clients 32] [OPTIONS OF SERVE]

Starts `lastword serve`; every client sends a text of its own and the three questions of
`examples/questions.yaml`, one request after another. *Mixed*: every eighth client sends twenty
questions of five options instead, and every eighth a choice among 100. A line is appended to
experiments/results/deciding.jsonl: answers a second, latencies of each kind, the process's CPU.
"""

import argparse
import asyncio
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from serving import serving

RESULTS = Path(__file__).parent / "results" / "deciding.jsonl"
TEXTS = (
    "My parcel is not here.",
    "I paid twice for one lamp.",
    "The lamp flickers since Monday.",
    "Where is the shop?",
)
QUESTIONS: list[dict[str, Any]] = [
    {
        "type": "choice",
        "instructions": "Which team?",
        "choices": [
            {"value": "billing"},
            {"value": "shipping", "description": "where parcels are"},
            {"value": "repairs"},
        ],
    },
    {"type": "predicate", "instructions": "The customer is angry."},
    {
        "type": "score",
        "instructions": "How urgent is it?",
        "levels": [{"label": label} for label in ("can wait", "this week", "today")],
    },
]
FIVE = [{"value": v} for v in ("yes", "no", "perhaps", "later", "never")]
MANY = [{"type": "choice", "instructions": f"Is it {i}?", "choices": FIVE} for i in range(20)]
WORDS = "lamp shop road team week door lake hill boat comb".split()
LONG = [{"value": f"{a} {b}"} for a in WORDS for b in WORDS]
ONE = [{"type": "choice", "instructions": "Which is it?", "choices": LONG}]
KINDS = {"three questions": QUESTIONS, "twenty questions": MANY, "100 options": ONE}


def kind_of(client: int, mixed: bool) -> str:
    """What a client sends."""
    kinds = {6: "twenty questions", 7: "100 options"} if mixed else {}
    return kinds.get(client % 8, "three questions")


async def measure(url: str, clients: int, seconds: float, mixed: bool) -> dict[str, Any]:
    """Requests of so many clients for so long, by their kind."""
    taken, statuses = defaultdict[str, list[float]](list), Counter[str]()
    answers, end = 0, time.perf_counter() + seconds

    async def client(http: httpx.AsyncClient, number: int, model: str) -> None:
        nonlocal answers
        kind, place = kind_of(number, mixed), 0
        while (start := time.perf_counter()) < end:
            place += 1
            text = f"{TEXTS[place % len(TEXTS)]} ({number}, {place})"
            body = {"model": model, "input": text, "questions": KINDS[kind]}
            reply = await http.post(f"{url}/v1/decisions", json=body)
            statuses[str(reply.status_code)] += 1
            if reply.status_code == 200:
                taken[kind].append(time.perf_counter() - start)
                answers += len(reply.json()["answers"])

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(limits=limits, timeout=120.0, trust_env=False) as http:
        model = (await http.get(f"{url}/v1/models")).json()["data"][0]["id"]
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(http, number, model))
        wall = time.perf_counter() - begin
    latencies = {
        kind: {f"p{p}": round(float(np.percentile(own, p)), 3) for p in (50, 99)}
        for kind, own in taken.items()
    }
    requests = {kind: len(own) for kind, own in taken.items()}
    told = {"mixed": mixed, "requests": requests, "statuses": dict(statuses)}
    return told | {"answers_a_second": round(answers / wall, 1), "latency_seconds": latencies}


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--clients", type=int, default=32)
    asked, options = parser.parse_known_args()
    with serving(asked.model, *options) as (url, process):
        for mixed in (False, True):
            before = sum(process.cpu_times()[:2])
            told = asyncio.run(measure(url, asked.clients, asked.seconds, mixed))
            cpu = round(sum(process.cpu_times()[:2]) - before, 1)
            load = round(psutil.getloadavg()[0], 1)
            line = {"model": asked.model, "options": options, "clients": asked.clients}
            line |= told | {"cpu_seconds": cpu, "load": load}
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
