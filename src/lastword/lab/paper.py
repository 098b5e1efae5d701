"""The paper's grid of models.

`lastword paper` runs it with the same functions as `lastword eval` and `lastword report`.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.lab.report.published import checkpoints, paper_model
from lastword.model.options import Dtype, Quantize

BENCHMARKS = ("truthfulqa", "halueval-qa", "halueval-sum")
# The columns of a grid, with their values where these are limited; "" is the default.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "paper": (),
    "model": (),
    "revision": (),
    "dtype": ("", *get_args(Dtype)),
    # fp8 and mxfp4 are quantised as they are stored.
    "quantisation": ("", *get_args(Quantize), "fp8", "mxfp4"),
}


def read_grid(
    path: Path | None, only: Sequence[str] = (), device: str = "auto"
) -> list[DecideOptions]:
    """Return the models of a CSV file, or the paper's fifteen; the alias is a model's name.

    Args:
        path: File with the columns `model, revision, dtype, quantisation`, of which only `model`
            is required, and `paper` for the model's name in the paper if it differs.
        only: Names of rows or models to return; () for all.
        device: Device on which they run.

    Raises:
        InputError: No such file, an unknown column or value, or two rows with one name.
    """
    rows = list(checkpoints().values()) if path is None else _read_rows(path)
    label = "the built-in grid" if path is None else str(path)
    models = [_model(dict(row), f"{label}, line {line}") for line, row in enumerate(rows, 2)]
    names = [str(model.alias) for model in models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{label} has two rows for {twice[0]}; keep one")
    known = {text.casefold(): m for m in models for text in (str(m.alias), str(m.model))}
    if unknown := [name for name in only if name.casefold() not in known]:
        raise InputError(f"{label} has no model {unknown[0]!r}; it has {', '.join(names)}")
    chosen = [known[name.casefold()] for name in only] or models
    if not chosen:
        raise InputError(f"{label} has no rows; add one row per model")
    return [replace(model, device=device) for model in models if model in chosen]


def _read_rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            rows, heads = list(reader), reader.fieldnames or ()
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if "model" not in heads or {*heads} - {*_COLUMNS}:
        raise InputError(
            f"{path} has the columns {', '.join(heads)}; expected model, and of the others "
            f"{', '.join(name for name in _COLUMNS if name != 'model')}"
        )
    return rows


def _model(row: dict[str, str], location: str) -> DecideOptions:
    cells = {name: row.get(name, "").strip() for name in _COLUMNS}
    if not cells["model"]:
        raise InputError(f"{location}: model is empty; give a hub name, folder or GGUF file")
    for name, values in _COLUMNS.items():
        if values and cells[name] not in values:
            raise InputError(
                f"{location}: {name} is {cells[name]!r}; expected {', '.join(values[1:])}"
            )
    if cells["paper"] and paper_model(cells["paper"]) is None:
        names = ", ".join(checkpoints())
        raise InputError(f"{location}: the paper has no model {cells['paper']!r}; it has {names}")
    model, quantize = cells["model"], cells["quantisation"]
    return DecideOptions(
        model,
        alias=paper_model(cells["paper"] or model) or model.rstrip("/").rsplit("/", 1)[-1],
        revision=cells["revision"] or None,
        dtype=cells["dtype"] or "auto",  # type: ignore[arg-type]
        quantize=quantize if quantize in get_args(Quantize) else None,  # type: ignore[arg-type]
    )
