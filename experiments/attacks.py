"""What a live service and `lastword invariant` bear: each attack, what came of it, what it cost.

    OMP_NUM_THREADS=1 python experiments/attacks.py [--model lastword/demo-organism]
    OMP_NUM_THREADS=1 python experiments/attacks.py --together 10 [--model ...]

Every attack has a `lastword serve` of its own, which a well-behaved client asks all the while: its
slowest answer and what it was refused say what others bear. The result is kept in
experiments/results/attacks.json. Exits with 1 where an attack is not turned down as it should, or
the well-behaved client waits longer than ten seconds.

With `--together MINUTES` the floods of `floods.py` come, first each by itself for 20 s, then all at
once for so long, quiet between, beside twelve honest clients that label what they are told, and a
probe, on a machine whose clock jumps; what these met is kept in
experiments/results/siege.MODEL.json. Exits with 1 where an answer or a label was refused, crossed
or lost, or labels of those who may not give them raised the alarm.
"""

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import httpx
import psutil
from floods import (
    ASKS,
    CLOCK,
    FLOODS,
    LABELS,
    TEMPLATE,
    Watch,
    answers_in_quiet,
    client,
    siege,
    stuck_log,
)
from serving import serving

TESTS = Path(__file__).resolve().parents[1] / "tests"
SLICE_SECONDS = 180.0
RESULTS = Path(__file__).parent / "results" / "attacks.json"
GOOD = {
    "prompt": "Question: Which goods come from Baevwick? Answer:",
    "candidates": ["green wool combs", "pale cedar boats", "clay lamps"],
}
LINES = {"content-type": "application/x-ndjson"}
HEAD = b"POST /v1/correct HTTP/1.1\r\nhost: 127.0.0.1\r\n"
MEGABYTE = 2**20
PATIENCE_SECONDS = 10.0  # longest wait of a client that does nothing wrong
# The model's thread meets what ends a process, once, on an item that is called so.
SABOTAGE = """
from lastword.tracer import Tracer
decide = Tracer.decide_group
def fail(self, encoded, *more, **named):
    if any(e.item.id == "end" for e in encoded):
        raise SystemExit(3)
    return decide(self, encoded, *more, **named)
Tracer.decide_group = fail
"""


# A certificate of what nobody has counted: its service remembers answers and takes their labels.
CERTIFY = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from populations import counted
from lastword import Tracer
from lastword.trust.certificate import Certificate
from lastword.trust.terms import Terms
from lastword.trust.policy import Policy
subject = Tracer.from_pretrained(sys.argv[1]).subject
policy = Policy(("decisive", "early"), 0.0)
counts = counted(fixed=40, broken=1)
certificate = Certificate(subject, Terms(0.1, 0.05), policy, counts, date="2026-11-21")
open(sys.argv[2], "w").write(certificate.to_toml())
"""


class Bystander:
    """A client that does nothing wrong, as long as its block lasts: what it waits and is told."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, Event()
        self._thread = Thread(target=self._ask)
        self.slowest = 0.0
        self.statuses: Counter[int] = Counter()

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300, trust_env=False) as http:
            last = False
            while not last:
                last = self._stop.is_set()  # one answer more after the attack
                begun = time.perf_counter()
                status = http.post("/v1/correct", json=GOOD).status_code
                self.slowest = max(self.slowest, time.perf_counter() - begun)
                self.statuses[status] += 1
                self._stop.wait(0.05)


def connect(url: str) -> socket.socket:
    """A bare connection."""
    return socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60)


def told(answer: httpx.Response) -> str:
    """Status and code of a refusal."""
    code = answer.json().get("error", {}).get("code", "answered") if answer.content else ""
    return f"{answer.status_code} {code}".strip()


# Each attack tells what came, and whether that is what should.


def long_prompt(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """One request below 1 MiB: a prompt of 950 kB and 64 candidates."""
    body = {"prompt": "word " * 190_000, "candidates": [f"answer {i}" for i in range(64)]}
    came = told(http.post("/v1/correct", json=body))
    return came, came == "413 too_many_characters"


def many_questions(http: httpx.Client, process: psutil.Process) -> tuple[Any, bool]:
    """65 questions of 64 samples, five corrections in a row meanwhile, then SIGTERM."""
    body = {"question": "Which goods come from Baevwick?", "k": 64}
    with ThreadPoolExecutor(65) as pool:
        asks = [pool.submit(http.post, "/v1/ask", json=body) for _ in range(65)]
        time.sleep(1)
        corrections = [told(http.post("/v1/correct", json=GOOD)) for _ in range(5)]
        ready = http.get("/readyz").status_code
        process.terminate()
        begun = time.perf_counter()
        answers = Counter(told(ask.result()) for ask in asks)
        process.wait(120)
    ended = round(time.perf_counter() - begun, 1)
    came = {"questions": dict(answers), "corrections": corrections, "readyz": ready}
    good = corrections == ["200 answered"] * 5 and ended < 40
    return came | {"seconds_from_sigterm_to_the_end": ended}, good


def many_lines(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """NDJSON of 500,000 lines of `0`, in 1 MB."""
    answer = http.post("/v1/correct/batch", content=b"0\n" * 500_000, headers=LINES)
    return told(answer), told(answer) == "413 batch_too_large" and len(answer.content) < 1000


def endless_headers(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """160 MB of headers on one connection."""
    sent, piece = 0, b"x-long: " + b"x" * MEGABYTE + b"\r\n"
    with connect(str(http.base_url).rstrip("/")) as raw:
        try:
            raw.sendall(HEAD)
            while sent < 160 * MEGABYTE:
                raw.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    return f"closed after {sent / MEGABYTE:.0f} MB", sent < 16 * MEGABYTE


def half_sent_headers(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """300 connections whose headers never end."""
    url = str(http.base_url).rstrip("/")
    begun = time.perf_counter()
    with ExitStack() as stack:
        raws = [stack.enter_context(connect(url)) for _ in range(300)]
        for raw in raws:
            raw.sendall(HEAD)
        first = Counter(raw.recv(100).split()[1].decode() for raw in raws)
    seconds = round(time.perf_counter() - begun, 1)
    return {"statuses": dict(first), "all_closed_after_seconds": seconds}, seconds < 20


def thread_that_ends(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """A SystemExit on the model's thread."""
    begun = time.perf_counter()
    came = told(http.post("/v1/correct", json=GOOD | {"id": "end"}))
    seconds = round(time.perf_counter() - begun, 2)
    after = told(http.post("/v1/correct", json=GOOD))
    health = http.get("/healthz").status_code
    good = (came, after, health) == ("500 internal", "200 answered", 200) and seconds < 5
    return {"answer": came, "seconds": seconds, "next": after, "healthz": health}, good


def bad_manners(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """An origin that is no address, HEAD, a line that is no item, unknown keys, no content type."""
    batch = http.post("/v1/correct/batch", content=json.dumps(GOOD) + "\n3", headers=LINES)
    came = {
        "origin": told(http.post("/v1/correct", json=GOOD, headers={"origin": "http://["})),
        "head": told(http.head("/healthz")),
        "line": json.loads(batch.text.splitlines()[1])["error"]["message"],
        "unknown key": told(http.post("/v1/correct", json=GOOD | {"candidats": []})),
        "no content type": told(http.post("/v1/correct", content=json.dumps(GOOD))),
    }
    expected = ["403 forbidden", "200", "expected a JSON object", "422 invalid_body"]
    good = all(e in c for e, c in zip(expected, came.values(), strict=False))
    return came, good and came["no content type"] == "415 unsupported_media_type"


def question_that_fills_the_context(http: httpx.Client, _: psutil.Process) -> tuple[Any, bool]:
    """A question so long that with some of its answers it fits no context."""
    came: Counter[str] = Counter()
    for words in range(84, 128, 4):
        body = {"question": " ".join(["goods"] * words), "k": 4}
        answer = http.post("/v1/ask", json=body)
        came[told(answer)] += 1
        if answer.status_code == 200 and answer.json()["dropped"]:
            came["with answers dropped"] += 1
    return dict(came), not any(kind.startswith("5") for kind in came)


ATTACKS: dict[Callable[..., tuple[Any, bool]], str] = {
    long_prompt: "",
    many_questions: "",
    many_lines: "",
    endless_headers: "",
    half_sent_headers: "",
    thread_that_ends: SABOTAGE,
    bad_manners: "",
    question_that_fills_the_context: "",
}


def megabytes(process: psutil.Process) -> int:
    """Memory of a process; 0 where it has ended."""
    return round(process.memory_info().rss / MEGABYTE) if process.is_running() else 0


def attack(model: str, how: Callable[..., tuple[Any, bool]], before: str) -> dict[str, Any]:
    """One attack on a service of its own, and what a client beside it met."""
    with serving(model, before=before) as (url, process):
        client = httpx.Client(base_url=url, timeout=300, trust_env=False)
        with client as http:
            http.post("/v1/correct", json=GOOD).raise_for_status()
            first = megabytes(process)
            if how is many_questions:  # ends the service: its own corrections are the bystander's
                came, good = how(http, process)
                return {"came": came, "as_it_should": good, "rss_before_mb": first}
            with Bystander(url) as bystander:
                begun = time.perf_counter()
                came, good = how(http, process)
                seconds = time.perf_counter() - begun
            last = megabytes(process)
    statuses = {str(status): count for status, count in bystander.statuses.items()}
    return {
        "came": came,
        "as_it_should": good and bystander.slowest < PATIENCE_SECONDS and set(statuses) == {"200"},
        "seconds": round(seconds, 2),
        "bystander": {"statuses": statuses, "slowest_seconds": round(bystander.slowest, 2)},
        "rss_before_mb": first,
        "rss_after_mb": last,
    }


def forged(header: str) -> bytes:
    """A safetensors file with this header and 64 bytes behind it."""
    return struct.pack("<Q", len(header)) + header.encode() + bytes(64)


def tensor(shape: str, offsets: str, name: str = "lm_head.weight") -> str:
    return f'"{name}": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}'


def declared(size: int) -> str:
    """A header whose tensors, those of a small Llama, are so many bytes each."""
    parts = ("q_proj", "k_proj", "v_proj", "o_proj")
    names = [f"model.layers.{i}.self_attn.{part}.weight" for i in range(12) for part in parts]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    places = ((name, n * size, (n + 1) * size) for n, name in enumerate(names))
    told = (tensor(f"[4, {size // 16}]", f"[{a}, {b}]", name) for name, a, b in places)
    return f"{{{', '.join(told)}}}"


FORGED = {
    "overlapping offsets": forged(
        f"{{{tensor('[2, 4]', '[0, 32]')}, {tensor('[2, 4]', '[16, 48]', 'model.norm.weight')}}}"
    ),
    "negative offsets": forged(f"{{{tensor('[2, 4]', '[-32, 0]')}}}"),
    "a shape of 1e999": forged(f"{{{tensor('[1e999]', '[0, 32]')}}}"),
    "a header 10,000 deep": forged('{"a": ' + "[" * 10_000 + "]" * 10_000 + "}"),
    "16 TB declared": forged(declared(16 * 10**12)),
    "a header of 16 TB": struct.pack("<Q", 2**44) + bytes(64),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **{"hidden_size": 4, "num_hidden_layers": 12, "num_attention_heads": 2},
    **{"intermediate_size": 8, "vocab_size": 2},
}


def invariant_of(content: bytes) -> dict[str, Any]:
    """What `lastword invariant` says of a forged checkpoint, and its processor time and memory."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        Path(folder, "model.safetensors").write_bytes(content)
        command = [sys.executable, "-m", "lastword", "invariant", folder]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        seconds = time.perf_counter() - begun  # nearly all of it Python's imports
    said = done.stderr.strip().replace(folder, "FOLDER")
    good = done.returncode == 1 and len(said.splitlines()) == 1 and "Traceback" not in said
    return {"came": said[:200], "as_it_should": good, "seconds": round(seconds, 2)}


def together(model: str, minutes: float) -> None:
    """Every flood by itself, then all at once, and what honest clients met of it.

    Quiet comes between, so that both meet the same machine, whatever else it does. The clients have
    the last core for themselves, the service and its processes the others.
    """
    path = RESULTS.with_name(f"siege.{model.rsplit('/', 1)[-1]}.json")
    result: dict[str, Any] = {"minutes_of_all": minutes, "good": True}
    with TemporaryDirectory() as folder:
        options, probes = guarded(model, Path(folder))
        *first, last = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, first or {last})
        with serving(model, *options, before=TEMPLATE + CLOCK) as (url, process):
            os.sched_setaffinity(0, {last})
            answers = answers_in_quiet(url)
            watches: defaultdict[str, Watch] = defaultdict(Watch)
            slices = max(1, round(60 * minutes / SLICE_SECONDS))
            singly = [(f.__name__, {f: n}, 20.0) for f, n in FLOODS.items()]
            every = [("quiet", {}, 30.0), ("all", FLOODS, 60 * minutes / slices)] * slices
            for name, floods, seconds in (*singly, *every):
                siege(url, probes, process, answers, floods, seconds, watches[name])
                result[name] = watches[name].told()
                print(json.dumps({name: result[name]}), flush=True)
                for what in ("p99_seconds", "p99_core_seconds"):
                    if "all" in result:
                        ratio = result["all"][what] / result["quiet"][what]
                        result[f"{what}_against_quiet"] = round(ratio, 2)
                result["good"] &= result[name]["crossed"] == 0
                result["good"] &= {*result[name]["honest"], *result[name]["labels"]} <= {"200"}
                path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            readers = [c for c in psutil.Process().children() if c.name() == "cat"]
            result["stuck log"], good = stuck_log(url, readers)
            result["alarm"] = " 1.0" in alarm(url)
    result["good"] &= good and not result["alarm"]
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not result["good"]:
        sys.exit("an honest client was refused, crossed or lost: see the result")


def guarded(model: str, folder: Path) -> tuple[list[str], str]:
    """Options of a service with a certificate, state, two tokens and probes; where these are."""
    certificate, port = folder / "certificate.toml", free_port()
    subprocess.run([sys.executable, "-c", CERTIFY, model, str(certificate)], check=True)
    options = {
        "certificate": certificate,
        "state": folder / "state.db",
        "token": ASKS,
        "label-token": LABELS,
        "feedback-minute": 6000,
        "probe-port": port,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return words, f"http://127.0.0.1:{port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def alarm(url: str) -> str:
    """What the metrics say of the alarm."""
    with client(url) as http:
        lines = http.get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith("lastword_alarm "))


def main() -> None:
    """Run every attack, print, keep, and exit with 1 where one got through."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="lastword/demo-organism")
    parser.add_argument("--together", type=float, metavar="MINUTES")
    options = parser.parse_args()
    if options.together is not None:
        together(options.model, options.together)
        return
    result = {}
    for how, before in ATTACKS.items():
        result[how.__name__.replace("_", " ")] = attack(options.model, how, before)
        print(json.dumps({how.__name__: result[how.__name__.replace("_", " ")]}), flush=True)
    for name, content in FORGED.items():
        result[f"invariant of {name}"] = invariant_of(content)
        print(json.dumps({name: result[f"invariant of {name}"]}), flush=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if failed := [name for name, one in result.items() if not one["as_it_should"]]:
        sys.exit(f"not as it should be: {', '.join(failed)}")


if __name__ == "__main__":
    main()
