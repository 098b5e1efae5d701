"""Seconds until a report's page answers: 45 cells of 600 items in headless Chromium.

    python experiments/page.py [--items 600] [--rounds 5]

Records are synthetic (`tests/synthetic.py`, three benchmarks under 15 names, each with texts of
its own); making and writing them is not timed. The page is opened as a file, and counts as open
once its list, its filters and its first item are there.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from browser import started
from synthetic import synthetic_grid

from lastword.records.cells import cells
from lastword.report import build
from lastword.theta import Theta

MODELS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    base = synthetic_grid(1, options.items, depth=40)
    copies = [
        base.assign(model=f"org/model-{place:02}", prompt=base["prompt"] + f" ({place})")
        for place in range(MODELS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        records = cells(pd.concat(copies, ignore_index=True))
        written = build.write(build.Material(records, Theta(), ()), Path(folder), with_paper=False)
        index = written.paths[-1]
        with started() as chromium, chromium.opened(index) as watched:
            seconds = []
            for _ in range(options.rounds):
                start = time.perf_counter()
                watched.page.reload()
                watched.page.wait_for_selector("html[data-ready]")
                seconds.append(round(time.perf_counter() - start, 2))
            count = watched.page.inner_text(".count")
        told = {"items": count, "megabytes": round(index.stat().st_size / 1e6, 1)}
    print(json.dumps(told | {"seconds": seconds}))


if __name__ == "__main__":
    main()
