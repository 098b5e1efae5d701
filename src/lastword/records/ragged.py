"""Columns: lists or matrices of many items as flat arrays, with the start of each item.

There is no Python object per item. Items of one shape are stacked and reduced together, in steps
of bounded size. Three items with the lists [a b], none and [c d e] are stored as

    values   a b c d e
    starts   0   2 2        lengths   2 0 3

Arrow's list arrays have the same layout. This module adds two operations that Arrow lacks: it
gathers items of one length as a rectangle, and writes results back to their places.

Lists of unexpected lengths raise `InputError`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from lastword.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

PerItem = Float[np.ndarray, " items"]
Places = Int[np.ndarray, " places"]

_STACKED = 1 << 20  # maximum number of values that are stacked at once


@dataclass(frozen=True, eq=False)
class Lists:
    """One list per item, of unequal lengths.

    Attributes:
        values: The values of all items, one item after the other [values].
        starts: Index of each item's first value [items].
        lengths: Number of each item's values; 0 if it has no list [items].
    """

    values: np.ndarray
    starts: Int[np.ndarray, " items"]
    lengths: Int[np.ndarray, " items"]

    @classmethod
    def of(cls, column: "pd.Series[Any]") -> "Lists":
        """Return a column of lists or arrays, in Arrow or in Python, as `Lists`."""
        return cls._of_arrow(_arrow(column))

    @classmethod
    def _of_arrow(cls, lists: "pa.Array") -> "Lists":
        import pyarrow.compute as pc

        values = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
        return cls(values, *_spans(lists))

    @classmethod
    def characters(cls, column: "pd.Series[Any]") -> "Lists":
        """Return the number of characters of each text in a column of lists of texts."""
        return cls._of_texts(column, "utf8_length")

    @classmethod
    def sizes(cls, column: "pd.Series[Any]") -> "Lists":
        """Return the number of UTF-8 bytes of each text in a column of lists of texts."""
        return cls._of_texts(column, "binary_length")

    @classmethod
    def _of_texts(cls, column: "pd.Series[Any]", length: str) -> "Lists":
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = _arrow(column, pa.string())
        lengths = getattr(pc, length)(pc.list_flatten(texts)).to_numpy(zero_copy_only=False)
        return cls(lengths.astype(float), *_spans(texts))

    @classmethod
    def by_name(cls, column: "pd.Series[Any]") -> "dict[str, Lists]":
        """Return a column of named lists as one `Lists` per name that every item has."""
        import pyarrow.compute as pc

        items = _pairs(column)
        pairs = pc.list_flatten(items)
        names, lists = (pc.struct_field(pairs, part) for part in ("key", "value"))
        by_key = {
            name: lists.filter(pc.equal(names, name)) for name in pc.unique(names).to_pylist()
        }
        return {n: cls._of_arrow(some) for n, some in by_key.items() if len(some) == len(items)}

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.starts)

    def at(self, items: Places) -> "Lists":
        """Return the lists of the items at these indices."""
        return replace(self, starts=self.starts[items], lengths=self.lengths[items])

    def stack(self, items: Places) -> np.ndarray:
        """Return the lists of some items, all of one length, as an array [items, candidates]."""
        count = int(self.lengths[items[0]]) if len(items) else 0
        stacked: np.ndarray = self.values[self.starts[items][:, None] + np.arange(count)]
        return stacked

    @property
    def places(self) -> Places:
        """The indices of the values, item by item."""
        # 0, 1, 2, ... within each item, then shifted to where the item starts.
        before = np.cumsum(self.lengths) - self.lengths
        within = np.arange(self.lengths.sum()) - np.repeat(before, self.lengths)
        places: Places = np.repeat(self.starts, self.lengths) + within
        return places

    def filled(self, pieces: "Iterable[tuple[Places, Lists]]") -> "Lists":
        """Return the lists of all pieces in this layout; items in no piece get empty lists."""
        values, lengths = np.full(len(self.values), np.nan), np.zeros_like(self.lengths)
        for items, lists in pieces:
            if (lists.lengths != self.lengths[items])[lists.lengths > 0].any():
                raise InputError("an item has different numbers of scores and candidates")
            target = replace(self, starts=self.starts[items], lengths=lists.lengths)
            values[target.places] = lists.values[lists.places]
            lengths[items] = lists.lengths
        return replace(self, values=values, lengths=lengths)

    def of_rows(self, rows: "Sequence[np.ndarray | None]") -> "Lists":
        """Return one list per row in this layout; a row that is None gives an empty list."""
        arrays = [np.empty(0) if row is None else row for row in rows]
        lengths = np.array([len(row) for row in arrays], dtype=np.int64)
        values = np.concatenate([np.empty(0), *arrays])
        return self.filled(
            [(np.arange(len(self)), Lists(values, np.cumsum(lengths) - lengths, lengths))]
        )

    def padded(self, width: int) -> np.ndarray:
        """Return the lists as an array [items, width], padded with 0."""
        filled = np.zeros((len(self), width), dtype=self.values.dtype)
        # The mask selects row by row, in the order of the values.
        filled[np.arange(width) < self.lengths[:, None]] = self.values[self.places]
        return filled

    def alike(self, items: Places | None = None) -> Iterator[Places]:
        """Yield the indices of items with equally long lists; items without a list are skipped."""
        yield from _alike(self.lengths, self.lengths, items)

    def each(
        self, value: Callable[..., PerItem], *others: "Lists", items: Places | None = None
    ) -> PerItem:
        """Return one value per item; nan if one of its lists is empty.

        Args:
            value: Function of these and the other lists, each stacked [items, candidates].
            others: Further lists of the same items.
            items: Indices of the items to compute; None for all.
        """
        among = np.arange(len(self)) if items is None else items
        complete = among[np.all([other.lengths[among] > 0 for other in (self, *others)], axis=0)]
        values = np.full(len(self), np.nan)
        for places in self.alike(complete):
            values[places] = value(*(lists.stack(places) for lists in (self, *others)))
        return values[among]


@dataclass(frozen=True, eq=False)
class Matrices:
    """One matrix per item, such as its trajectory [candidates, depths], of unequal shapes.

    Attributes:
        numbers: The values of each, row by row; an empty list if there is no matrix.
        rows: Number of rows (candidates) of each; 0 if there is no matrix [items].
    """

    numbers: Lists
    rows: Int[np.ndarray, " items"]

    @classmethod
    def of(cls, column: "pd.Series[Any]") -> "Matrices":
        """Return a column of arrays, or of Arrow's lists of equally long lists, as `Matrices`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        held = hasattr(column.dtype, "pyarrow_dtype")
        # A frame has nan where an item has no matrix.
        plain = [list(row) if np.iterable(row) else None for row in ([] if held else column)]
        lists = _arrow(column if held else plain, pa.list_(pa.float64()))
        inner = pc.list_flatten(lists)
        first, rows = _spans(lists)
        # `ends` has the end of each row among the numbers, which turns rows into flat ranges.
        ends = np.append(0, np.cumsum(_spans(inner)[1]))
        values = pc.list_flatten(inner).to_numpy(zero_copy_only=False)
        return cls(Lists(values, ends[first], ends[first + rows] - ends[first]), rows)

    def stack(self, items: Places) -> Float[np.ndarray, "items candidates depths"]:
        """Return the matrices of some items, all of one shape, as an array."""
        return self.numbers.stack(items).reshape(len(items), int(self.rows[items[0]]), -1)

    def alike(self, items: Places | None = None) -> Iterator[Places]:
        """Yield the indices of items with equal shapes; items without a matrix are skipped."""
        # One number for the pair (rows, size): matrices of one size may differ in shape.
        sizes = self.numbers.lengths
        yield from _alike(self.rows * (sizes.max(initial=0) + 1) + sizes, sizes, items)


def _alike(keys: np.ndarray, sizes: np.ndarray, items: Places | None) -> Iterator[Places]:
    """Yield the indices of equal keys, in steps small enough to stack; skip items of size 0."""
    among = np.arange(len(keys)) if items is None else items
    among = among[sizes[among] > 0]
    # The sort is stable, so that items with equal keys stay in their order.
    order = among[np.argsort(keys[among], kind="stable")]
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    for run in np.split(order, ends) if len(order) else []:
        step = max(1, _STACKED // int(sizes[run[0]]))
        yield from (run[at : at + step] for at in range(0, len(run), step))


def _arrow(column: "pd.Series[Any] | list[Any]", of: "pa.DataType | None" = None) -> "pa.Array":
    """Return the column as Arrow lists; an all-null column becomes lists of type `of`."""
    import pyarrow as pa

    array = pa.array(column, from_pandas=True)
    if pa.types.is_null(array.type):
        array = array.cast(pa.list_(of or pa.float64()))
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _pairs(column: "pd.Series[Any]") -> "pa.Array":
    """Return a column of named lists as Arrow's pairs of a name and a list."""
    if hasattr(column.dtype, "pyarrow_dtype"):
        return _arrow(column)
    import pyarrow as pa

    pair = pa.struct([("key", pa.string()), ("value", pa.list_(pa.float64()))])
    rows = [[{"key": name, "value": value} for name, value in row.items()] for row in column]
    return pa.array(rows, pa.list_(pair))


def _spans(lists: "pa.Array") -> tuple[Int[np.ndarray, " items"], Int[np.ndarray, " items"]]:
    """Return the index of each list's first value among the flattened ones, and its length."""
    import pyarrow.compute as pc

    counts = pc.fill_null(pc.list_value_length(lists), 0)
    lengths = counts.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.cumsum(lengths) - lengths, lengths
