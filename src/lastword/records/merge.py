"""Joins the parts of shards, and of one cell from several places, into cells."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lastword.records.disk import locked
from lastword.records.info import RUN_FILE, cell_folder, find_cells, plan_of, read_run, require_same
from lastword.records.parts import part_folders, part_paths, read_sound
from lastword.records.run import Run


@dataclass(frozen=True)
class Merged:
    """The result of merging one cell; `missing` items have no record in any source."""

    folder: Path
    items: int
    missing: int


def merge(sources: Sequence[Path], out: Path | None = None) -> list[Merged]:
    """Join the parts of shards, and of one cell from several places, into their cells.

    The sources are not changed. Nothing is written if two runs of a cell differ.

    Args:
        sources: Results folders of `lastword eval`, at any level.
        out: Root of the joined cells; None joins shards into the cells that contain them.
    """
    targets: dict[Path, list[Path]] = {}
    for cell in dict.fromkeys(chain.from_iterable(find_cells(s) for s in sources)):
        info = read_run(cell)
        target = cell if out is None else cell_folder(out, info["model"], info["benchmark"])
        targets.setdefault(target, []).append(cell)
    for target, cells in targets.items():
        require_same([*([target] if (target / RUN_FILE).exists() else []), *cells])
    return [_merge_cell(target, cells) for target, cells in targets.items()]


def _merge_cell(target: Path, cells: Sequence[Path]) -> Merged:
    infos = [read_run(cell) for cell in cells]
    longest = max((info["plan"] for info in infos), key=len)
    info = {k: v for k, v in infos[0].items() if k != "created"} | {"plan": longest}
    with Run(target, info) as run:
        if further := plan_of(info)[len(run.info["plan"]) :]:
            run.extend(further)
        plan = run.plan
        for folder in chain.from_iterable(part_folders(cell) for cell in cells):
            if folder == target:
                continue
            # A source that we cannot lock, such as a read-only archive, has no writer either.
            archive = not os.access(folder, os.W_OK)
            with nullcontext() if archive else locked(folder):
                for group, path in part_paths(folder).items():
                    if group in run.gaps and read_sound(path, plan, group) is not None:
                        run.keep(group, path.read_bytes())
        return Merged(target, info["items"], info["items"] - run.records)
