"""A service under load: 1,000 requests from 32 clients, compared with the library's answers.

    python experiments/load.py [--requests 1000] [--clients 32] [--model lastword/demo-organism]

Starts `lastword serve` twice, with and without batching (`--limits batch_items=1`), sends the same
items of the demo's benchmark, and measures throughput and latency. Before that, a single client is
compared with the library's call, and afterwards a small queue is overfilled and used again. The
result goes to experiments/results/load.json. The script exits with 1 if a request is lost, refused
by a queue with room, or answered with another's result.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from serving import serving

from lastword import Item, Tracer
from lastword.lab import demo

RESULTS = Path(__file__).parent / "results" / "load.json"
TOLERANCE = 1e-3  # nats: other items may change scores by rounding
BAND = 1e-4  # comparisons this near to their threshold may differ (method, section 9)


@dataclass(frozen=True)
class Answer:
    """The response to one request."""

    place: int
    status: int
    body: dict
    seconds: float
    retry_after: str | None


def items_of(count: int) -> list[Item]:
    """Return the demo's items repeated, with distinct ids."""
    items = demo.items()
    return [replace(items[place % len(items)], id=str(place)) for place in range(count)]


async def send(http: httpx.AsyncClient, place: int, item: Item) -> Answer:
    """Send one request and measure its time."""
    body = {"id": item.id, "prompt": item.prompt, "candidates": list(item.candidates)}
    start = time.perf_counter()
    answer = await http.post("/v1/correct", json=body)
    seconds = time.perf_counter() - start
    retry = answer.headers.get("retry-after")
    return Answer(place, answer.status_code, answer.json(), seconds, retry)


async def send_all(url: str, items: list[Item], clients: int) -> tuple[list[Answer], float]:
    """Send all items from so many clients, one request at a time each; return the duration too."""
    waiting = iter(enumerate(items))
    answers: list[Answer] = []

    async def client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
            for place, item in waiting:
                answers.append(await send(http, place, item))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return answers, time.perf_counter() - start


def faults(answers: list[Answer], items: list[Item], expected: list[dict]) -> list[str]:
    """Return the faults in the answers to these items."""
    lines = []
    if sorted(a.place for a in answers) != list(range(len(items))):
        lines.append(f"{len(items)} requests and {len(answers)} answers")
    for a in answers:
        right, body = expected[a.place % len(expected)], a.body
        if a.status != 200 or body["id"] != items[a.place].id:
            lines.append(f"request {a.place}: {a.status} {body}")
        elif not np.allclose(body["base_scores"], right["base_scores"], atol=TOLERANCE, rtol=0):
            lines.append(f"request {a.place}: another's scores")
        elif body["index"] != right["index"] and not near_a_threshold(right):
            lines.append(f"request {a.place}: {body['answer']} for {right['answer']}")
    return lines


def near_a_threshold(decision: dict) -> bool:
    """Return True if a comparison of the rule lies within the rounding band."""
    pairs = [(g["value"], g["threshold"]) for g in decision["gates"].values()]
    return any(isinstance(v, float) and abs(v - t) < BAND for v, t in pairs)


def milliseconds(seconds: list[float], *percents: int) -> dict[str, float]:
    """Return percentiles in milliseconds, by name."""
    values = np.percentile([1000 * s for s in seconds], percents)
    return {f"p{p}_ms": round(float(v), 2) for p, v in zip(percents, values, strict=True)}


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process so far, which does not depend on other processes."""
    times = process.cpu_times()
    return times.user + times.system


def alone(url: str, process: psutil.Process, tracer: Tracer, items: list[Item]) -> dict[str, Any]:
    """Compare one client at a time with the library's call, in turns on the same items.

    Latencies depend on other work on the machine; CPU time does not.
    """
    direct, served = [], []
    here, there, spent = psutil.Process(), cpu_seconds(process), 0.0
    with httpx.Client(base_url=url, trust_env=False) as http:
        for item in items:
            body = {"prompt": item.prompt, "candidates": list(item.candidates)}
            start, before = time.perf_counter(), cpu_seconds(here)
            tracer.correct(item.prompt, item.candidates)
            direct.append(time.perf_counter() - start)
            spent += cpu_seconds(here) - before
            start = time.perf_counter()
            http.post("/v1/correct", json=body).raise_for_status()
            served.append(time.perf_counter() - start)
    library, service = (milliseconds(seconds, 50) for seconds in (direct, served))
    library["cpu_ms"] = round(1000 * spent / len(items), 2)
    service["cpu_ms"] = round(1000 * (cpu_seconds(process) - there) / len(items), 2)
    ratios = {name: round(service[name] / library[name], 2) for name in library}
    return {"library": library, "service": service, "ratio": ratios}


async def overfill(url: str, items: list[Item]) -> dict[str, int]:
    """Send everything at once to a small queue, and one request afterwards."""
    answers, _ = await send_all(url, items, len(items))
    refused = [a for a in answers if a.status == 429]
    assert refused and all(a.retry_after for a in refused), "a full queue names a time to retry"
    assert {a.status for a in answers} == {200, 429}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        after = await send(http, 0, items[0])
    return {"sent": len(answers), "refused_429": len(refused), "status_after": after.status}


def loaded(
    url: str, process: psutil.Process, items: list[Item], clients: int, expected: list[dict]
) -> dict[str, Any]:
    """Send all items from all clients; return rate, latencies, CPU time and number of faults."""
    asyncio.run(send_all(url, items[:20], 4))  # warm
    before = cpu_seconds(process)
    answers, seconds = asyncio.run(send_all(url, items, clients))
    cpu = {"cpu_ms_per_request": round(1000 * (cpu_seconds(process) - before) / len(items), 2)}
    for line in (wrong := faults(answers, items, expected))[:10]:
        print(line, file=sys.stderr)
    rate = {"requests_per_second": round(len(answers) / seconds, 1)}
    times = milliseconds([a.seconds for a in answers], 50, 95, 99)
    return {"requests": len(items), "lost_or_wrong": len(wrong), **rate, **times, **cpu}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both services and the library, and the small queue."""
    tracer = Tracer.demo(options.model.removeprefix("lastword/demo-"))
    items = items_of(options.requests)
    distinct = items[: len(demo.items())]
    expected = [d.to_dict() for d in (tracer.correct(i.prompt, i.candidates) for i in distinct)]
    result: dict[str, Any] = {"clients": options.clients, "cores": os.cpu_count()}
    result["load_average"] = round(os.getloadavg()[0], 1)
    room = ("--limits", f"requests={2 * options.clients}")
    with serving(options.model, *room) as (url, process):
        result["one_client"] = alone(url, process, tracer, items[:100])
        result["together"] = loaded(url, process, items, options.clients, expected)
    with serving(options.model, *room, "--limits", "batch_items=1") as (url, process):
        result["each_alone"] = loaded(url, process, items, options.clients, expected)
    with serving(options.model, "--limits", "requests=8", "--limits", "batch_items=1") as (url, _):
        result["queue_of_8"] = asyncio.run(overfill(url, items[:64]))
    return result


def main() -> None:
    """Measure, print, store, and exit with 1 if an answer is wrong or missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--model", default="lastword/demo-organism")
    options = parser.parse_args()
    result = measure(options)
    print(json.dumps(result, indent=1))
    if any(result[name]["lost_or_wrong"] for name in ("together", "each_alone")):
        sys.exit(1)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
