"""How long a person who labels with `lastword label` waits for the model.

    python experiments/label.py ../shared/data/decisions/agnews.jsonl --seconds 4

A simulated person takes so many seconds for each text and always gives the right label. The wait
is the time from the 60th label until the first text of the second round can be shown, and from the
last label of a look until its verdict.

On a machine with other work, `--clock cpu` counts the processor time of the server in place of the
wall clock, for the person's pace and for the waits. With OMP_NUM_THREADS=1 this is the time of one
idle core. Once the server has nothing to do, the person no longer takes any time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

PAUSE_SECONDS = 0.1  # between two requests for the next text


def rows(path: Path, texts: int) -> list[dict[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()[:texts]
    return [json.loads(line) for line in lines]


def processor(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def think(clock: Callable[[], float], seconds: float) -> None:
    """Wait for some seconds of a clock, but not longer in real time if the clock stands still."""
    end, real = clock() + seconds, time.perf_counter()
    last, moved = clock(), real
    while (now := clock()) < end:
        if now > last + 0.05:
            last, moved = now, time.perf_counter()
        if time.perf_counter() - moved > seconds:
            return
        time.sleep(0.05)


def label(
    url: str, truths: dict[str, str], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Label until the first verdict, and return the waits in seconds."""
    tab, waits, start = {"tab": "experiment"}, dict[str, float](), clock()
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:

        def ask(path: str, **more: str) -> dict:
            answer = client.post(path, json=tab | more)
            answer.raise_for_status()
            return answer.json()

        state = ask("next")
        while not (state["more"] or state["ended"]):
            begin = clock()
            while state["shown"] is None and not (state["more"] or state["ended"]):
                time.sleep(PAUSE_SECONDS)
                state = ask("next")
            if state["round"] > 1 and "wait after 60" not in waits or state["shown"] is None:
                waited = clock() - begin
                what = "after the last label" if state["more"] or state["ended"] else "after 60"
                waits[f"wait {what}"] = round(waited, 2)
            if state["shown"] is None:
                break
            if state["round"] == 1:
                waits["read before the last label of round one"] = state["read"]
            think(clock, seconds)
            begin = time.perf_counter()
            shown = state["shown"]
            state = ask("label", row=shown["row"], label=truths[shown["text"]])
            spent = round(time.perf_counter() - begin, 3)
            waits["slowest label"] = max(spent, waits.get("slowest label", 0.0))
    print(state["words"])
    return waits | {"whole": round(clock() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--model", default="lastword/smollm2-135m")
    options = parser.parse_args()
    table = rows(options.data, options.texts)
    truths = {row["input"]: row["truth"] for row in table}
    words = sum(len(row["input"].split()) for row in table) / len(table)
    print(f"{len(table)} texts of {words:.0f} words on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        source, choices = Path(folder, "texts.jsonl"), Path(folder, "choices.json")
        source.write_text("".join(json.dumps({"text": row["input"]}) + "\n" for row in table))
        choices.write_text(json.dumps(table[0]["choices"]))
        command = [sys.executable, "-u", "-m", "lastword", "label", str(source), "--no-browser"]
        command += ["--model", options.model, "--choices", str(choices)]
        command += ["--instructions", table[0]["instructions"], "--out", str(Path(folder, "out"))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            url = server.stdout.readline().split()[-1]
            cpu = options.clock == "cpu"
            clock = partial(processor, server.pid) if cpu else time.perf_counter
            print(label(url, truths, options.seconds, clock), "load", os.getloadavg(), flush=True)
            server.terminate()
            print(server.stdout.read())


if __name__ == "__main__":
    main()
