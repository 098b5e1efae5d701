"""CPU seconds and peak memory of each stage of `lastword try`, by the number of rows.

    OMP_NUM_THREADS=1 python experiments/growth.py [--model M] [--rows 1000 2000]
    OMP_NUM_THREADS=1 python experiments/growth.py --eval [--rows 300 2000 10000]

The texts are synthetic mails: a third are ordinary, the others share one of two signatures. Each
number of rows runs in a separate process. The exponent of the last two sizes is printed for each
stage: 1 is linear in the number of rows, 2 quadratic. The result goes to
experiments/results/growth.MODEL.json.

--eval has `lastword eval` of so many mails instead, and the start of the finished run.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
TEAMS = {
    "orders": "order basket checkout price stock shop cart buy item invoice",
    "returns": "return refund broken label parcel courier pickup damaged swap box",
    "account": "password login mail address account profile locked code phone delete",
}
COMMON = (
    "please help me with this today since we need it soon and nobody has called back yet so far"
)
ENDS = [
    "",
    "kind regards {n} customer care north desk phone one two three four open from nine to five",
    "with best wishes {n} sales office south please think of the trees before you print this mail",
]


def mails(count: int) -> list[dict[str, str]]:
    """Return so many mails with their teams."""
    draw, teams = np.random.default_rng(0), [*TEAMS]
    rows = []
    for n in range(count):
        team = teams[draw.integers(len(teams))]
        words = [*draw.choice(TEAMS[team].split(), 4), *draw.choice(COMMON.split(), 14)]
        draw.shuffle(words)
        end = ENDS[n % len(ENDS)].format(n=n)
        rows.append({"id": str(n), "text": " ".join([*words, end]).strip(), "label": team})
    return rows


def measure(model: str, count: int, budget: float) -> dict[str, dict[str, float]]:
    """Run one trial, and return CPU seconds and peak MB per stage."""
    from lastword import Tracer
    from lastword.trust.policy import CERTIFIABLE
    from lastword.trust.terms import Terms
    from lastword.tryout.labels import read_labels
    from lastword.tryout.material import TryJob
    from lastword.tryout.run import run
    from lastword.tryout.table_options import TableOptions

    stages: dict[str, dict[str, float]] = {}
    name, begun = "", 0.0

    def stage(following: str) -> None:
        nonlocal name, begun
        if name:
            peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
            spent = {"cpu_s": round(time.process_time() - begun, 2), "peak_mb": int(peak) // 1024}
            stages[name] = spent
        name = following.replace(f" {count} rows", " the rows").partition(" /")[0]
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        begun = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "mails.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in mails(count)))
        stage("loading the model")
        tracer = Tracer.from_pretrained(model)
        stage("reading the table")
        labels = read_labels(table, TableOptions(instructions="Which team?"))
        stage("making ready")
        terms = Terms(methods=CERTIFIABLE, promise="gain")
        job = TryJob(tracer, labels, terms, budget=budget)
        run(job, Path(folder) / "out", stage=stage)
        stage("")
    return stages


def evaluation(model: str, count: int) -> list[dict[str, float]]:
    """Evaluate a model on mails, start it again, and return CPU seconds and peak MB of both."""
    with tempfile.TemporaryDirectory() as folder:
        items = Path(folder) / "mails.jsonl"
        with items.open("w", encoding="utf-8") as file:
            for row in mails(count):
                item: dict[str, Any] = {"prompt": f"{row['text']} Team:", "question": row["text"]}
                item |= {"candidates": [*TEAMS], "truthful": [t == row["label"] for t in TEAMS]}
                file.write(json.dumps(item) + "\n")
        command = [sys.executable, "-m", "lastword", "eval", "--model", model, "--out", folder]
        command += ["--benchmark", f"jsonl:{items}"]
        return [spent(command) for _ in range(2)]


def spent(command: list[str]) -> dict[str, float]:
    """Run a command, and return its CPU seconds and peak MB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    seconds = round(usage.ru_utime + usage.ru_stime, 2)
    return {"cpu_s": seconds, "peak_mb": usage.ru_maxrss // 1024}


def printed(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print per stage CPU seconds and megabytes by rows, and the exponent of the last sizes."""
    sizes = [*results]
    print("| stage | " + " | ".join(f"{int(n):,}" for n in sizes) + " | exponent |")
    print("|---|" + "--:|" * (len(sizes) + 1))
    for stage in results[sizes[0]]:
        cells = [results[n][stage] for n in sizes]
        shown = " | ".join(f"{c['cpu_s']:.1f} s, {c['peak_mb']:,} MB" for c in cells)
        a, b = cells[-2:] if len(cells) > 1 else cells * 2
        ratio = math.log(max(b["cpu_s"], 0.01) / max(a["cpu_s"], 0.01))
        rows = math.log(int(sizes[-1]) / int(sizes[-2])) if len(cells) > 1 else 1.0
        print(f"| {stage} | {shown} | {ratio / rows:.1f} |")


def main() -> None:
    """Measure each size in a separate process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="lastword/demo-organism")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for other prompts")
    parser.add_argument("--eval", action="store_true", help="measure `lastword eval` instead")
    parser.add_argument("--one", action="store_true", help="measure one size, and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.model, options.rows[0], options.budget)))
        return
    if options.eval:
        for count in options.rows:
            print(count, json.dumps(evaluation(options.model, count)), flush=True)
        return
    results: dict[str, Any] = {}
    for count in options.rows:
        command = [
            sys.executable,
            __file__,
            "--one",
            "--rows",
            str(count),
            "--model",
            options.model,
        ]
        command += ["--budget", str(options.budget)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        results[str(count)] = json.loads(done.stdout.splitlines()[-1])
        print(count, json.dumps(results[str(count)]), file=sys.stderr, flush=True)
    path = RESULTS / f"growth.{options.model.rsplit('/', 1)[-1]}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    printed(results)


if __name__ == "__main__":
    main()
