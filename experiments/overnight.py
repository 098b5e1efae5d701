"""Very many decisions by an engine, a worker killed on the way: pace, memory, none lost or twice.

    python experiments/overnight.py MODEL DATA [--engine ray] [--workers 2] [--limit N] [--keep]

DATA is a folder of decision sets: JSON lines with `input`, `instructions`, `choices` and `truth`.
Every item is one of a benchmark, its choices the candidates, and `eval --record decide` decides
them. Where `--limit` asks for more than there are, all come again in a further round, its number
before the text: another item, another prompt. The worker of Ray that holds most memory, or vLLM's
process, is killed once the `--kill` part of the records is there, unless `--keep`. One line of
JSON: seconds and all processes' CPU until the first records and from then on, items a second by
both, memory by kind of process at every twelfth of the run and its most, and how many items were
lost, recorded twice, or failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from lastword import load_records

KINDS = {"ray::Worker": "workers", "engines.vllm.side": "workers", "-m lastword": "command"}
LOOKS = 12  # of the memory that are told


def write(data: Path, out: Path, limit: int | None) -> int:
    """The items of all sets in turn, as a benchmark of JSON lines; how many."""
    sets = [file.read_text(encoding="utf-8").splitlines() for file in sorted(data.glob("*.jsonl"))]
    rows = [line for n in range(max(map(len, sets))) for own in sets for line in own[n : n + 1]]
    places = range(len(rows) if limit is None else limit)
    items = [_item(json.loads(rows[p % len(rows)]), p // len(rows)) for p in places]
    out.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return len(items)


def _item(row: dict[str, Any], again: int) -> dict[str, Any]:
    number = f" {again}" if again else ""
    lines = [f"Text{number}: {row['input']}"] if row.get("input") else []
    ask = f"Question{number}: {row.get('instructions', '')}\nAnswer:"
    choices = [c if isinstance(c, str) else c["value"] for c in row["choices"]]
    return {
        "id": f"{row['id']}/{again}",
        "prompt": "\n".join([*lines, ask]),
        "blind_prompt": ask,
        "candidates": choices,
        "truthful": [choice == row["truth"] for choice in choices],
    }


@dataclass(frozen=True)
class Look:
    """What was there at one time: `items` done, `mib` resident and `cpu` seconds used so far."""

    seconds: float
    items: int
    cpu: float
    mib: dict[str, int]


@dataclass
class Watch:
    """A process, all that it started, and the records that they have written so far."""

    root: psutil.Process
    runs: Path
    looks: list[Look] = field(default_factory=list)
    workers: list[psutil.Process] = field(default_factory=list)  # that with most memory first
    _cpu: dict[int, float] = field(default_factory=dict)
    _items: dict[tuple[str, int], int] = field(default_factory=dict)
    _start: float = field(default_factory=time.perf_counter)

    def look(self) -> Look:
        """Take note of everything once more."""
        mib: Counter[str] = Counter()
        workers = []
        for process, kind, size in self._processes():
            mib[kind] += size
            if kind == "workers":
                workers.append((size, process))
        self.workers = [process for _, process in sorted(workers, key=lambda pair: -pair[0])]
        seconds, cpu = time.perf_counter() - self._start, sum(self._cpu.values())
        self.looks.append(Look(seconds, self._records(), cpu, dict(mib)))
        return self.looks[-1]

    def _processes(self) -> Iterator[tuple[psutil.Process, str, int]]:
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                times, size = process.cpu_times(), process.memory_info().rss
                words = " ".join(process.cmdline())
            except psutil.Error:
                continue  # it has ended
            self._cpu[process.pid] = times.user + times.system
            yield process, next((k for s, k in KINDS.items() if s in words), "rest"), size >> 20

    def _records(self) -> int:
        """How many records there are; a part is opened again only where it has grown."""
        for file in self.runs.rglob("part-*.parquet"):
            key = file.name, file.stat().st_size
            if key not in self._items:
                self._items = {k: n for k, n in self._items.items() if k[0] != file.name}
                self._items[key] = pq.read_metadata(file).num_rows
        return sum(self._items.values())


def run(command: list[str], runs: Path, kill_at: float) -> tuple[Watch, Look | None]:
    """Run to the end, a worker killed when so many records are there; the look at that time."""
    killed = None
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        watch = Watch(psutil.Process(process.pid), runs)
        while process.poll() is None:
            look = watch.look()
            if killed is None and look.items >= kill_at and watch.workers:
                watch.workers[0].send_signal(signal.SIGKILL)
                killed = look
            time.sleep(1.0)
    if process.returncode:
        sys.exit(f"lastword eval ended with {process.returncode}")
    return watch, killed


def pace(looks: list[Look], items: int) -> dict[str, Any]:
    """What the start took, and how fast it went from the first records to the last."""
    first = next(look for look in looks if look.items)
    last = next(look for look in looks if look.items == looks[-1].items)
    done, seconds, cpu = items - first.items, last.seconds - first.seconds, last.cpu - first.cpu
    return {
        "seconds": round(looks[-1].seconds, 1),
        "cpu_seconds": round(looks[-1].cpu, 1),
        "start": [round(first.seconds, 1), round(first.cpu, 1), first.items],
        "items_a_second": round(done / seconds, 2) if done else None,
        "items_a_cpu_second": round(done / cpu, 2) if done else None,
    }


def memory(looks: list[Look]) -> dict[str, Any]:
    """MiB by kind of process, in the order of time, and the most of all together."""
    shown = [looks[len(looks) * n // LOOKS] for n in range(LOOKS)]
    kinds = sorted({kind for look in shown for kind in look.mib})
    return {
        "mib": {kind: [look.mib.get(kind, 0) for look in shown] for kind in kinds},
        "most_mib": max(sum(look.mib.values()) for look in looks),
    }


def main() -> None:
    """Write the items, run them, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--engine", default="ray", choices=("ray", "vllm", "local"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--keep", action="store_true", help="kill no worker")
    parser.add_argument("--kill", type=float, default=0.5, help="part of the items before the kill")
    parser.add_argument("--vllm-python", default=os.environ.get("LASTWORD_VLLM_PYTHON"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        items, runs = Path(scratch, "decisions.jsonl"), Path(scratch, "runs")
        count = write(options.data, items, options.limit)
        command = [sys.executable, "-m", "lastword", "eval", "--model", options.model]
        command += ["--benchmark", f"jsonl:{items}", "--out", str(runs), "--record", "decide"]
        command += ["--engine", options.engine]
        command += ["--workers", str(options.workers)] if options.engine == "ray" else []
        if options.engine == "vllm" and options.vllm_python:
            command += ["--vllm-python", options.vllm_python]
        kill = options.engine != "local" and not options.keep
        watch, killed = run(command, runs, options.kill * count if kill else float("inf"))
        records = load_records(str(runs))
    ids = Counter(records["id"])
    figures = {
        **{"model": options.model, "engine": options.engine, "items": count},
        **pace(watch.looks, count),
        **memory(watch.looks),
        "killed_at": killed and [round(killed.seconds, 1), killed.items],
        "lost": count - len(ids),
        "twice": sum(number > 1 for number in ids.values()),
        "failed": int(records["error"].notna().sum()),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
