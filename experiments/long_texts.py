"""Waits of clients with short questions beside clients that send long texts.

    OMP_NUM_THREADS=1 python experiments/long_texts.py [--tokens 8000 3000] [--short 4] [--long 2]

All ask a `lastword serve`, each one request after the other. For each length there is a line with
the short clients' number of answers, median and 99th percentile without and with the others, the
statuses of both, and the growth of the service's memory. With `--probe` a probe reads the long
texts. With `--source FOLDER` the service is that of another checkout's `src`. The output is kept in
dev/LOG.md.
"""

import argparse
import os
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import psutil
from serving import serving

from lastword import ProbeClassifier, Tracer

WORDS = "the folk of the north send clay lamps and wool over the cold lake in small boats "
SHORT, OPTIONS = "Where do the lamps go?", ["north", "south", "over the lake"]
TOPIC, TOPICS = "What is it about?", ["animal", "money"]
LABELLED = ["the red fox runs", "a cat sleeps here", "pay the bill now", "the invoice is late"]
MEGABYTE = 2**20


class Client(Thread):
    """Sends one request after the other until `end` is set."""

    def __init__(self, url: str, text: str, end: Event, probed: str | None = None) -> None:
        super().__init__()
        self._url, self._text, self._end, self._probed = url, text, end, probed
        self.statuses: Counter[str] = Counter()
        self.waits: list[float] = []

    def run(self) -> None:
        """Send requests; each has another beginning, so that no cache knows it."""
        with httpx.Client(base_url=self._url, timeout=120, trust_env=False) as http:
            while not self._end.is_set():
                text = f"{time.monotonic_ns()} {self._text}"
                path = "/v1/correct"
                body: dict[str, Any] = {"prompt": text, "candidates": OPTIONS}
                if self._probed is not None:
                    question = {"type": "choice", "instructions": TOPIC, "choices": TOPICS}
                    body = {"input": text, "questions": [question], "model": self._probed}
                    path = "/v1/decisions"
                start = time.monotonic()
                try:
                    status = str(http.post(path, json=body).status_code)
                except httpx.HTTPError as error:
                    status = type(error).__name__
                self.statuses[status] += 1
                self.waits.append(time.monotonic() - start)
                self._end.wait(0.05)


def run(clients: list[Client], end: Event, seconds: float, process: psutil.Process) -> int:
    """Let clients send for a time, and return the service's largest memory."""
    most, latest = 0, time.monotonic() + seconds
    for client in clients:
        client.start()
    while time.monotonic() < latest:
        with suppress(psutil.Error):
            most = max(most, process.memory_info().rss)
        time.sleep(0.1)
    end.set()
    for client in clients:
        client.join()
    return most


def spans(clients: list[Client]) -> str:
    """Return the median and the 99th percentile of the clients' waits, and their statuses."""
    waits = [wait for client in clients for wait in client.waits]
    statuses = sum((client.statuses for client in clients), Counter[str]())
    middle, late = np.quantile(waits, (0.5, 0.99))
    return f"{len(waits)} answers, p50 {middle:.2f} s, p99 {late:.2f} s; {dict(statuses)}"


def measure(url: str, process: psutil.Process, texts: list[str], args: argparse.Namespace) -> None:
    """Print the waits of the short clients without and with those that send the long texts."""

    end = Event()
    quiet = [Client(url, SHORT, end) for _ in range(args.short)]
    before = run(quiet, end, args.seconds / 2, process)
    end, probed = Event(), args.model if args.probe else None
    short = [Client(url, SHORT, end) for _ in range(args.short)]
    long = [Client(url, text, end, probed) for text in texts]
    after = run([*short, *long], end, args.seconds, process)
    print(f"  quiet:  {spans(quiet)}")
    print(f"  beside: {spans(short)}")
    print(f"  long:   {spans(long)}")
    print(f"  memory: {before / MEGABYTE:.0f} MB, then {after / MEGABYTE:.0f} MB", flush=True)


def write_probe(model: str, path: Path) -> None:
    """Write a probe for the topic of a text."""
    labels = [TOPICS[0]] * 2 + [TOPICS[1]] * 2
    tracer = Tracer.from_pretrained(model)
    ProbeClassifier(tracer, TOPIC).fit(LABELLED, labels).probe_.write(path)


def main() -> None:
    """Measure each length in one service."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lastword/smollm2-135m")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8000, 3000, 1500])
    parser.add_argument("--short", type=int, default=1, help="number of clients")
    parser.add_argument("--long", type=int, default=1, help="number of clients")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--source", help="folder of another checkout's src")
    args = parser.parse_args()
    if args.source:
        os.environ["PYTHONPATH"] = args.source
    with TemporaryDirectory() as folder, ExitStack() as stack:
        options = list[str]()
        if args.probe:
            write_probe(args.model, path := Path(folder) / "topic.probe.safetensors")
            options = ["--probe", str(path)]
        url, process = stack.enter_context(serving(args.model, *options))
        for tokens in args.tokens:
            print(f"{tokens} tokens")
            measure(url, process, [WORDS * (tokens // 17)] * args.long, args)


if __name__ == "__main__":
    main()
