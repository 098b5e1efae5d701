"""Texts a second of `lastword decide --engine ray` beside one process, and the largest memory.

    OMP_NUM_THREADS=1 python experiments/bulk.py TEXTS [WORKERS]

The embedded model, one choice and one predicate about short texts that are all different. Seconds
are of the whole command: what starts Ray and loads the model counts.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results" / "bulk.json"
WORDS = "the red fox runs home late pay bill now invoice parcel lake of Oru lamps".split()
ASKED = {
    "topic": {"type": "choice", "instructions": "What is it?", "choices": ["animal", "money"]},
    "angry": {"type": "predicate", "instructions": "The writer is angry."},
}


def timed(folder: Path, *options: str) -> tuple[float, float]:
    """Seconds of a run of the command, and the largest MiB of its process and their children."""
    command = [sys.executable, "-m", "lastword", "decide", "--model", "lastword/demo-organism"]
    command += ["--questions", str(folder / "asked.json"), "--input", str(folder / "in.parquet")]
    begin = time.monotonic()
    subprocess.run([*command, *options], check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return time.monotonic() - begin, peak


def main() -> None:
    count, workers = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    texts = [
        f"{WORDS[i % 14]} {WORDS[i // 14 % 14]} {WORDS[i // 196 % 14]} {i}" for i in range(count)
    ]
    told: dict[str, object] = {"texts": count, "cores": os.cpu_count(), "on": platform.processor()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "asked.json").write_text(json.dumps(ASKED))
        pq.write_table(
            pa.table({"id": [str(i) for i in range(count)], "text": texts}), folder / "in.parquet"
        )
        ray = ["--engine", "ray", "--workers", str(workers), "--output", str(folder / "out")]
        rows = {"ray": ray, "one process": ["--output", str(folder / "out.jsonl")]}
        for name, options in rows.items():
            load = os.getloadavg()[0]
            seconds, peak = timed(folder, *options)
            told[name] = {
                "seconds": round(seconds, 1),
                "texts_a_second": round(count / seconds, 1),
                "largest_process_mib_so_far": round(peak),
                "load_before": round(load, 1),
            }
            print(name, told[name], flush=True)
    told["workers"] = workers
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
