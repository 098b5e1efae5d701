"""Waits of a client with short questions beside one that sends long texts.

    OMP_NUM_THREADS=1 python experiments/long_texts.py [--tokens 8000 3000] [--source FOLDER]

Both ask a `lastword serve`, one request after the other. For each length there is a line with the
short client's number of answers, median and 99th percentile without and with the other, the
statuses of both, and the growth of the service's memory. With `--source FOLDER` the service is that
of another checkout's `src`. The output is kept in dev/LOG.md.
"""

import argparse
import os
import time
from collections import Counter
from contextlib import suppress
from threading import Event, Thread

import httpx
import numpy as np
import psutil
from serving import serving

WORDS = "the folk of the north send clay lamps and wool over the cold lake in small boats "
SHORT = {"text": "Where do the lamps go?", "options": ["north", "south", "over the lake"]}
MEGABYTE = 2**20


class Client(Thread):
    """Sends one request after the other until `end` is set."""

    def __init__(self, url: str, text: str, end: Event) -> None:
        super().__init__()
        self._url, self._text, self._end = url, text, end
        self.statuses: Counter[str] = Counter()
        self.waits: list[float] = []

    def run(self) -> None:
        """Send requests; each has another beginning, so that no cache knows it."""
        with httpx.Client(base_url=self._url, timeout=120, trust_env=False) as http:
            while not self._end.is_set():
                text = f"{time.monotonic_ns()} {self._text}"
                body = {"prompt": text, "candidates": SHORT["options"]}
                start = time.monotonic()
                try:
                    status = str(http.post("/v1/correct", json=body).status_code)
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


def spans(client: Client) -> str:
    """Return the median and the 99th percentile of a client's waits."""
    middle, late = np.quantile(client.waits, (0.5, 0.99))
    return f"{len(client.waits)} answers, p50 {middle:.2f} s, p99 {late:.2f} s"


def measure(url: str, process: psutil.Process, tokens: int, seconds: float) -> None:
    """Print the waits of the short client without and with long texts of so many tokens."""
    end = Event()
    quiet = Client(url, str(SHORT["text"]), end)
    before = run([quiet], end, seconds / 2, process)
    end = Event()
    short = Client(url, str(SHORT["text"]), end)
    long = Client(url, WORDS * (tokens // 17), end)
    after = run([short, long], end, seconds, process)
    print(f"{tokens} tokens")
    print(f"  quiet:  {spans(quiet)}")
    print(f"  beside: {spans(short)}; {dict(short.statuses)}")
    print(f"  long:   {spans(long)}; {dict(long.statuses)}")
    print(f"  memory: {before / MEGABYTE:.0f} MB, then {after / MEGABYTE:.0f} MB", flush=True)


def main() -> None:
    """Measure each length in one service."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lastword/smollm2-135m")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8000, 3000, 1500])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--source", help="folder of another checkout's src")
    args = parser.parse_args()
    if args.source:
        os.environ["PYTHONPATH"] = args.source
    with serving(args.model) as (url, process):
        for tokens in args.tokens:
            measure(url, process, tokens, args.seconds)


if __name__ == "__main__":
    main()
