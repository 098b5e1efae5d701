"""The paper's grid of models.

`lastword paper` runs it with the same functions as `lastword eval` and `lastword report`.
"""

from pathlib import Path
from typing import Any, get_args

from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.lab.report.published import checkpoints, paper_model
from lastword.model.options import Quantize, refuse_unknown

BENCHMARKS = ("truthfulqa", "halueval-qa", "halueval-sum")


def read_grid(path: Path | None, device: str = "auto") -> list[DecideOptions]:
    """Return the models of a table, or the paper's fifteen; the alias is a model's name.

    Args:
        path: File whose columns are options of a model, such as `model`, `alias` and `dtype`. An
            alias that is a name of the paper compares the model with the published numbers.
        device: Device on which they run.

    Raises:
        InputError: No such file, an unknown column or value, or two rows with one name.
    """
    label = "the built-in grid" if path is None else str(path)
    rows = _built_in() if path is None else read_objects(path)
    models = [_model(row, f"{label}, row {n}", device) for n, row in enumerate(rows, 1)]
    names = [str(model.alias) for model in models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{label} has two rows for {twice[0]}; keep one")
    return models


def _built_in() -> list[dict[str, Any]]:
    """Return the paper's models; fp8 and mxfp4 are quantised as they are stored."""
    return [
        {
            "model": row["model"],
            "alias": name,
            "dtype": row["dtype"],
            "quantize": row["quantisation"] if row["quantisation"] in get_args(Quantize) else "",
        }
        for name, row in checkpoints().items()
    ]


def _model(row: dict[str, Any], place: str, device: str) -> DecideOptions:
    options = {name: value for name, value in row.items() if value}
    if not (model := options.pop("model", "")):
        raise InputError(f"{place}: model is empty; give a hub name, folder or GGUF file")
    refuse_unknown(place, options, DecideOptions)
    if (kind := options.get("quantize")) not in (None, *get_args(Quantize)):
        raise InputError(f"{place}: quantize is {kind!r}; expected {', '.join(get_args(Quantize))}")
    name = options.pop("alias", None) or model.rstrip("/").rsplit("/", 1)[-1]
    try:
        return DecideOptions(model, alias=paper_model(name) or name, device=device, **options)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
