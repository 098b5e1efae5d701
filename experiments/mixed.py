"""The mixed profile of `load.py`: what clients of all kinds meet who ask one service at once.

Each client goes on asking until the time is over, one request after another, of a kind drawn anew:
a correction, a batch, a question, a reranking, a request that is none, or one that it leaves before
the answer. Every answer is held to the library's own, computed beforehand. The service's process
notes from inside how long orders waited for the model, and whose time it was while items and
questions both waited.
"""

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil
from serving import serving

from lastword import Item, Tracer
from lastword.generation.ask import ask
from lastword.generation.sampling import Sampling
from lastword.service.settings import Settings

TOLERANCE = 1e-3  # nats, and probabilities: company may move a score by float noise
BAND = 1e-4  # a comparison this close to its threshold may fall either way (method, section 9)
SHARES = {"correct": 8, "batch": 2, "ask": 1, "rerank": 4, "bad": 3, "leave": 2}
QUESTIONS = 12
SAMPLING = {"k": 4, "max_new_tokens": 16}
MEMORY_SECONDS = 10.0
DEADLINE_SECONDS = Settings().deadline_seconds  # what the service is started with
LINES = {"content-type": "application/x-ndjson"}
# What is sent wrongly, and what should come: path, how, status.
BAD: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/v1/correct", {"json": {"prompt": "?"}}, 422),
    ("/v1/correct", {"json": {"prompt": "?", "candidates": ["a", "b"], "wrong": 1}}, 422),
    ("/v1/correct", {"content": b"{"}, 415),
    ("/v1/correct", {"json": {"prompt": "?", "candidates": [str(i) for i in range(65)]}}, 422),
    ("/v1/correct", {"json": {"prompt": "w " * 30_000, "candidates": ["a", "b"] * 20}}, 413),
    ("/v1/correct/batch", {"content": b"0\n" * 5000, "headers": LINES}, 413),
    ("/v1/correct/batch", {"content": b"0\n[]\n{\n", "headers": LINES}, 422),
    ("/v1/ask", {"json": {"question": "?", "k": 65}}, 422),
    ("/v1/nothing", {"json": {}}, 404),
    ("/healthz", {"json": {}}, 405),
)
# Runs in the service's process: what only the inside knows, written to WAITS when it ends.
NOTING = """
import atexit, json, time
from lastword.service.batching import Batcher
from lastword.service.queues import Queues
noted = {"waited": {"item": [], "ask": []}, "both": {"item": 0.0, "ask": 0.0}}
submit, turn, end = Batcher.submit, Queues.turn, Queues.end
def submitting(self, *order, **more):
    future = submit(self, *order, **more)
    future.submitted = time.monotonic()
    return future
def choosing(self, now):
    orders = turn(self, now)
    self.both = bool(self.items) and bool(self.asks)
    return orders
def accounting(self, first, seconds):
    futures = [order.future for order in self.in_hand]
    end(self, first, seconds)
    begun = time.monotonic() - seconds
    if self.both:
        noted["both"][first.kind] += seconds
    for future in [future for future in futures if not hasattr(future, "begun")]:
        future.begun = begun
        noted["waited"][first.kind].append(max(0.0, begun - getattr(future, "submitted", begun)))
Batcher.submit, Queues.turn, Queues.end = submitting, choosing, accounting
atexit.register(lambda: open(WAITS, "w").write(json.dumps(noted)))
"""


@dataclass(frozen=True)
class Expected:
    """What the library itself answers.

    Attributes:
        items: What is corrected and reranked.
        decisions: The library's, one an item.
        questions: What is asked.
        answers: The library's, one a question.
    """

    items: Sequence[Item]
    decisions: Sequence[dict[str, Any]]
    questions: Sequence[str]
    answers: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, tracer: Tracer, items: Sequence[Item]) -> "Expected":
        """All answers, computed here one by one."""
        decisions = [tracer.correct(i.prompt, i.candidates).to_dict(full=True) for i in items]
        questions = list(dict.fromkeys(_question(item) for item in items))[:QUESTIONS]
        answers = [ask(tracer, q, Sampling(**SAMPLING)).to_dict() for q in questions]
        return cls(items, decisions, questions, answers)


@dataclass
class Seen:
    """What all clients saw.

    Attributes:
        seconds: Of every answer, by kind of request.
        outcomes: How often each kind came out how.
        sent: Requests that were begun.
        crossed: Answers that are not their question's, in words.
        memory: Of the service's process in MB, every ten seconds.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sent: int = 0
    crossed: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """Requests that came to an end, whichever."""
        return sum(sum(kinds.values()) for kinds in self.outcomes.values())


def _question(item: Item) -> str:
    return item.prompt.removeprefix("Question: ").removesuffix(" Answer:")


def wrong(told: dict[str, Any], own: dict[str, Any]) -> str | None:
    """Why an answer is not the question's; None where it is."""
    if told.get("candidates") != own.get("candidates"):  # of a question's answer
        return "other candidates"
    for name, value in (("base_scores", own["base_scores"]), ("scores", own["scores"])):
        if len(told[name]) != len(value):
            return "another's number of candidates"
        if not np.allclose(told[name], value, atol=TOLERANCE, rtol=0) and not _near(own):
            return f"another's {name}"
    if told["index"] != own["index"] and not _near(own):
        return "another choice"
    return None


def _near(decision: dict[str, Any]) -> bool:
    """Whether a comparison of the rule lies within the rounding band."""
    pairs = [(g["value"], g["threshold"]) for g in decision["gates"].values()]
    return any(isinstance(v, float) and abs(v - t) < BAND for v, t in pairs)


class Client:
    """One client, with one request under way at a time.

    Args:
        number: Which of them it is: its seed, and the beginning of its ids.
        http: Its connections.
        expected: The library's answers.
        seen: What all clients saw.
    """

    def __init__(
        self, number: int, http: httpx.AsyncClient, expected: Expected, seen: Seen
    ) -> None:
        self._number, self._http, self._expected, self._seen = number, http, expected, seen
        self._draw = random.Random(number)
        self._sent = 0

    async def ask_until(self, end: float) -> None:
        """Go on until then, by `time.monotonic`."""
        kinds, weights = list(SHARES), list(SHARES.values())
        while time.monotonic() < end:
            (kind,) = self._draw.choices(kinds, weights)
            self._sent += 1
            self._seen.sent += 1
            begun = time.perf_counter()
            outcome = await getattr(self, f"_{kind}")()
            if outcome == "answered":
                self._seen.seconds[kind].append(time.perf_counter() - begun)
            self._seen.outcomes[kind][outcome] += 1

    def _held(self, what: str, fault: str | None) -> str:
        if fault is None:
            return "answered"
        self._seen.crossed.append(f"{what}: {fault}")
        return "crossed"

    def _items(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        """Items by their places, each with an id that no other request has."""
        places = [self._draw.randrange(len(self._expected.items)) for _ in range(count)]
        items = self._expected.items
        return [
            (
                place,
                {
                    "id": f"{self._number}-{self._sent}-{n}",
                    "prompt": items[place].prompt,
                    "candidates": list(items[place].candidates),
                },
            )
            for n, place in enumerate(places)
        ]

    def _fault(self, told: dict[str, Any], place: int, name: str) -> str | None:
        if told.get("id") != name:
            return f"{told.get('id')} for {name}"
        if "error" in told:
            return str(told["error"])
        return wrong(told, self._expected.decisions[place])

    async def _correct(self) -> str:
        ((place, body),) = self._items(1)
        answer = await self._http.post("/v1/correct", json=body)
        if answer.status_code != 200:
            return str(answer.status_code)
        return self._held("correct", self._fault(answer.json(), place, body["id"]))

    async def _batch(self) -> str:
        chosen = self._items(self._draw.randint(2, 24))
        body = {"items": [body for _, body in chosen]}
        answer = await self._http.post("/v1/correct/batch", json=body)
        if answer.status_code != 200:
            return str(answer.status_code)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        if len(lines) != len(chosen):
            return self._held("batch", f"{len(lines)} lines for {len(chosen)} items")
        told = zip(lines, chosen, strict=True)
        faults = [self._fault(line, place, body["id"]) for line, (place, body) in told]
        return self._held("batch", next((fault for fault in faults if fault), None))

    async def _ask(self) -> str:
        place = self._draw.randrange(len(self._expected.questions))
        body = {"question": self._expected.questions[place], **SAMPLING}
        answer = await self._http.post("/v1/ask", json=body)
        if answer.status_code != 200:
            return str(answer.status_code)
        return self._held("ask", wrong(answer.json(), self._expected.answers[place]))

    async def _rerank(self) -> str:
        ((place, body),) = self._items(1)
        form = {"query": body["prompt"], "texts": body["candidates"]}
        answer = await self._http.post("/continuation/rerank", json=form)
        if answer.status_code != 200:
            return str(answer.status_code)
        own = self._expected.decisions[place]
        told = {rank["index"]: rank["score"] for rank in answer.json()}
        if sorted(told) != list(range(len(own["probabilities"]))):
            return self._held("rerank", "another's number of texts")
        scores = [told[i] for i in sorted(told)]
        close = np.allclose(scores, own["probabilities"], atol=TOLERANCE, rtol=0)
        return self._held("rerank", None if close or _near(own) else "another's scores")

    async def _bad(self) -> str:
        path, how, status = self._draw.choice(BAD)
        answer = await self._http.post(path, **how)
        expected = answer.status_code == status
        return "answered" if expected else f"{answer.status_code} for {status} on {path}"

    async def _leave(self) -> str:
        route = self._draw.choice([self._correct, self._batch, self._ask, self._rerank])
        try:
            return await asyncio.wait_for(route(), self._draw.uniform(0.001, 0.2))
        except TimeoutError:
            return "left"


async def _send(url: str, expected: Expected, clients: int, seconds: float, seen: Seen) -> None:
    end = time.monotonic() + seconds
    async with httpx.AsyncClient(
        base_url=url, timeout=120, trust_env=False, limits=httpx.Limits(max_connections=clients)
    ) as http:
        askers = [Client(n, http, expected, seen).ask_until(end) for n in range(clients)]
        await asyncio.gather(*askers)


async def _watch(process: psutil.Process, seen: Seen) -> None:
    while True:
        seen.memory.append(round(process.memory_info().rss / 2**20))
        await asyncio.sleep(MEMORY_SECONDS)


async def _both(sending: Any, watching: Any) -> None:
    watch = asyncio.ensure_future(watching)
    await sending
    watch.cancel()


def gauge(url: str, name: str) -> float:
    """A number of the service's metrics."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Count, median, p99 and most, in milliseconds."""
    if not seconds:
        return {"count": 0}
    p50, p99, most = (round(1000 * float(v), 1) for v in np.percentile(seconds, (50, 99, 100)))
    return {"count": len(seconds), "p50_ms": p50, "p99_ms": p99, "most_ms": most}


def run(
    model: str,
    expected: Expected,
    clients: int,
    minutes: float,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The profile's figures, and under `faults` what was not as it should be.

    Args:
        model: What is served.
        expected: The library's answers.
        clients: How many ask at once.
        minutes: For how long.
        tell: Where progress goes.
    """
    seen = Seen()
    with TemporaryDirectory() as folder:
        waits = Path(folder, "waits.json")
        with serving(model, before=f"WAITS = {str(waits)!r}\n{NOTING}") as (url, process):
            warm = _send(url, expected, 4, 2.0, Seen())
            asyncio.run(warm)
            tell(f"{clients} clients for {minutes:g} minutes")
            sending = _send(url, expected, clients, 60 * minutes, seen)
            begun, cpu = time.monotonic(), sum(process.cpu_times()[:2])
            asyncio.run(_both(sending, _watch(process, seen)))
            seconds, cpu = time.monotonic() - begun, sum(process.cpu_times()[:2]) - cpu
            time.sleep(1)
            left = {n: gauge(url, f"lastword_{n}") for n in ("in_flight", "waiting_items")}
            seen.memory.append(round(process.memory_info().rss / 2**20))
        noted = json.loads(waits.read_text())
    return _told(seen, noted, left, seconds) | {"server_cpu_seconds": round(cpu)}


def _told(
    seen: Seen, noted: dict[str, Any], left: dict[str, float], seconds: float
) -> dict[str, Any]:
    both = noted["both"]
    share = both["item"] / (sum(both.values()) or 1)
    figures = {
        "minutes": round(seconds / 60, 1),
        "requests": seen.sent,
        "requests_per_second": round(seen.sent / seconds, 1),
        "latency": {kind: percentiles(times) for kind, times in sorted(seen.seconds.items())},
        "outcomes": {kind: dict(seen.outcomes[kind]) for kind in sorted(seen.outcomes)},
        "lost": seen.sent - seen.ended,
        "crossed": len(seen.crossed),
        "left_behind": left,
        "waited_for_the_model": {kind: percentiles(w) for kind, w in noted["waited"].items()},
        "while_both_waited": {
            "seconds_of_the_model": round(sum(both.values()), 1),
            "share_of_items": round(share, 3),
        },
        "memory_mb": {
            "first": seen.memory[0],
            "most": max(seen.memory),
            "by_minute": seen.memory[::6],
        },
    }
    return figures | {"faults": [*seen.crossed[:10], *_faults(figures)]}


def _faults(figures: dict[str, Any]) -> list[str]:
    """What a service must not do, whatever the machine."""
    faults = []
    if figures["lost"]:
        faults.append(f"{figures['lost']} requests have no end")
    for kind, outcomes in figures["outcomes"].items():
        # A queue that is full and a deadline are answers; what is not is a defect.
        known = {"answered", "left", "429", "504"}
        faults += [f"{kind}: {count} x {o}" for o, count in outcomes.items() if o not in known]
    if any(figures["left_behind"].values()):
        faults.append(f"left behind: {figures['left_behind']}")
    both = figures["while_both_waited"]
    if both["seconds_of_the_model"] > 10 and not 0.4 < both["share_of_items"] < 0.6:
        faults.append(f"items had {both['share_of_items']:.0%} while questions waited too")
    for kind, waited in figures["waited_for_the_model"].items():
        if waited.get("most_ms", 0) > 1000 * DEADLINE_SECONDS:
            faults.append(f"{kind}s waited {waited['most_ms'] / 1000:.0f} s, past the deadline")
    return faults
