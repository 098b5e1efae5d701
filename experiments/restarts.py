"""What a start, a stop and a full disk cost a service that remembers its answers.

    OMP_NUM_THREADS=1 python experiments/restarts.py [--model lastword/demo-organism]

Three services in turn over one state: one that remembers, then has no room left on its disk, then
has it again, and is stopped with twelve requests in hand; one that goes on from there; one that
starts on a full disk. The result is kept in experiments/results/restarts.MODEL.json. Exits with 1
where a request was refused, or something acknowledged is gone.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil
from attacks import GOOD, guarded
from floods import LABELS, client
from serving import serving

RESULTS = Path(__file__).parent / "results"
ANSWERS, IN_HAND = 200, 12
ROOM = 1024  # bytes of a file on a full disk: libraries try a temporary folder with fewer
FULL = (
    f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, resource.RLIM_INFINITY))"
)
PLACES = count()


def ask(http: httpx.Client) -> httpx.Response:
    """An answer to a question that is new."""
    return http.post("/v1/correct", json=GOOD | {"prompt": f"{next(PLACES)}. {GOOD['prompt']}"})


def label(http: httpx.Client, answer: httpx.Response) -> int:
    """The status of a label that agrees with an answer."""
    told = answer.json()
    body = {"id": told["feedback_id"] or "none", "right": told["index"]}
    headers = {"authorization": f"Bearer {LABELS}"}
    return http.post("/v1/feedback", json=body, headers=headers).status_code


def asked(http: httpx.Client) -> dict[str, Any]:
    """What so many answers were, every fourth of them labelled."""
    answers = [ask(http) for _ in range(ANSWERS)]
    labels = [label(http, answer) for answer in answers[::4]]
    return {
        "answers": Counter(str(answer.status_code) for answer in answers),
        "remembered": sum(bool(a.json().get("feedback_id")) for a in answers),
        "labels": Counter(map(str, labels)),
    }


def ready(probes: str, begun: float) -> float:
    """Seconds until the service says that it is ready."""
    while httpx.get(f"{probes}/readyz", trust_env=False).status_code != 200:
        time.sleep(0.02)
    return round(time.perf_counter() - begun, 2)


def stopped(process: psutil.Process) -> float:
    """Seconds that a stop takes."""
    begun = time.perf_counter()
    process.terminate()
    process.wait(60)
    return round(time.perf_counter() - begun, 2)


def monitor(http: httpx.Client) -> Any:
    """Where the test of the promise stands: what its labels have come to."""
    return http.get("/v1/model").json()["oversight"]["monitor"]


def measure(model: str, folder: Path) -> dict[str, Any]:
    """Every stage in turn."""
    options, probes = guarded(model, folder)
    told: dict[str, Any] = {"model": model}
    begun = time.perf_counter()
    with serving(model, *options) as (url, process), client(url) as http:
        told["start"] = ready(probes, begun)
        told["with room"] = asked(http)
        limits = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (ROOM, limits[1]))
        told["on a full disk"] = asked(http)
        process.rlimit(psutil.RLIMIT_FSIZE, limits)
        told["with room again"] = asked(http)
        before = monitor(http)
        told["labels counted"] = before["labelled"]
        with ThreadPoolExecutor(IN_HAND) as pool:
            waiting = [pool.submit(ask, http) for _ in range(IN_HAND)]
            time.sleep(0.01)
            told["stop"] = stopped(process)
            told["in hand"] = Counter(_came(one) for one in waiting)
    begun = time.perf_counter()
    with serving(model, *options) as (url, process), client(url) as http:
        told["restart"] = ready(probes, begun)
        told["monitor as before"] = monitor(http) == before
        told["stop with nothing in hand"] = stopped(process)
    begun = time.perf_counter()
    with serving(model, *options, before=FULL) as (url, process), client(url) as http:
        told["restart on a full disk"] = ready(probes, begun)
        told["monitor as before, on a full disk"] = monitor(http) == before
        told["then"] = asked(http)
    return told


def _came(answer: Any) -> str:
    """A status, or that the connection was not taken any more."""
    try:
        return str(answer.result().status_code)
    except httpx.TransportError as error:
        return type(error).__name__


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="lastword/demo-organism")
    model = parser.parse_args().model
    with TemporaryDirectory() as folder:
        told = measure(model, Path(folder))
    text = json.dumps(told, indent=1)
    print(text)
    path = RESULTS / f"restarts.{model.rsplit('/', 1)[-1]}.json"
    path.write_text(text + "\n", encoding="utf-8")
    stages = [own["answers"] for own in told.values() if isinstance(own, dict) and "answers" in own]
    same = [own for name, own in told.items() if name.startswith("monitor as before")]
    if any({*answers} != {"200"} for answers in stages) or not all(same):
        sys.exit("a request was refused, or a label is gone: see the result")


if __name__ == "__main__":
    main()
