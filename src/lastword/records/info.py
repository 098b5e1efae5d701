"""The `run.json` of a cell, and the comparison of runs.

The folder of a cell is `OUT/<model>/<benchmark>[@template]/`. Its `run.json` describes the run and
is written once.

A file that is missing, damaged or of another run raises `RecordError`.
"""

import json
import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from lastword.errors import RecordError
from lastword.rule.theta import Theta

SCHEMA = 1
RUN_FILE = "run.json"

# Fields that may differ between two starts of one run: time, machine, command line, copy of the
# data, and the noise measured by the check at load.
_CIRCUMSTANCE = (
    *("created", "asked", "device", "machine", "check", "dataset.source"),
    "invariant_readings",  # follows from the weights, whose digests are compared
)

# Numbers depend on these versions, so a cell cannot mix records made with different ones.
_PACKAGES = ("lastword", "torch", "transformers", "tokenizers")

RunInfo = dict[str, Any]


def packages() -> dict[str, str]:
    """Return the versions of the packages on which numbers depend."""
    return {name: version(name) for name in _PACKAGES}


def machine() -> dict[str, str]:
    """Return the description of this machine in `run.json`."""
    return {"system": platform.platform(), "python": platform.python_version()}


def cell_folder(out: Path, model: str, benchmark: str) -> Path:
    """Return the folder of a cell, `OUT/<model>/<benchmark>`, with safe names."""
    return out / folder_name(model) / folder_name(benchmark)


def folder_name(name: str) -> str:
    """Return a name valid on every file system: `/` becomes `--`, other characters `-`."""
    safe = re.sub(r"[^\w.@+=-]", "-", name.replace("/", "--"))
    return safe if safe.strip(".") else f"-{safe}"


def find_cells(path: Path) -> list[Path]:
    """Return every cell at or under a path, sorted: the folders with a `run.json`."""
    cells = sorted(file.parent for file in path.rglob(RUN_FILE)) if path.is_dir() else []
    if not cells:
        raise RecordError(f"no records in {path}; expected a folder that `lastword eval` wrote")
    return cells


def read_run(folder: Path) -> RunInfo:
    """Return the content of a folder's `run.json`."""
    path = folder / RUN_FILE
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}; choose another --out") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        schema = info.get("schema") if isinstance(info, dict) else None
        raise RecordError(f"{path} has schema {schema}; this version of lastword reads {SCHEMA}")
    return info


def run_name(root: Path, cell: Path) -> str:
    """Return the folder of a cell's run, relative to a root."""
    return "/".join(cell.parts[len(root.parts) : -2])


def read_runs(path: Path, *, apart: bool = False) -> dict[Path, RunInfo]:
    """Return the run of every cell at or under a path.

    With `apart`, several runs may have cells of one name.
    """
    runs = {cell: read_run(cell) for cell in find_cells(path)}
    cells: dict[tuple[str, str, str], Path] = {}
    for cell, info in runs.items():
        name = (run_name(path, cell) if apart else "", info["model"], info["benchmark"])
        other = cells.setdefault(name, cell)
        if other != cell:
            raise RecordError(
                f"{other} and {cell} are both {' on '.join(name[1:])}; load one of them"
            )
    return runs


def differences(old: RunInfo, new: RunInfo) -> list[str]:
    """Return a phrase per difference of two runs; [] if their records may be in one cell."""
    # Through JSON, as in a file: one of the two may have tuples where the other has lists.
    was, now = (dict(_flat(json.loads(json.dumps(info)))) for info in (old, new))
    ignored = tuple(f"{name}." for name in _CIRCUMSTANCE)
    names = [n for n in dict.fromkeys([*was, *now]) if not f"{n}.".startswith(ignored)]
    return [
        f"{n} was {_short(was.get(n))} and is {_short(now.get(n))}"
        for n in names
        if not _same(was.get(n), now.get(n))
    ]


def require_same(cells: Sequence[Path]) -> None:
    """Raise RecordError if a cell is of another run than the first."""
    first = read_run(cells[0])
    for other in cells[1:]:
        if phrases := differences(first, read_run(other)):
            raise RecordError(f"{cells[0]} and {other} have different runs: {'; '.join(phrases)}")


def one_theta(runs: Iterable[RunInfo]) -> Theta:
    """Return the Theta that all runs share."""
    thetas = {f"{run['model']} on {run['benchmark']}": run["theta"] for run in runs}
    (first, theta), *rest = [
        (name, Theta.from_dict(constants)) for name, constants in thetas.items()
    ]
    for name, other in rest:
        if other != theta:
            raise RecordError(f"{first} and {name} have different Thetas; ablate them separately")
    return theta


def uncertain_branches(infos: Iterable[RunInfo]) -> list[str]:
    """Return a sentence per model whose variants of I(M) lie on both sides of tau_I."""
    sentences = {}
    for run in infos:
        values = [value for value in (run.get("invariant_readings") or {}).values() if value]
        tau_I = run["theta"]["tau_I"]
        if len({value > tau_I for value in values}) > 1:
            sentences[run["model"]] = (
                f"{run['model']}: the variants of I(M) lie on both sides of tau_I = {tau_I:g} "
                f"({min(values):.2f} to {max(values):.2f}), so the scalar branch depends on them"
            )
    return list(sentences.values())


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(name, value)]
    return chain.from_iterable(_flat(v, f"{name}.{k}" if name else k) for k, v in value.items())


def _same(a: Any, b: Any) -> bool:
    """Return True if values are equal up to rounding; I(M) is summed in an order set by the CPU."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b))
    return bool(a == b)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
