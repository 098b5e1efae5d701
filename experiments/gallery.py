"""The figures of README and of docs/benchmarks.md, from the stored records.

    python experiments/gallery.py

The records of the evidence are stored without text. `everyday` and `demo` are lastword's, so their
text is restored from the package, and a report is written as by `lastword report`. Chromium takes
pictures of its page.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from synthetic import cells

from lastword.lab.benchmarks import find
from lastword.lab.demo import FIRST_DEEP
from lastword.lab.report import draw
from lastword.lab.report.build import write
from lastword.lab.report.figures import trajectory
from lastword.records.cells import load_records
from lastword.records.columns import decisions
from lastword.records.decision import Decision
from lastword.rule.theta import Theta

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "experiments" / "results" / "evidence" / "own"
IMAGES = ROOT / "docs" / "images"
REAL = "lastword/smollm2-135m"
THETA = Theta()
WINDOW = {"width": 1180, "height": 780}


def main() -> None:
    with TemporaryDirectory() as folder:
        out = Path(folder)
        keep(draw.save(correction(everyday()), out))
        records = embedded_records()
        written = write(cells(records), THETA, out / "report")
        keep([path for path in written.paths if path.parent.name == "figures"])
        photograph(out / "report" / "index.html")


def keep(paths: Sequence[Path]) -> None:
    """Put the figures into the docs, as SVG."""
    for path in paths:
        if path.suffix == ".svg":
            shutil.copy(path, IMAGES / path.name)


def embedded_records() -> pd.DataFrame:
    """Return the records of lastword's benchmarks with their text."""
    cells = [RECORDS / model for model in ("lastword--demo-organism", "lastword--demo-control")]
    return pd.concat([everyday(), *(with_text(load_records(cell), "demo") for cell in cells)])


def everyday() -> pd.DataFrame:
    """Return the real model's records of `everyday`."""
    return with_text(load_records(RECORDS / REAL.replace("/", "--") / "everyday"), "everyday")


def with_text(records: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return records of one of lastword's benchmarks with their text restored."""
    benchmark = find(name)
    items = {item.id: item for item in benchmark.load(None).items(benchmark.template())}
    loaded = [items[id] for id in records["id"]]
    texts: dict[str, Any] = {
        "prompt": [item.prompt for item in loaded],
        "question": [item.question for item in loaded],
        "candidates": [list(item.candidates) for item in loaded],
    }
    return records.assign(**texts)


@draw.styled
def correction(records: pd.DataFrame) -> draw.Figure:
    """Return a figure of one item that is corrected and one that is broken.

    Of all items that `decisive` corrects (breaks) from depth 3 on, it shows the one with the median
    change of truthful probability.
    """
    changed = records[records["decisive_layer"] >= FIRST_DEEP]  # the others are chance
    repaired = median_of(changed[changed["mc1"] > changed["mc1_base"]])
    broken = median_of(changed[changed["mc1"] < changed["mc1_base"]])
    canvas, panels = draw.canvas(2, columns=1, lines=8)
    for axes, word, record in zip(panels, ("Repaired", "Broken"), (repaired, broken), strict=True):
        panel(axes, word, record)
    canvas.set_figwidth(draw.WIDTH)  # legible on a phone
    return draw.Figure("correction", "Repaired, broken", "", canvas)


def median_of(records: pd.DataFrame) -> Decision:
    """Return the record with the median change of truthful probability."""
    rows = decisions(records)
    order = np.argsort([change(row) for row in rows], kind="stable")
    return rows[int(order[(len(order) - 1) // 2])]


def change(record: Decision) -> float:
    rises = record.probabilities - record.base_probabilities
    return float(rises[list(record.truthful or ())].sum())


def panel(axes: Axes, word: str, record: Decision) -> None:
    """Draw one item's trajectory with a title that explains the two answers."""
    before, after = record.base_answer, record.answer
    title = f"{word}: {before} → {after}\n{fill(str(record.question), 40)}"
    draw.below(axes, trajectory(axes, record, THETA, title, "TRACE answers here"))
    axes.set_xlabel("blocks of the model, from input to output")


def photograph(page: Path) -> None:
    """Take pictures of the top of a report's page, and of its first corrected item."""
    from browser import started

    with started() as chromium, chromium.opened(page, viewport=WINDOW) as watched:
        view: Any = watched.page
        view.add_style_tag(content=".contents { position: static !important }")  # it follows along
        view.screenshot(path=str(IMAGES / "report.png"))
        view.select_option("select[name=outcome]", "fixed")
        view.locator(".list li button").first.click()
        view.wait_for_selector(".item .drawing .curve")
        view.locator("#items").screenshot(path=str(IMAGES / "report-item.png"))


if __name__ == "__main__":
    main()
