"""CPU milliseconds per text that a probe decides on Ray, with 1 and 2 workers and without Ray.

    OMP_NUM_THREADS=1 python experiments/workers.py lastword/demo-organism 2000 20000

Each way runs twice, with few and with many texts. The difference is the cost of the texts; what
remains of the run with few is the cost of starting. CPU seconds are those of the command and of all
processes that it starts, read twice a second.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from lastword.decide.questions_file import write_questions
from lastword.integrations.scikit_learn import ProbeClassifier

TICKETS = Path("examples/tickets.csv")
WORDS = 8  # words of a ticket per text


def prepare(folder: Path, model: str, sizes: list[int]) -> None:
    """Write a probe of the tickets, its question, and distinct texts."""
    with TICKETS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["team"]]
    texts = [" ".join(row["text"].split()[:WORDS]) for row in rows]
    probe = ProbeClassifier(model, "Which team?", poolings=("mean",))
    probe.fit(texts, [row["team"] for row in rows])
    probe.probe_.write(folder / "team.probe.safetensors")
    write_questions(
        folder / "questions.yaml",
        {"team": probe.probe_.question},
        {"team": "team.probe.safetensors"},
    )
    for size in sizes:
        some = [f"{texts[i % len(texts)]} ({i})" for i in range(size)]
        ids = [str(i) for i in range(size)]
        pq.write_table(pa.table({"id": ids, "text": some}), folder / f"{size}.parquet")


def cpu_seconds(command: list[str]) -> float:
    """Run a command; return the CPU seconds of its processes."""
    seconds: dict[int, float] = {}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    top = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            for each in (top, *top.children(recursive=True)):
                times = each.cpu_times()
                seconds[each.pid] = times.user + times.system
            process.wait(0.5)
        except (psutil.NoSuchProcess, subprocess.TimeoutExpired):
            continue
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return sum(seconds.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("sizes", type=int, nargs=2)
    options = parser.parse_args()
    first, last = options.sizes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.model, options.sizes)
        for workers in (0, 1, 2):
            seconds = []
            for size in options.sizes:
                out = folder / (f"{workers}-{size}" + ("" if workers else ".jsonl"))
                command = [sys.executable, "-m", "lastword", "decide", "--model", options.model]
                command += ["--questions", str(folder / "questions.yaml"), "--out", str(out)]
                command += ["--input", str(folder / f"{size}.parquet")]
                if workers:
                    command += ["--engine", "ray", "--engine-options", f"workers={workers}"]
                seconds.append(cpu_seconds(command))
            each = (seconds[1] - seconds[0]) / (last - first)
            start = seconds[0] - each * first
            name = f"Ray, {workers} worker(s)" if workers else "one process"
            print(f"{name}: {1000 * each:.2f} CPU ms per text, {start:.1f} s to start", flush=True)


if __name__ == "__main__":
    main()
