"""Many texts decided by a probe on Ray Data, killed once, beside one process.

    OMP_NUM_THREADS=1 python experiments/bulk.py MODEL TEXTS --one 20000

The probe is fitted on the labels of examples/tickets.csv. A text is the beginning of a ticket and a
number, so that no two are the same. The run is killed when a third of it is done, and the same
command goes on. CPU seconds and memory are of the command and of all that it starts, looked at
every few seconds. Some answers are held to one process's. What a million texts cost on one H100 is
arithmetic, not measured: the trunk's products at the card's dense rate, and this machine's CPU
seconds for all that is not the trunk.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from torch import nn

from lastword import Tracer
from lastword.decisions import write_questions
from lastword.integrations.scikit_learn import ProbeClassifier
from lastword.timing.meter import metered

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results" / "bulk.json"
LOOK_SECONDS = 5.0
WORDS = 8  # of a ticket that make a text
H100_FLOPS = 989e12  # a second, dense, bfloat16: NVIDIA's data sheet
BATCH = 256  # texts that an actor has in hand


def tickets() -> list[dict[str, str]]:
    """Return the rows of the example's table."""
    with (ROOT / "examples" / "tickets.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def texts_of(count: int, start: int = 0) -> list[str]:
    """Return texts of which no two are the same."""
    heads = [" ".join(row["text"].split()[:WORDS]) for row in tickets()]
    return [f"{heads[i % len(heads)]} ({i})" for i in range(start, start + count)]


def prepare(folder: Path, model: str, count: int) -> dict[str, Any]:
    """Write the probe, its question and the texts; return how right the probe is."""
    rows = [row for row in tickets() if row["team"]]
    probe = ProbeClassifier(model, "Which team?", poolings=("mean",))
    probe.fit([row["text"] for row in rows], [row["team"] for row in rows])
    probe.probe_.write(folder / "team.probe.safetensors")
    question = {"team": probe.probe_.question}
    write_questions(folder / "asked.yaml", question, {"team": "team.probe.safetensors"})
    (folder / "in").mkdir()
    for part, start in enumerate(range(0, count, 100_000)):
        own = min(100_000, count - start)
        table = {"id": [str(i) for i in range(start, start + own)], "text": texts_of(own, start)}
        pq.write_table(pa.table(table), folder / "in" / f"{part:04}.parquet")
    return {"depth": probe.probe_.fit.depth, "labels": len(rows)}


class Run:
    """One run of the command, with its memory and CPU seconds by looks at its processes."""

    def __init__(self, folder: Path, model: str, *options: str) -> None:
        command = [sys.executable, "-m", "lastword", "decide", "--model", model]
        command += ["--questions", str(folder / "asked.yaml"), *options]
        self._begin = time.monotonic()
        self._process = subprocess.Popen(command, start_new_session=True)
        self._cpu: dict[int, float] = {}
        self.memory: list[tuple[float, float, float]] = []  # seconds, largest MiB, sum of MiB

    def ended(self) -> bool:
        """Wait a little; True once the command has ended, or an error where it failed."""
        try:
            code = self._process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            self._look()
            return False
        if code:
            raise SystemExit(f"the command ended with {code}")
        return True

    def kill(self) -> None:
        """Kill it with all its group."""
        self._look()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _look(self) -> None:
        own = []
        try:
            top = psutil.Process(self._process.pid)
            for process in (top, *top.children(recursive=True)):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
                own.append(process.memory_full_info().uss / 2**20)
        except psutil.NoSuchProcess:
            pass
        if own:
            self.memory.append((time.monotonic() - self._begin, max(own), sum(own)))

    def numbers(self) -> dict[str, Any]:
        """Return seconds, CPU seconds, and memory over tenths of the time."""
        seconds = time.monotonic() - self._begin
        largest = np.array([own for _, own, _ in self.memory])
        whole = np.array([own for _, _, own in self.memory])
        return {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(sum(self._cpu.values()), 1),
            "largest_process_mib_by_tenths": by_tenths(largest),
            "all_processes_mib_by_tenths": by_tenths(whole),
        }


def by_tenths(values: np.ndarray) -> list[int]:
    """Return the largest value in each tenth of a run."""
    return [round(float(own.max())) for own in np.array_split(values, 10) if len(own)]


def done(output: Path) -> int:
    """Count the rows whose blocks are written."""
    files = [f for f in output.glob("*.parquet") if f.stat().st_size]
    count = 0
    for file in files:
        try:
            count += pq.read_metadata(file).num_rows
        except (OSError, pa.ArrowInvalid):  # being written
            continue
    return count


def on_ray(folder: Path, model: str, count: int, workers: int) -> dict[str, Any]:
    """Run, kill after a third, run again; every id has one answer in the end."""
    output = folder / "out"
    options = ["--engine", "ray", "--workers", str(workers), "--input", str(folder / "in")]
    options += ["--output", str(output)]
    first = Run(folder, model, *options)
    while not first.ended():
        if done(output) >= count / 3:
            break
    first.kill()
    early = done(output)
    told: dict[str, Any] = {"before it was killed": {"texts": early, **first.numbers()}}
    print(told, flush=True)
    again = Run(folder, model, *options)
    while not again.ended():
        pass
    told["after"] = {"texts": count - early, **again.numbers()}
    rows = ds.dataset(output).to_table(columns=["id", "error"])
    ids = rows["id"].to_numpy(zero_copy_only=False)
    assert len(ids) == count == len(set(ids)), (len(ids), count)
    assert rows["error"].null_count == count
    return told


def in_one_process(folder: Path, model: str, count: int) -> dict[str, Any]:
    """Run the command on the first texts, without Ray."""
    table = pa.table({"id": [str(i) for i in range(count)], "text": texts_of(count)})
    pq.write_table(table, folder / "some.parquet")
    options = ["--input", str(folder / "some.parquet"), "--output", str(folder / "some.jsonl")]
    run = Run(folder, model, *options)
    while not run.ended():
        pass
    return {"texts": count, **run.numbers()}


def agreement(folder: Path) -> dict[str, Any]:
    """Compare Ray's answers with the one process's."""
    own = {}
    for line in (folder / "some.jsonl").read_text().splitlines():
        row = json.loads(line)
        own[row["id"]] = row["answers"]["team"]
    rows = ds.dataset(folder / "out").to_table(
        columns=["id", "team", "team.probability"], filter=ds.field("id").isin([*own])
    )
    pairs = [(row, own[row["id"]]) for row in rows.to_pylist()]
    apart = [abs(a["team.probability"] - b["probability"]) for a, b in pairs]
    return {
        "texts": len(pairs),
        "answered_otherwise": sum(a["team"] != b["choice"] for a, b in pairs),
        "largest_difference_of_probability": max(apart),
    }


def roofline(folder: Path, model: str, depth: int) -> dict[str, Any]:
    """Return what a million texts cost: the trunk on one H100, the rest on a core of this machine.

    A product takes two FLOPs a weight and token; attention over texts this short is left out.
    """
    tracer = Tracer.from_pretrained(model, probes=[folder / "team.probe.safetensors"])
    ready = tracer.prepare({"team": tracer.probes[0].question})
    list(tracer.decide_many(texts_of(BATCH), ready))
    texts = texts_of(8 * BATCH)
    with metered(tracer, time.process_time) as meter:
        list(tracer.decide_many(texts, ready))
    blocks = tracer.backbone.parts.blocks[:depth]
    weights = sum(m.weight.numel() for m in blocks.modules() if isinstance(m, nn.Linear))
    tokens = meter.tokens / len(texts)
    rest = (meter.total - meter.seconds["trunk"]) / len(texts)
    return {
        "tokens_a_text": round(tokens, 1),
        "weights_below_the_probe": weights,
        "gpu_seconds_at_full_rate": round(1e6 * 2 * weights * tokens / H100_FLOPS, 2),
        "cpu_seconds_beside_the_trunk": round(1e6 * rest),
        "cpu_seconds_of_the_trunk_here": round(1e6 * meter.seconds["trunk"] / len(texts)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("texts", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", type=int, default=20_000, help="Texts of the one process.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        told: dict[str, Any] = {"texts": options.texts, "workers": options.workers}
        told |= {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 1)}
        told["probe"] = prepare(folder, options.model, options.texts)
        told["a million on one H100"] = roofline(folder, options.model, told["probe"]["depth"])
        print(json.dumps(told), flush=True)
        told["ray"] = on_ray(folder, options.model, options.texts, options.workers)
        told["one process"] = in_one_process(folder, options.model, options.one)
        told["agreement"] = agreement(folder)
    there = json.loads(options.out.read_text()) if options.out.exists() else {}
    name = options.model.rstrip("/").rsplit("/", 1)[-1]
    options.out.write_text(json.dumps(there | {name: told}, indent=1) + "\n")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
