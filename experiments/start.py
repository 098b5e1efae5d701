"""What a start takes: a cold `correct`, what it has to import, a warm one, and a model's load.

    OMP_NUM_THREADS=1 python experiments/start.py MODEL... [--rounds 5] [--out FILE]

Each in processes of their own, in turn: CPU seconds of torch alone, of torch and the module of the
model's family under the command's settings, of a cold command; then wall and CPU seconds of
commands that find the process of LASTWORD_DAEMON=auto, which the first of them starts. What is
printed has to be the same. Of a load the imports are not counted; `first` is that of a GGUF file of
which nothing is kept yet. Least of the rounds, or the median where it says so; a line of JSON each.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from lastword.model import named
from lastword.model.options import LoadOptions

RESULTS = Path(__file__).parent / "results"
SETTINGS = "import atexit, gc; gc.set_threshold(10_000); atexit.register(gc.freeze)"
QUESTION = ("--prompt", "Who wrote it?", "--candidate", "a hat", "--candidate", "a boat")
WARM = 12  # commands that find the warm process
LOAD = f"""
{SETTINGS}
import importlib, json, sys, time
from lastword.model import loading
from lastword.model.options import LoadOptions
importlib.import_module(sys.argv[2])
start = time.process_time()
model = loading.load(LoadOptions(sys.argv[1])).model
print(json.dumps([type(model).__module__, time.process_time() - start]))
"""


def run(command: list[str], **variables: str) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds and what is printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def load(model: str, module: str, **variables: str) -> tuple[str, float]:
    """The module of the model's family, and CPU seconds of a load with it imported before."""
    _, _, line = run(python(LOAD, model, module), **variables)
    name, seconds = json.loads(line.splitlines()[-1])
    return name, seconds


def warm(correct: list[str], expected: str) -> dict[str, Any]:
    """Commands that share a process, which is ended after the last of them."""
    with TemporaryDirectory() as folder:
        choice = {"LASTWORD_DAEMON": "auto", "XDG_RUNTIME_DIR": folder}
        first, *later = [run(correct, **choice) for _ in range(1 + WARM)]
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get("XDG_RUNTIME_DIR") == folder:
                process.terminate()
    assert all(text == expected for _, _, text in (first, *later)), "the warm process differs"
    wall, cpu, _ = zip(*later, strict=True)
    figures = {"wall_median": median(wall), "wall_most": max(wall), "own_cpu_median": median(cpu)}
    return {"starts_it_wall": first[0], **figures}


def start(model: str, rounds: int) -> dict[str, Any]:
    """The figures of one model."""
    correct = [sys.executable, "-m", "lastword", "correct", "--model", model, *QUESTION]
    module, _ = load(model, "lastword")
    imports = f"{SETTINGS}; import torch"
    ways = {
        "torch": python(imports),
        "imports": python(f"{imports}; import {module}"),
        "correct": correct,
    }
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            wall, seconds, text = run(command)
            cpu[name].append(seconds)
    fetched = model.startswith(named.OWN) and LoadOptions(model).embedded is None
    place = str(named.locate(model)) if fetched else model
    loads = {"again": [load(model, module)[1] for _ in range(rounds)]}
    for _ in range(2):
        with TemporaryDirectory() as cache:
            seconds = load(place, module, LASTWORD_CACHE=cache)[1]
            if any(Path(cache).rglob("*.safetensors")):
                loads.setdefault("first", []).append(seconds)
    return {
        **{"model": Path(model).name, "rounds": rounds, "module": module},
        "cpu_seconds": {name: min(seconds) for name, seconds in cpu.items()},
        "correct_wall": wall,
        "load_cpu_seconds": {name: min(seconds) for name, seconds in loads.items()},
        "warm": warm(correct, text),
    }


def main() -> None:
    """Time every model, and write a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "start.jsonl")
    options = parser.parse_args()
    with options.out.open("a", encoding="utf-8") as out:
        for model in options.models:
            line = json.dumps(start(model, options.rounds))
            print(line, file=out)
            print(line, flush=True)


if __name__ == "__main__":
    main()
