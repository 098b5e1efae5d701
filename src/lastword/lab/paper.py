"""The paper's grid of models, and estimates of its running time.

`lastword paper` runs it with the same functions as `lastword eval` and `lastword report`.
"""

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.lab.report.published import checkpoints, paper_model
from lastword.lab.report.table import Table, Value
from lastword.model.options import Dtype, Quantize

if TYPE_CHECKING:
    from lastword.model.forecast import Forecast
    from lastword.text.items import Item

EngineName = Literal["local", "ray"]
BENCHMARKS = ("truthfulqa", "halueval-qa", "halueval-sum")
# Quantised formats of checkpoints, besides those that lastword quantises at load.
_STORED = ("fp8", "mxfp4")
_COLUMNS = ("model", "revision", "dtype", "quantisation", "engine")
_CHARACTERS_A_TOKEN = 4  # approximately, in English text


@dataclass(frozen=True)
class GridModel:
    """A row of the grid of models.

    Attributes:
        name: Its name in records and tables; the paper's name if it is one of its models.
        revision: Branch, tag or commit on the hub; None for the main branch.
        quantize: Quantisation at load; None to load it as it is stored.
    """

    name: str
    model: str
    revision: str | None = None
    dtype: Dtype = "auto"
    quantize: Quantize | None = None
    engine: EngineName = "local"

    def options(self, device: str) -> DecideOptions:
        """Return the options to load it."""
        return DecideOptions(
            self.model,
            alias=self.name,
            revision=self.revision,
            dtype=self.dtype,
            quantize=self.quantize,
            device=device,
        )


def read_grid(path: Path | None, only: Sequence[str] = ()) -> list[GridModel]:
    """Return the models of a CSV file, or the paper's fifteen.

    Args:
        path: File with the columns `model, revision, dtype, quantisation, engine`, of which only
            `model` is required, and `paper` for the model's name in the paper if it differs.
        only: Names of rows or models to return; () for all.

    Raises:
        InputError: No such file, an unknown column or value, or two rows with one name.
    """
    rows = list(checkpoints().values()) if path is None else _read_rows(path)
    label = "the built-in grid" if path is None else str(path)
    models = [_model(dict(row), f"{label}, line {line}") for line, row in enumerate(rows, 2)]
    names = [model.name for model in models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{label} has two rows for {twice[0]}; keep one")
    requested = {name.casefold() for name in only}
    model_names = {text.casefold() for model in models for text in (model.name, model.model)}
    if unknown := sorted(requested - model_names):
        raise InputError(f"{label} has no model {unknown[0]!r}; it has {', '.join(names)}")
    selection = [
        m for m in models if not only or {m.name.casefold(), m.model.casefold()} & requested
    ]
    if not selection:
        raise InputError(f"{label} has no rows; add one row per model")
    return selection


def _read_rows(path: Path) -> "list[dict[str, str]]":
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows, heads = list(reader), reader.fieldnames or ()
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    unknown = [head for head in heads if head not in (*_COLUMNS, "paper")]
    if "model" not in heads or unknown:
        fault = f"column {unknown[0]!r} is unknown" if unknown else "there is no column 'model'"
        raise InputError(f"{path}: {fault}; expected {', '.join(_COLUMNS)}, and paper if need be")
    return [{name: value or "" for name, value in row.items() if name} for row in rows]


def _model(row: "dict[str, str]", location: str) -> GridModel:
    cells = {name: row.get(name, "").strip() for name in (*_COLUMNS, "paper")}
    if not cells["model"]:
        raise InputError(f"{location}: model is empty; give a hub name, folder or GGUF file")
    kinds = {"dtype": get_args(Dtype), "engine": get_args(EngineName)}
    kinds["quantisation"] = (*get_args(Quantize), *_STORED)
    for name, values in kinds.items():
        if cells[name] and cells[name] not in values:
            raise InputError(f"{location}: {name} is {cells[name]!r}; expected {', '.join(values)}")
    paper = cells["paper"] or cells["model"]
    if cells["paper"] and paper_model(paper) is None:
        names = ", ".join(checkpoints())
        raise InputError(f"{location}: the paper has no model {paper!r}; it has {names}")
    stored = cells["quantisation"] in ("", *_STORED)
    return GridModel(
        name=paper_model(paper) or cells["model"].rstrip("/").rsplit("/", 1)[-1],
        model=cells["model"],
        revision=cells["revision"] or None,
        dtype=cells["dtype"] or "auto",  # type: ignore[arg-type]
        quantize=None if stored else cells["quantisation"],  # type: ignore[arg-type]
        engine=cells["engine"] or "local",  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Volume:
    """The amount of text that a model reads, estimated from characters.

    Attributes:
        tokens: Approximate number of distinct tokens.
        reads: Approximate number of positions that are read at every depth.
    """

    tokens: int = 0
    reads: int = 0

    @classmethod
    def of(cls, items: "Iterable[Item]") -> "Volume":
        """Estimate the volume of items; the common prefix of prompts is counted once."""
        prompts = list(dict.fromkeys(item.prompt for item in items))
        # As the forest computes it: a preamble that all prompts begin with is read once.
        shared = len(os.path.commonprefix(prompts)) if len(prompts) > 1 else 0
        fresh = sum(len(prompt) - shared for prompt in prompts) + shared
        answers = sum(len(text) for item in items for text in item.candidates)
        reads = answers // _CHARACTERS_A_TOKEN
        return cls(fresh // _CHARACTERS_A_TOKEN + reads, reads)

    def __add__(self, other: "Volume") -> "Volume":
        """Return the sum with the volume of another benchmark."""
        return Volume(self.tokens + other.tokens, self.reads + other.reads)


def plan_table(
    models: Sequence[GridModel],
    forecasts: "Sequence[Forecast]",
    volume: Volume | None,
    speed: float,
) -> Table:
    """Return a table of each model's estimated cost, before anything is downloaded.

    `volume` is None if the data are not available; `speed` is in floating-point operations per
    second.
    """
    heads = "Model | Checkpoint | Memory GB .1 | Disk GB .1 | Hours .2 | Missing"
    rows = []
    for model, forecast in zip(models, forecasts, strict=True):
        operations = None if volume is None else forecast.operations(volume.tokens, volume.reads)
        missing = [*forecast.missing, *(["memory"] if forecast.lacks_memory else [])]
        size = None if forecast.need is None else forecast.need.total
        values: tuple[Value, ...] = (
            _scaled(size, 1e9),
            _scaled(forecast.disk, 1e9),
            _scaled(operations, 3600 * speed),
        )
        rows.append((model.name, model.model, *values, "; ".join(missing) or "nothing"))
    notes = (
        "Memory: weights as they are kept once loaded, the head's copy on a CPU, and one batch.",
        f"Hours: what the blocks and the head compute at {speed / 1e9:,.0f} billion operations a "
        "second, which a matrix product reached on this device; attention, loading and what a "
        "model leaves unused come on top. Tokens are counted as four characters each.",
    )
    return Table.of("plan", "What the grid takes", heads, rows, notes)


def _scaled(value: int | float | None, unit: float) -> float:
    return float("nan") if value is None else value / unit
