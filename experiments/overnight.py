"""Very many decisions by an engine, a worker killed on the way: pace, memory, none lost or twice.

    python experiments/overnight.py MODEL DATA [--engine ray] [--workers 2] [--limit N] [--keep]

DATA is a folder of decision sets: JSON lines with `input`, `instructions`, `choices` and `truth`.
Every item is one of a benchmark, its choices the candidates, and `eval --record decide` decides
them. Of Ray the worker that holds most memory is killed once a few files of records are there,
unless `--keep`. One line of JSON: items a second by all processes' CPU, the most resident memory of
one process and of all, and how many items were lost, recorded twice, or failed.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from lastword import load_records


def write(data: Path, out: Path, limit: int | None) -> int:
    """The items of all sets in turn, as a benchmark of JSON lines; how many."""
    sets = [file.read_text(encoding="utf-8").splitlines() for file in sorted(data.glob("*.jsonl"))]
    rows = [line for n in range(max(map(len, sets))) for own in sets for line in own[n : n + 1]]
    items = [_item(json.loads(line)) for line in rows[:limit]]
    out.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return len(items)


def _item(row: dict[str, Any]) -> dict[str, Any]:
    lines = [f"Text: {row['input']}"] if row.get("input") else []
    ask = f"Question: {row.get('instructions', '')}\nAnswer:"
    choices = [c if isinstance(c, str) else c["value"] for c in row["choices"]]
    return {
        "id": row["id"],
        "prompt": "\n".join([*lines, ask]),
        "blind_prompt": ask,
        "candidates": choices,
        "truthful": [choice == row["truth"] for choice in choices],
    }


class Watch:
    """What a process and all that it started have taken so far."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.cpu: dict[int, float] = {}
        self.largest = self.together = 0

    def look(self) -> list[psutil.Process]:
        """Take note, and give the processes with the largest first."""
        sizes: list[tuple[int, psutil.Process]] = []
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                times, size = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                continue  # it has ended
            self.cpu[process.pid] = times.user + times.system
            sizes.append((size, process))
        sizes.sort(key=lambda pair: -pair[0])
        self.largest = max([self.largest, *(size for size, _ in sizes)])
        self.together = max(self.together, sum(size for size, _ in sizes))
        return [process for _, process in sizes]


def run(command: list[str], runs: Path, most: int, *, kill: bool) -> tuple[Watch, float, int]:
    """Run to the end; what it took, its seconds, and the records there when a worker was killed."""
    start, killed = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        watch = Watch(process.pid)
        while process.poll() is None:
            processes = watch.look()
            records = sum(1 for _ in runs.rglob("part-*.parquet"))
            workers = [own for own in processes if _name(own).startswith("ray::")]
            if kill and not killed and workers and records >= most:
                workers[0].send_signal(signal.SIGKILL)
                killed = records
            time.sleep(1.0)
    if process.returncode:
        sys.exit(f"lastword eval ended with {process.returncode}")
    return watch, time.perf_counter() - start, killed


def _name(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


def main() -> None:
    """Write the items, run them, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--engine", default="ray", choices=("ray", "vllm", "local"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--keep", action="store_true", help="kill no worker")
    parser.add_argument("--parts", type=int, default=3, help="files of records before the kill")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        items, runs = Path(scratch, "decisions.jsonl"), Path(scratch, "runs")
        count = write(options.data, items, options.limit)
        command = [sys.executable, "-m", "lastword", "eval", "--model", options.model]
        command += ["--benchmark", f"jsonl:{items}", "--out", str(runs), "--record", "decide"]
        command += ["--engine", options.engine]
        command += ["--workers", str(options.workers)] if options.engine == "ray" else []
        kill = options.engine == "ray" and not options.keep
        watch, seconds, killed = run(command, runs, options.parts, kill=kill)
        records = load_records(str(runs))
    ids, cpu = Counter(records["id"]), sum(watch.cpu.values())
    figures = {
        "model": options.model,
        "engine": options.engine,
        "items": count,
        "cpu_seconds": round(cpu, 1),
        "items_a_cpu_second": round(count / cpu, 2),
        "seconds": round(seconds, 1),
        "largest_mib": watch.largest // 2**20,
        "together_mib": watch.together // 2**20,
        "killed_after_parts": killed,
        "lost": count - len(ids),
        "twice": sum(number > 1 for number in ids.values()),
        "failed": int(records["error"].notna().sum()),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
