"""A cell: the records of one model on one benchmark, and their metrics (docs/benchmarks.md).

A record has a few kilobytes, mostly texts and trajectories. What every metric needs is in memory:
scores as arrays [items, candidates], padded with -inf for items with fewer candidates than the
widest, and nan for items without them. Everything else is read from the parts in pieces.

Shares (MC1, MC2, ...) lie in [0, 1] here and in every other module of the package; only tables and
figures multiply by 100. Failed items are excluded from both means, and counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.files.wording import counted
from lastword.records.columns import COLUMNS, Row, to_frame, to_table
from lastword.records.info import RunInfo, read_runs, run_name
from lastword.records.metrics import (
    PerItem,
    Places,
    Rows,
    Truths,
    calibration_error,
    fixed_and_broken,
    mc1_rows,
    mc3_rows,
    of_items,
    pair_accuracy,
)
from lastword.records.store import part_files, read_part
from lastword.rule.geometry import Scores
from lastword.rule.operators import OPERATORS

if TYPE_CHECKING:
    import pandas as pd

Part: TypeAlias = Path | pa.Table  # a file, or records in memory

_AT_ONCE = 1 << 18  # maximum number of candidates that are read at once
_IN_MEMORY = (
    *("id", "error", "invariant", "regime", "operator", "index", "base_index"),
    *("mc1_base", "mc1", "mc2_base", "mc2"),
)
_SCORES = ("base_scores", "scores", "t_scores", "blind_scores", "blind_t_scores")


@dataclass(frozen=True)
class CellCounts:
    """Counts of a cell's items, computed once so that every page shows the same numbers.

    Attributes:
        items: Answered items that count for MC1: they have a truthful and a false candidate.
        mc2: Answered items that count only for MC2.
        unlabelled: Answered items that count for neither.
        failed: Items without an answer.
    """

    items: int
    mc2: int = 0
    unlabelled: int = 0
    failed: int = 0

    def __add__(self, other: "CellCounts") -> "CellCounts":
        """Return the sum with the counts of another cell."""
        return CellCounts(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


class Cell:
    """The records of one model on one benchmark, in the benchmark's order.

    Attributes:
        info: The `run.json` of the records.
        benchmark: The benchmark's name, with its template if that is not the default.
        parts: The files of the records, or the records.
        records: Numbers and names of every record.
        items: The same of the answered items, which every other member counts.
        answer_places: Indices of the answered items' records.
        mc1_places: Indices of the items that count for MC1.
        mc2_places: Indices of the items that count for MC2 and MC3.
        present: True for each candidate, False in the padding [items, candidates].
        truthful: True for each truthful candidate [items, candidates].
        scores: Scores by the name of their column, in nats [items, candidates].
    """

    def __init__(self, info: RunInfo, parts: Sequence[Part]) -> None:
        """Read what stays in memory; of records with equal places the first counts."""
        self.info, self.parts = info, parts
        self.model, self.benchmark = str(info["model"]), str(info["benchmark"])
        names = ("place", *_IN_MEMORY, "truthful", *_SCORES)
        tables = [_table(part, names) for part in parts]
        self._starts = np.cumsum([0, *(table.num_rows for table in tables)])
        table = pa.concat_tables([_table(COLUMNS.empty_table(), names), *tables])
        _, self._rows = np.unique(table["place"].to_numpy(), return_index=True)
        table = table.take(self._rows)
        self.records: pd.DataFrame = table.select(_IN_MEMORY).to_pandas()
        self.answer_places: Places = np.flatnonzero(self.records["error"].isna())
        self.items = self.records.iloc[self.answer_places].reset_index(drop=True)
        self.failed = len(self.records) - len(self.items)
        self.mc1_places, self.mc2_places = (
            np.flatnonzero(self.items[f"{name}_base"].notna()) for name in ("mc1", "mc2")
        )
        table = table.take(self.answer_places)
        counts = _lengths(table["base_scores"].combine_chunks())
        self.present: Truths = np.arange(counts.max(initial=1)) < counts[:, None]
        everything = np.arange(len(self.items))
        self.truthful: Truths = self.stack(everything, table["truthful"]) == 1
        self.scores = {name: self.stack(everything, table[name]) for name in _SCORES}

    def pieces(self, *names: str, items: Places | None = None) -> Iterator[tuple[Places, pa.Table]]:
        """Yield columns of items, a bounded number at a time: their indices, and a table."""
        places = np.arange(len(self.items)) if items is None else items
        step = max(1, _AT_ONCE // self.present.shape[1])
        for some in (places[at : at + step] for at in range(0, len(places), step)):
            yield some, self._take(self.answer_places[some], names)

    def frames(self, *names: str, items: Places | None = None) -> "Iterator[pd.DataFrame]":
        """Yield the same as frames whose indices are those of the items, with arrays as values."""
        for places, table in self.pieces(*names, items=items):
            yield to_frame(table, self.info).set_index(places)

    def whole(self, places: Places) -> "pd.DataFrame":
        """Return all columns of some records, in this order, as `load_records` does."""
        return to_frame(self._take(places, COLUMNS.names), self.info)

    def stack(self, items: Places, column: pa.ChunkedArray) -> np.ndarray:
        """Return a column of items with one entry per candidate as an array [items, candidates].

        Entries that are lists, as of a trajectory, add a last axis, with nan after short lists. An
        item with another number of entries than of candidates raises RecordError.
        """
        lists, present = column.combine_chunks(), self.present[items]
        lengths = _lengths(lists)
        odd = (lengths != present.sum(axis=1)) & (lengths > 0)
        if odd.any():
            name = self.items["id"].iloc[items[odd.argmax()]]
            raise RecordError(
                f"{self.model} on {self.benchmark}, item {name}: it has other numbers of scores "
                "and candidates; run `lastword eval` again"
            )
        values = _array(pc.list_flatten(lists))
        stacked = np.full(present.shape + values.shape[1:], -np.inf)
        stacked[lengths == 0] = np.nan
        stacked[present & (lengths > 0)[:, None]] = values
        return stacked

    def stack_by_name(self, items: Places, column: pa.ChunkedArray) -> dict[str, Rows]:
        """Return a column of named scores as one array per name that every item has."""
        pairs = column.combine_chunks()
        flat = pc.list_flatten(pairs)
        keys, lists = (pc.struct_field(flat, part) for part in ("key", "value"))
        named = {key: lists.filter(pc.equal(keys, key)) for key in pc.unique(keys).to_pylist()}
        return {
            key: self.stack(items, pa.chunked_array([some]))
            for key, some in named.items()
            if len(some) == len(items)
        }

    def _take(self, places: Places, names: Sequence[str]) -> pa.Table:
        """Return columns of records; each part is opened once, whatever the order of places."""
        distinct, inverse = np.unique(self._rows[places], return_inverse=True)
        part = np.searchsorted(self._starts, distinct, side="right") - 1
        tables = [_table(COLUMNS.empty_table(), names)]
        for number in np.unique(part):
            rows = distinct[part == number] - self._starts[number]
            tables.append(_table(self.parts[number], names).take(rows))
        table = pa.concat_tables(tables)
        return table if (np.diff(inverse) == 1).all() else table.take(inverse)

    @cached_property
    def counts(self) -> CellCounts:
        """The counts of the cell's items."""
        only_mc2 = np.setdiff1d(self.mc2_places, self.mc1_places).size
        neither = len(self.items) - self.mc1_places.size - only_mc2
        return CellCounts(self.mc1_places.size, only_mc2, neither, self.failed)

    def gains(self, metric: str) -> PerItem:
        """Return corrected minus base `mc1` or `mc2` of each item that counts for it."""
        gains = column(self.items, metric) - column(self.items, f"{metric}_base")
        values: PerItem = gains[self.mc1_places if metric == "mc1" else self.mc2_places]
        return values

    @cached_property
    def chance(self) -> float:
        """Mean share of truths among the candidates: the expected MC1 of a random choice."""
        truthful, present = (a[self.mc1_places].sum(axis=1) for a in (self.truthful, self.present))
        return mean(truthful / present)

    @cached_property
    def characters(self) -> Rows:
        """The number of characters of each candidate of each item [items, candidates]."""
        return self.sizes(pc.utf8_length)

    def sizes(self, size: Callable[[pa.Array], pa.Array] = pc.binary_length) -> Rows:
        """Return the size of each candidate of each item, by default in UTF-8 bytes."""
        lengths = np.full(self.present.shape, -np.inf)
        for items, table in self.pieces("candidates"):
            texts = table["candidates"].combine_chunks()
            sizes = pa.ListArray.from_arrays(texts.offsets, size(texts.values))
            lengths[items] = self.stack(items, pa.chunked_array([sizes]))
        return lengths

    @cached_property
    def wordings(self) -> Mapping[str, float]:
        """Mean MC1 of baselines that do not read the question, by name; nan if not recorded.

        `shortest` and `longest` choose by characters, so that they are equal for all models.
        `question-blind` and `anti-blind` choose by the scores after the blind prompt.
        """
        first, blind = self.mc1_places, self.scores["blind_scores"]
        scores = {
            "shortest": self.least_first(self.characters),
            "longest": self.characters,
            "question-blind": blind,
            "anti-blind": self.least_first(blind),
        }
        shares = {n: of_items(mc1_rows, u, self.truthful)[first] for n, u in scores.items()}
        return {name: mean(share) for name, share in shares.items()}

    def base_scores(self, item: int) -> Scores:
        """Return b of one item, without padding, in nats [candidates]."""
        scores: Scores = self.scores["base_scores"][item][self.present[item]]
        return scores

    def least_first(self, scores: Rows) -> Rows:
        """Return scores that rank the candidates in the opposite order."""
        return np.where(self.present, -scores, scores)


@dataclass(frozen=True)
class Summary:
    """One line of the report's main table. All shares lie in [0, 1].

    Attributes:
        invariant: I(M); nan if the records have none.
        scalar: Share of items in the scalar regime.
        fired: Share of items by operator: `decisive`, `mix` (lambda not 0), `early`, and others.
        pairs: Share of pairs with both corrected answers right; nan without pairs.
    """

    model: str
    benchmark: str
    counts: CellCounts
    invariant: float
    chance: float
    mc1_base: float
    mc1: float
    mc2_base: float
    mc2: float
    mc3_base: float
    mc3: float
    ece_base: float
    ece: float
    fixed: int
    broken: int
    scalar: float
    fired: Mapping[str, float]
    pairs_base: float
    pairs: float

    @property
    def delta_mc1(self) -> float:
        """Corrected minus base MC1, in [-1, 1]."""
        return self.mc1 - self.mc1_base

    @property
    def delta_mc2(self) -> float:
        """Corrected minus base MC2, in [-1, 1]."""
        return self.mc2 - self.mc2_base


def cell_of(rows: Sequence[Row], info: RunInfo) -> Cell:
    """Return the cell made of records in memory."""
    return Cell(info, (to_table(list(rows)),))


def read_cells(path: Path) -> list[Cell]:
    """Return every cell at or under a path."""
    return [Cell(info, part_files(folder)) for folder, info in read_runs(path).items()]


def load_records(path: str | Path) -> "pd.DataFrame":
    """Return every record at or under a path, in the benchmark's order, one row per item.

    The columns are `run`, `model` and `template`, then `lastword.records.columns.COLUMNS`. `run` is
    the folder of the run relative to the path (`first` for `first/MODEL/BENCHMARK`, empty for the
    path itself); it distinguishes runs of one model on one benchmark. `trajectory` and
    `blind_trajectory` are arrays [candidates, depths], other lists of numbers arrays [candidates],
    `candidates` a list of texts, and `gates` a dictionary by gate. `benchmark` includes a template
    other than the default (`truthfulqa@own6`). Shards need not be merged.

    Args:
        path: A cell's folder, or any folder above.

    Raises:
        RecordError: There are no records, a part is damaged, or one run has two cells of one name.
    """
    import pandas as pd

    root = Path(path)
    frames = []
    for folder, info in read_runs(root, apart=True).items():
        cell = Cell(info, part_files(folder))
        frame = cell.whole(np.arange(len(cell.records)))
        frame.insert(0, "run", run_name(root, folder))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _table(part: Part, names: Sequence[str]) -> pa.Table:
    return part.select(names) if isinstance(part, pa.Table) else read_part(part, names)


def _lengths(lists: pa.Array) -> Int[np.ndarray, " items"]:
    """Return the length of each list; 0 for null."""
    lengths: np.ndarray = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(
        zero_copy_only=False
    )
    return lengths


def _array(values: pa.Array) -> np.ndarray:
    """Return numbers as float64 [values], or lists of them [values, depths], padded with nan."""
    if not pa.types.is_list(values.type):
        numbers: np.ndarray = values.to_numpy(zero_copy_only=False).astype(float)
        return numbers
    lengths, numbers = _lengths(values), _array(pc.list_flatten(values))
    filled = np.arange(lengths.max(initial=1)) < lengths[:, None]
    rows = np.full(filled.shape, np.nan)
    rows[filled] = numbers
    return rows


def require_counted(cells: Sequence[Cell]) -> None:
    """Refuse cells without an item that counts for a metric, with the reason."""
    counts = sum((cell.counts for cell in cells), CellCounts(0))
    if counts.items or counts.mc2:
        return
    why = f"{counts.unlabelled:,} items have no labels" if counts.unlabelled else "no item answered"
    errors = [text for cell in cells for text in cell.records["error"].dropna().head(1)]
    such = f"; {counted(counts.failed, 'item')} failed, such as with: {errors[0]}" if errors else ""
    raise RecordError(f"there is nothing to reduce: {why}{such}")


def benchmark_of(name: str) -> str:
    """Return a benchmark's name without its template: `truthfulqa` for `truthfulqa@own6`."""
    return name.split("@", 1)[0]


def summarise(cell: Cell) -> Summary:
    """Return the summary of a cell, one line of the report's tables."""
    items, first, second = cell.items, cell.mc1_places, cell.mc2_places
    fixed, broken = fixed_and_broken(cell.gains("mc1"))
    ids = items["id"].iloc[first].astype(str).tolist()
    # If every item failed, only the run knows the model's.
    stored = column(items, "invariant")
    invariant = float(stored[0] if stored.size else cell.info.get("invariant", np.nan))
    # Shares are over the items that count for MC1, if there are any: a TruthfulQA question gives
    # two items, one for MC1 and one for MC2. The paper's 5.26% of scalar items is 43 of 817.
    routed, operators = first if first.size else np.arange(len(items)), items["operator"]
    names = dict.fromkeys([*OPERATORS, *sorted(operators.dropna().astype(str).unique())])
    names.pop("base")
    return Summary(
        model=cell.model,
        benchmark=cell.benchmark,
        counts=cell.counts,
        invariant=invariant,
        chance=cell.chance,
        mc1_base=mean(column(items, "mc1_base")[first]),
        mc1=mean(column(items, "mc1")[first]),
        mc2_base=mean(column(items, "mc2_base")[second]),
        mc2=mean(column(items, "mc2")[second]),
        mc3_base=mean(of_items(mc3_rows, cell.scores["base_scores"], cell.truthful)[second]),
        mc3=mean(of_items(mc3_rows, cell.scores["scores"], cell.truthful)[second]),
        ece_base=_calibration(cell, "base_scores"),
        ece=_calibration(cell, "scores"),
        fixed=fixed,
        broken=broken,
        scalar=mean((items["regime"] == "scalar").to_numpy(float)[routed]),
        fired={n: mean((operators == n).to_numpy(float)[routed]) for n in names},
        pairs_base=pair_accuracy(ids, column(items, "mc1_base")[first]),
        pairs=pair_accuracy(ids, column(items, "mc1")[first]),
    )


def _calibration(cell: Cell, scores: str) -> float:
    tops = softmax(cell.scores[scores][cell.mc1_places], axis=1).max(axis=1)
    right = column(cell.items, "mc1_base" if scores == "base_scores" else "mc1")
    return calibration_error(tops, right[cell.mc1_places])


def column(items: "pd.DataFrame", name: str) -> PerItem:
    """Return a column as float64 [items], with null as nan."""
    return items[name].astype(float).to_numpy(dtype=float)


def mean(values: PerItem | Sequence[float]) -> float:
    """Return the unweighted mean; nan if a value is nan or there are no values."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()) if array.size else float("nan")


def mean_defined(values: PerItem | Sequence[float]) -> float:
    """Return the unweighted mean of the values that are not nan; nan if there are none."""
    array = np.asarray(values, dtype=float)
    return mean(array[~np.isnan(array)])
