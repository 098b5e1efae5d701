"""CPU seconds and memory of `lastword report` and `lastword ablate` over very many records.

    OMP_NUM_THREADS=1 python experiments/million.py [--records 1000000] [--part 256] [--blind]

Records are synthetic: some hundreds that the rule decided (`tests/synthetic.py`, 25 depths, of
TruthfulQA's shape and of HaluEval-QA's) are drawn again and again, each under a text of its own
after a preamble of 600 characters, and written as `lastword eval` leaves them. Each command runs in
a process of its own. One line of JSON: CPU seconds and the most resident memory of each, and how
large the records and the page are. Records that are there from an earlier call are read again.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from synthetic import WORDS, synthetic_cell, write_cells

from lastword.files.strict_json import to_json
from lastword.records.info import find_cells, plan_lines, read_run
from lastword.records.parts import part_name, read_part

DEPTH, KINDS = 24, 400
CELLS = {("org/mixing", 2.0), ("org/falling-back", 0.5)}
BENCHMARKS = ("truthfulqa", "halueval-qa")
PREAMBLE = " ".join(WORDS * 8)[:600]


def write(out: Path, records: int, part: int, blind: str) -> None:
    """Records as `lastword eval` leaves them, the same number in each of four cells."""
    for model, invariant in sorted(CELLS):
        for benchmark in BENCHMARKS:
            options = {"depth": DEPTH, "invariant": invariant, "failed": 2, "blind": blind}
            kinds = synthetic_cell(model, benchmark, KINDS, **options)
            write_cells(kinds, out)
    for cell in find_cells(out):
        multiply(cell, records // (len(CELLS) * len(BENCHMARKS)), part)


def multiply(cell: Path, records: int, part: int) -> None:
    """Make many records of the few that a cell has."""
    import pyarrow.parquet as pq

    few = pa.concat_tables(read_part(path) for path in sorted(cell.glob("part-*.parquet")))
    for path in cell.glob("part-*.parquet"):
        path.unlink()
    groups = [range(at, min(at + part, records)) for at in range(0, records, part)]
    for group, table in enumerate(drawn(few, groups)):
        pq.write_table(table, cell / part_name(group), compression="zstd", write_page_checksum=True)
    run = read_run(cell) | {"items": records, "plan": plan_lines(groups)}
    run["dataset"] |= {"questions": records, "limit": None}
    (cell / "run.json").write_text(to_json(run))


def drawn(few: pa.Table, groups: list[range]) -> Iterator[pa.Table]:
    """A table a group: records drawn again, with ids, places and texts of their own."""
    rng = np.random.default_rng(0)
    for group, places in enumerate(groups):
        table = few.take(rng.integers(0, few.num_rows, len(places)))
        texts = zip(places, table["id"].to_pylist(), table["prompt"].to_pylist(), strict=True)
        named = [(f"{p}/{i.rpartition('/')[2]}", f"{PREAMBLE}\n{p} {t}") for p, i, t in texts]
        own = {
            "place": pa.array(places, pa.int32()),
            "group": pa.array([group] * len(places), pa.int32()),
            "id": pa.array([name for name, _ in named]),
            "prompt": pa.array([prompt for _, prompt in named]),
        }
        for name, column in own.items():
            table = table.set_column(table.column_names.index(name), name, column)
        yield table


def measure(*arguments: str) -> dict[str, float]:
    """CPU seconds and the most resident memory of a command, in MiB."""
    start = time.perf_counter()
    program = [sys.executable, "-m", "lastword", *arguments]
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(program[0], program, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(f"lastword {arguments[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "peak_mib": usage.ru_maxrss // 1024,
    }


def main() -> None:
    """Make the records where they are not, measure both commands, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--part", type=int, default=256, help="records a file")
    parser.add_argument("--blind", action="store_true", help="with blind trajectories")
    parser.add_argument("--runs", type=Path, help="where the records are, or are left")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs, report = options.runs or Path(scratch, "runs"), Path(scratch, "report")
        if not runs.exists():
            write(runs, options.records, options.part, "all" if options.blind else "base")
        found = {
            "records": sum(read_run(cell)["items"] for cell in find_cells(runs)),
            "records_mib": sum(p.stat().st_size for p in runs.rglob("*.parquet")) // 2**20,
            "report": measure("report", str(runs), "--out", str(report)),
            "ablate": measure("ablate", str(runs)),
            "page_mib": round((report / "index.html").stat().st_size / 2**20, 1),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
