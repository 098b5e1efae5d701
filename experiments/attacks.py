"""Answers to an honest client during attacks, with and without haproxy, and memory use.

    OMP_NUM_THREADS=1 python experiments/attacks.py [--model lastword/demo-organism] [--seconds 30]
    OMP_NUM_THREADS=1 python experiments/attacks.py --together 10 [--model M] [--places bare]
    OMP_NUM_THREADS=1 python experiments/attacks.py --attacks FGS --rounds 5 [--model M]

Each attack of `tests/attackers.py` runs in a separate process against a `lastword serve` with a
token, which the honest client and E have. That client sends one question after the other, without
and with the attack. D is one request; its memory is measured. With `--source FOLDER` the service
is that of another checkout's `src`. The result goes to experiments/results/attacks.MODEL.json.
The script exits with 1 if an honest request, or D, was refused.
With `--rounds N`, measurements without and with the attack alternate N times, `--seconds` each,
for busy machines. Ratios are those of one round, and the median is printed last.

`--together MINUTES` runs five honest clients, each from a separate address, and A, B, C, D and E at
the same time. The attacks restart whenever they end, and run at nice 19, as on separate machines.
An answer is *crossed* if it differs from the one to the same question without attacks.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import psutil
from serving import serving

from lastword.lab.demo import items

ROOT = Path(__file__).resolve().parents[1]
ATTACKERS = ROOT / "tests" / "attackers.py"
RESULTS = Path(__file__).parent / "results"
HANDS = {"A": 4, "B": 540, "C": 12, "E": 4, "F": 2, "G": 2, "S": 50}
CLIENTS = 5  # honest clients, and as many attackers
TOKEN = {"authorization": "Bearer ask"}
MEGABYTE = 2**20


def send_questions(url: str, client: int, until: float, expected: dict[str, str]) -> dict[str, Any]:
    """Send questions until a time; return statuses and waits, and add new answers to `expected`."""
    statuses: Counter[str] = Counter()
    waits, questions = [], items()[client * 50 : client * 50 + 50]
    transport = httpx.HTTPTransport(local_address=f"127.0.0.{client + 2}")
    options: dict[str, Any] = {"base_url": url, "timeout": 60, "trust_env": False}
    with httpx.Client(**options, transport=transport, headers=TOKEN) as http:
        for item in cycle(questions):
            if time.monotonic() > until:
                break
            body = {"prompt": item.prompt, "candidates": list(item.candidates)}
            start = time.monotonic()
            try:
                answer = http.post("/v1/correct", json=body)
                status = str(answer.status_code)
                if status == "200":
                    answer_text = answer.json()["answer"]
                    status = (
                        "200"
                        if expected.setdefault(item.id, answer_text) == answer_text
                        else "crossed"
                    )
            except httpx.HTTPError as error:
                status = type(error).__name__
            statuses[status] += 1
            waits.append(time.monotonic() - start)
    return {"statuses": statuses, "waits": waits}


def honest(
    url: str, seconds: float, expected: dict[str, str] | None = None, clients: int = 1
) -> dict[str, Any]:
    """Run honest clients with different questions; return their rate, waits and statuses."""
    until, answers = time.monotonic() + seconds, {} if expected is None else expected
    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(lambda c: send_questions(url, c, until, answers), range(clients)))
    p50, p99 = np.percentile([wait for result in results for wait in result["waits"]], [50, 99])
    statuses = dict(sum((result["statuses"] for result in results), Counter[str]()))
    rate = statuses.get("200", 0) / seconds
    figures = {"answers_a_second": round(rate, 2), "p50": round(p50, 3), "p99": round(p99, 3)}
    return figures | {"statuses": statuses}


@contextmanager
def attack(name: str, url: str) -> Iterator[None]:
    """Run an attack in a process while the block runs."""
    port = url.rsplit(":", 1)[1]
    command = ["nice", "-n", "19", sys.executable, str(ATTACKERS), name, port, str(HANDS[name])]
    sender = subprocess.Popen(command)
    try:
        yield
    finally:
        sender.kill()
        sender.wait()


@contextmanager
def peak(process: psutil.Process) -> Iterator[dict[str, float]]:
    """Yield the initial memory of a process in MB, and add its peak when the block ends."""
    memory = {"first_mb": process.memory_info().rss / MEGABYTE}
    highest, done = [memory["first_mb"]], Event()

    def watch() -> None:
        while not done.wait(0.02):
            highest.append(process.memory_info().rss / MEGABYTE)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()
        memory["peak_mb"] = max(highest)


@contextmanager
def balanced(*urls: str) -> Iterator[str]:
    """Yield the address of haproxy in front of one or two services, by deploy/haproxy.cfg."""
    (first, *_, last), front = [url.removeprefix("http://") for url in urls * 2], "127.0.0.1:18080"
    environment = {"LASTWORD_FRONT": front, "LASTWORD_A": first, "LASTWORD_B": last}
    command = ["haproxy", "-q", "-f", str(ROOT / "deploy" / "haproxy.cfg")]
    proxy = subprocess.Popen(command, env=os.environ | environment)
    try:
        time.sleep(2)  # for its checks
        yield f"http://{front}"
    finally:
        proxy.kill()
        proxy.wait()


def large(url: str, model: str) -> dict[str, Any]:
    """Send D: forty questions of 250 options with every depth, within the budget of tokens."""
    options = [{"value": str(i)} for i in range(250)]
    question = {"type": "choice", "instructions": "Which?", "choices": options}
    body = {"model": model, "input": "A text.", "questions": [question] * 40}
    body["include"] = ["trajectory"]
    answer = httpx.post(f"{url}/v1/decisions", json=body, headers=TOKEN, timeout=120)
    return {"statuses": {str(answer.status_code): 1}}


def hostile(name: str, url: str, model: str, until: float) -> None:
    """Repeat an attack until a time."""
    while (left := until - time.monotonic()) > 0:
        if name == "D":
            with suppress(httpx.HTTPError):
                large(url, model)
            continue
        port = url.rsplit(":", 1)[1]
        command = ["nice", "-n", "19", sys.executable, str(ATTACKERS), name, port]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*command, str(HANDS[name])], timeout=left)


def together(url: str, process: psutil.Process, model: str, minutes: float) -> dict[str, Any]:
    """Measure honest clients without attacks and with all of them, and the memory."""
    answers: dict[str, str] = {}
    honest(url, 5 * CLIENTS, answers, CLIENTS)  # every question once, as far as the time goes
    result: dict[str, Any] = {"quiet": honest(url, 60, answers, CLIENTS)}
    until = time.monotonic() + 60 * minutes
    with ThreadPoolExecutor(len("ABCDE")) as pool:
        for name in "ABCDE":
            pool.submit(hostile, name, url, model, until)
        first = honest(url, 60, answers, CLIENTS)
        with peak(process) as memory:
            rest = honest(url, until - time.monotonic(), answers, CLIENTS)
    result |= {"the first minute": first, "beside": rest}
    return result | {key: round(value) for key, value in memory.items()}


def in_turns(url: str, name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure an honest client alternately without and with an attack."""
    turns = []
    for _ in range(rounds):
        quiet = honest(url, seconds)
        with attack(name, url):
            beside = honest(url, seconds)
        turns.append({"quiet": quiet, "beside": beside, "ratio": beside["p99"] / quiet["p99"]})
    ratio = float(np.median([turn["ratio"] for turn in turns]))
    medians = {
        f"p99_{key}": float(np.median([turn[key]["p99"] for turn in turns]))
        for key in ("quiet", "beside")
    }
    statuses = dict(sum((Counter(turn["beside"]["statuses"]) for turn in turns), Counter[str]()))
    return {"turns": turns, **medians, "ratio": round(ratio, 2), "beside": {"statuses": statuses}}


def main() -> None:
    """Attack, bare and behind haproxy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="lastword/demo-organism")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--attacks", default="ABCDE")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--together", type=float, metavar="MINUTES", default=0.0)
    parser.add_argument("--places", nargs="+", default=["bare", "haproxy"])
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(options.source)
    results: dict[str, Any] = {}
    for place in options.places:
        for name in ["together"] if options.together else options.attacks:
            more: tuple[str, ...] = ("--token", "ask")
            more += ("--client-header", "x-client") if place == "haproxy" else ()
            with serving(options.model, *more) as (bare, process):
                with balanced(bare) if place == "haproxy" else nullcontext(bare) as url:
                    if name == "together":
                        figures = together(url, process, options.model, options.together)
                        results[f"{name}, {place}"] = figures
                        print(name, place, json.dumps(figures), flush=True)
                        continue
                    if options.rounds:
                        with peak(process) as memory:
                            figures = in_turns(url, name, options.seconds, options.rounds)
                        memory = {key: round(value) for key, value in memory.items()}
                        results[f"{name} in turns, {place}"] = figures | memory
                        print(name, place, json.dumps(figures | memory), flush=True)
                        continue
                    quiet = honest(url, options.seconds / 2)
                    with peak(process) as memory:
                        if name == "D":
                            figures = large(url, options.model)
                        else:
                            with attack(name, url):
                                figures = honest(url, options.seconds)
            memory = {key: round(value) for key, value in memory.items()}
            results[f"{name}, {place}"] = {"quiet": quiet, "beside": figures, **memory}
            print(name, place, json.dumps(results[f"{name}, {place}"]), flush=True)
    path = RESULTS / f"attacks.{options.model.rsplit('/', 1)[-1]}.json"
    if options.source == ROOT / "src":
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | results, indent=1) + "\n")
    sys.exit(any(set(result["beside"]["statuses"]) != {"200"} for result in results.values()))


if __name__ == "__main__":
    main()
