"""Hostile clients of a service, each kind a loop, and honest clients beside them."""

import json
import multiprocessing
import os
import random
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import psutil

MEGABYTE = 2**20
LINES = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}
PATIENCE_SECONDS = 60.0
_NICE = 19  # of hostile clients, so that honest ones do not wait for them on their own side
PAUSE_SECONDS = 0.5  # of an honest client between two questions
GOODS = ("green wool combs", "pale cedar boats", "clay lamps", "salt", "grey iron hooks")
TOWNS = ("Baevwick", "Oru", "Tal", "Merrin", "Kesh", "Hollow", "Varn", "Isk", "Pell", "Dunmoor")
QUESTIONS: list[dict[str, Any]] = [
    {
        "id": str(i),
        "prompt": f"Question: Which goods come from {town}? Answer:",
        "candidates": goods,
    }
    for i, (town, goods) in enumerate(
        (town, [*GOODS[n:], *GOODS[:n]][:3]) for town in TOWNS for n in range(3)
    )
]
ASKS, LABELS = "asks", "labels"  # tokens of those who ask and of those who label
# A clock that goes eight days forward for a second, again and again; labels wait a week.
CLOCK = """
import threading, time
_time, _ahead = time.time, [0.0]
time.time = lambda: _time() + _ahead[0]
def _jump():
    while True:
        time.sleep(4)
        _ahead[0] = 8 * 86400.0
        time.sleep(1)
        _ahead[0] = 0.0
threading.Thread(target=_jump, daemon=True).start()
"""
# One step of a template on which Python itself waits, whatever is asked of its process meanwhile.
TEMPLATE = """
from lastword.tracer import Tracer
opened = Tracer.open.__func__
def hostile(cls, options):
    tracer = opened(cls, options)
    tracer.tokenizer.chat_template = (
        "{% if 'bomb' in messages[0].content %}"
        "{% set n = 7 ** (messages | length * 999999999) %}{% endif %}{{ messages[0].content }}"
    )
    return tracer
Tracer.open = classmethod(hostile)
"""


def _content(**body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


# Made once: what the floods cost here is taken from the service on a machine of few cores.
_RARE = "".join(chr(random.randrange(0x10400, 0x1F000)) for _ in range(30_000))
_WORD = "".join(random.choices("abcdefgh", k=900_000))
_MESSAGES = [{"role": "u", "content": ""}] * 30_000
_LONG = (
    _content(prompt=_RARE, candidates=[f"c{i}" for i in range(64)]),
    _content(prompt=_WORD, candidates=["a", "b"]),
)
_MANY = (
    _content(prompt=_MESSAGES, candidates=["a", "b"]),
    _content(prompt="w", candidates=["w"] * 250_000),
)
_ABOUT = "Which goods come from Baevwick?"
_LETTERS = [f"{a}{b}" for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghij"][:250]
_SYSTEM_ONE = _content(
    model="jev-latest",
    state=_ABOUT,
    questions={
        str(i): {"type": "choice", "criteria": dict.fromkeys(_LETTERS, "")} for i in range(200)
    },
)
_BATCH = b"\n".join(_content(**random.choice(QUESTIONS)) for _ in range(200))


def rare(http: httpx.Client) -> httpx.Response:
    """128 kB of rare characters with 64 candidates, or one word of 900 kB."""
    return http.post("/v1/correct", content=random.choice(_LONG), headers=JSON)


def batches(http: httpx.Client) -> httpx.Response:
    """A batch of 200 items."""
    return http.post("/v1/correct/batch", content=_BATCH, headers=LINES)


def entries(http: httpx.Client) -> httpx.Response:
    """900 kB of 30,000 empty messages, or 250,000 tiny candidates."""
    return http.post("/v1/correct", content=random.choice(_MANY), headers=JSON)


def idle(http: httpx.Client) -> None:
    """600 connections that ask nothing, for two seconds."""
    address = ("127.0.0.1", http.base_url.port)
    raws = []
    with suppress(OSError):
        for _ in range(600):
            raws.append(socket.create_connection(address, timeout=5))  # noqa: PERF401 - kept on error
    time.sleep(2)
    for raw in raws:
        raw.close()


def templates(http: httpx.Client) -> httpx.Response:
    """A conversation on which the checkpoint's chat template has no end."""
    body = {"prompt": [{"role": "user", "content": "bomb"}], "candidates": ["a", "b"]}
    return http.post("/v1/correct", json=body)


def labels(http: httpx.Client) -> httpx.Response:
    """Two labels on one answer by who asks, who would raise the alarm."""
    answer = http.post("/v1/correct", json=random.choice(QUESTIONS))
    label = {"id": answer.json().get("feedback_id") or "none", "right": 2}
    http.post("/v1/feedback", json=label)
    return http.post("/v1/feedback", json=label)


def questions(http: httpx.Client) -> httpx.Response:
    """200 questions of 250 options about one input, or 130 by the other door."""
    if random.random() < 0.5:
        return http.post("/v1/systemone", content=_SYSTEM_ONE, headers=JSON)
    return http.post("/v1/decisions", content=_decisions(str(http.base_url)), headers=JSON)


@cache
def _decisions(url: str) -> bytes:
    """As many questions about the model that a service has as the entries of a body allow."""
    with client(url) as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
    choice = {"type": "choice", "instructions": "", "choices": [{"value": x} for x in _LETTERS]}
    return _content(model=model, input=_ABOUT, questions=[choice] * 120)


def two_lengths(http: httpx.Client) -> None:
    """A body with two lengths, and a second request behind it."""
    head = b"POST /v1/correct HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    lengths = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    address = ("127.0.0.1", http.base_url.port)
    with suppress(OSError), socket.create_connection(address, timeout=20) as raw:
        raw.sendall(head + lengths + head + b"\r\n")
        with suppress(OSError):
            assert b"".join(iter(lambda: raw.recv(65536), b"")).count(b"HTTP/1.1 ") == 1


FLOODS: dict[Callable[[httpx.Client], httpx.Response | None], int] = {  # and how many at a time
    rare: 2,
    batches: 3,
    entries: 2,
    idle: 1,
    templates: 1,
    two_lengths: 1,
    labels: 1,
    questions: 1,
}


@contextmanager
def client(url: str) -> Iterator[httpx.Client]:
    """A client of a service on this machine."""
    with httpx.Client(
        base_url=url,
        timeout=PATIENCE_SECONDS,
        trust_env=False,
        verify=False,
        headers={"authorization": f"Bearer {ASKS}"},
    ) as http:
        yield http


@dataclass
class Watch:
    """What honest clients and probes met, and what the service took of memory.

    Attributes:
        seconds: Of each honest answer.
        cores: Of each honest answer the seconds of processor that the service had meanwhile: its
            wait where the service has one core for itself, however busy the machine is.
        statuses: Of honest requests; `lost` where nothing came.
        labels: Of honest labels, of one answer in four.
        crossed: Answers that were another question's, or another than in quiet.
        probes: Seconds of each probe, on a connection of its own.
        probe_cores: Of each probe the seconds of processor that the service had meanwhile.
        memory: Megabytes of the service, every half second.
        hostile: What floods were told.
        wall: Seconds watched.
        processor: Seconds of processor meanwhile of the service and of its clients.
    """

    seconds: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    crossed: int = 0
    probes: list[float] = field(default_factory=list)
    probe_cores: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    hostile: Counter[str] = field(default_factory=Counter)
    wall: float = 0.0
    processor: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def told(self) -> dict[str, Any]:
        """The figures that are kept."""
        tenths = [part for part in np.array_split(self.memory, 10) if len(part)]
        return {
            "honest": dict(self.statuses),
            "labels": dict(self.labels),
            "crossed": self.crossed,
            "p50_seconds": round(float(np.quantile(self.seconds, 0.5)), 3),
            "p99_seconds": round(float(np.quantile(self.seconds, 0.99)), 3),
            "p50_core_seconds": round(float(np.quantile(self.cores, 0.5)), 3),
            "p99_core_seconds": round(float(np.quantile(self.cores, 0.99)), 3),
            "probe_p99_seconds": round(float(np.quantile(self.probes, 0.99)), 3),
            "probe_p99_core_seconds": round(float(np.quantile(self.probe_cores, 0.99)), 3),
            "memory_mb": {
                "first": round(self.memory[0]),
                "peaks_by_tenths": [round(float(max(part))) for part in tenths],
            },
            "hostile": dict(self.hostile),
            "cores": {who: round(s / self.wall, 2) for who, s in self.processor.items()},
        }


def answers_in_quiet(url: str) -> dict[str, Any]:
    """The right answer of each honest question."""
    with client(url) as http:
        return {q["id"]: http.post("/v1/correct", json=q).json()["answer"] for q in QUESTIONS}


def siege(
    url: str,
    probes: str,
    process: psutil.Process,
    answers: dict[str, Any],
    floods: dict[Callable[[httpx.Client], httpx.Response | None], int],
    seconds: float,
    watch: Watch,
    honest: int = 12,
) -> None:
    """Honest clients, and beside them floods, for a while; `watch` has what they meet.

    The floods have a process of their own, so that honest clients do not share an interpreter.
    """
    stop = Event()
    clock = _clock(process)
    loops: list[Callable[[], None]] = [lambda: _ask(url, answers, clock, watch, stop)] * honest
    loops += [lambda: _probe(probes, clock, watch, stop), lambda: _weigh(process, watch, stop)]
    threads = [Thread(target=loop) for loop in loops]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(os.nice, _NICE).result()
        hostile = pool.submit(_hostile, url, floods, seconds)
        begun = time.perf_counter(), clock(), time.process_time()
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        watch.wall += time.perf_counter() - begun[0]
        watch.processor["service"] += clock() - begun[1]
        watch.processor["honest clients"] += time.process_time() - begun[2]
        stop.set()
        for thread in threads:
            thread.join()
        counts, processor = hostile.result()
    watch.hostile += counts
    watch.processor["hostile clients"] += processor


def _hostile(
    url: str, floods: dict[Callable[[httpx.Client], httpx.Response | None], int], seconds: float
) -> tuple[Counter[str], float]:
    """What floods are told in some seconds, and the seconds of processor that they take."""
    stop, counts, begun = Event(), Counter[str](), time.process_time()
    loops = [flood for flood, count in floods.items() for _ in range(count)]
    threads = [Thread(target=_flood, args=(url, flood, counts, stop)) for flood in loops]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    processor = time.process_time() - begun
    stop.set()
    for thread in threads:
        thread.join()
    return counts, processor


def _clock(process: psutil.Process) -> Callable[[], float]:
    """The processor time of another process, to the microsecond: its clock as Linux numbers it."""
    return lambda: time.clock_gettime(~process.pid << 3 | 2)


def _ask(
    url: str, answers: dict[str, Any], clock: Callable[[], float], watch: Watch, stop: Event
) -> None:
    with client(url) as http:
        while not stop.wait(PAUSE_SECONDS * random.uniform(0.5, 1.5)):
            question, begun = random.choice(QUESTIONS), time.perf_counter()
            core = clock()
            try:
                answer = http.post("/v1/correct", json=question)
            except httpx.HTTPError as error:
                watch.statuses[f"lost: {type(error).__name__}"] += 1
                continue
            watch.seconds.append(time.perf_counter() - begun)
            watch.cores.append(clock() - core)
            watch.statuses[str(answer.status_code)] += 1
            if answer.status_code == 200:
                told = answer.json()
                own = told["id"] == question["id"] and told["answer"] == answers[question["id"]]
                watch.crossed += not own
                if "feedback_id" in told and random.random() < 0.25:
                    watch.labels[_label(http, told)] += 1


def _label(http: httpx.Client, told: dict[str, Any]) -> str:
    """What an honest labeller is told of its label."""
    label = {"id": told["feedback_id"], "right": told["index"]}
    headers = {"authorization": f"Bearer {LABELS}"}
    try:
        return str(http.post("/v1/feedback", json=label, headers=headers).status_code)
    except httpx.HTTPError as error:
        return f"lost: {type(error).__name__}"


def _probe(url: str, clock: Callable[[], float], watch: Watch, stop: Event) -> None:
    while not stop.wait(0.25):
        with client(url) as http:
            begun, core = time.perf_counter(), clock()
            try:
                status = str(http.get("/healthz").status_code)
            except httpx.HTTPError as error:
                status = f"lost: {type(error).__name__}"
            watch.probes.append(time.perf_counter() - begun)
            watch.probe_cores.append(clock() - core)
        if status != "200":
            watch.statuses[f"probe {status}"] += 1


def _weigh(process: psutil.Process, watch: Watch, stop: Event) -> None:
    while not stop.wait(0.5):
        family = [process, *process.children(recursive=True)]
        with suppress(psutil.NoSuchProcess):
            watch.memory.append(sum(one.memory_info().rss for one in family) / MEGABYTE)


def _flood(
    url: str,
    flood: Callable[[httpx.Client], httpx.Response | None],
    counts: Counter[str],
    stop: Event,
) -> None:
    with client(url) as http:
        while not stop.wait(0.2):
            name = flood.__name__
            try:
                answer = flood(http)
            except httpx.HTTPError as error:
                counts[f"{name}: {type(error).__name__}"] += 1
                continue
            if answer is not None:
                counts[f"{name}: {answer.status_code}"] += 1


def stuck_log(url: str, readers: list[psutil.Process]) -> tuple[dict[str, Any], bool]:
    """The reader of the log stops: 500 answers, and what the probe says."""
    for reader in readers:
        reader.suspend()
    try:
        with client(url) as http, ThreadPoolExecutor(4) as pool:
            asks = [pool.submit(http.post, "/v1/correct", json=QUESTIONS[0]) for _ in range(500)]
            statuses = Counter(str(ask.result().status_code) for ask in asks)
            ready = http.get("/readyz").status_code
    finally:
        for reader in readers:
            reader.resume()
    return {"statuses": dict(statuses), "readyz": ready}, set(statuses) == {"200"} and ready == 200
