"""Rows with a key and columns of numbers, as numpy arrays: the data that gold keeps per device and per boot."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NEVER = -(1 << 62)
"""The value for "none yet" in a column that keeps the largest time or seq; `-NEVER` if it keeps the smallest."""


class Columns:
    """Rows with a key and numbers; ``columns[name]`` is the array of a column.

    :param fills: column name to the value of a new row; an int makes an int64 column, a float a float64 column.
    :ivar index: key to row.
    """

    def __init__(self, fills: dict[str, int | float]) -> None:
        self.index: dict[str, int] = {}
        self._fills = fills
        self._columns = {name: np.full(0, fill) for name, fill in fills.items()}
        self._ranks = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._fills)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name][: len(self.index)]

    @property
    def ranks(self) -> np.ndarray:
        """The rank of each row's key in the sorted order of all keys."""
        if len(self._ranks) != len(self.index):
            self._ranks = np.empty(len(self.index), dtype=np.int64)
            order = pc.call_function("array_sort_indices", [pa.array(list(self.index), pa.string())])
            self._ranks[order.to_numpy()] = np.arange(len(self.index))
        return self._ranks

    def rows(self, keys: pa.Array) -> np.ndarray:
        """Return the row of each key; add rows for new keys."""
        encoded = keys.dictionary_encode()
        index = self.index
        codes = [index.setdefault(key, len(index)) for key in encoded.dictionary.to_pylist()]
        have = len(next(iter(self._columns.values())))
        if len(index) > have:
            size = max(len(index), 2 * have)
            for name, fill in self._fills.items():
                grown = np.full(size, fill)
                grown[:have] = self._columns[name]
                self._columns[name] = grown
        return np.array(codes, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]

    def keep(self, rows: np.ndarray) -> None:
        """Drop all rows but these, which are in ascending order; they are numbered anew."""
        keys = list(self.index)
        self.index = {keys[row]: number for number, row in enumerate(rows.tolist())}
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        self._ranks = np.empty(0, dtype=np.int64)

    def add(self, name: str, rows: np.ndarray, amounts: np.ndarray | int = 1) -> None:
        """Add `amounts` to the column `name` in `rows`; a row may occur several times."""
        np.add.at(self._columns[name], rows, amounts)

    def raise_to(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Set the column `name` in `rows` to the larger of its value and `values`; a row may occur several times."""
        np.maximum.at(self._columns[name], rows, values)

    def lower_to(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Set the column `name` in `rows` to the smaller of its value and `values`; a row may occur several times."""
        np.minimum.at(self._columns[name], rows, values)

    def keep_last(
        self, rows: np.ndarray, order: dict[str, np.ndarray], values: dict[str, np.ndarray], *, first: bool = False
    ) -> np.ndarray:
        """Keep, per row, the values of the reading that is last (or first) by `order`.

        Readings of earlier calls count too, so the order in which readings are passed does not matter.

        :param order: column name to values to sort by, the most significant first; they are kept like `values`, to
            compare later readings with.
        :param values: column name to the values to keep.
        :returns: indices, into the given arrays, of the readings that were kept.
        """
        if not len(rows):
            return np.empty(0, dtype=np.int64)
        sign = -1 if first else 1
        by = np.lexsort((*(sign * order[name] for name in reversed(list(order))), rows))
        ends = np.append(rows[by][1:] != rows[by][:-1], True)
        best = by[ends]
        at, better, equal = rows[best], np.zeros(len(best), dtype=bool), np.ones(len(best), dtype=bool)
        for name, column in order.items():
            new, old = sign * column[best], sign * self._columns[name][at]
            better |= equal & (new > old)
            equal &= new == old
        best = best[better]
        for name, column in (order | values).items():
            self._columns[name][rows[best]] = column[best]
        return best

    def to_table(self) -> pa.Table:
        """Return the keys and columns as a table."""
        return pa.table({"key": pa.array(list(self.index), pa.string()), **{n: pa.array(self[n]) for n in self._fills}})

    def load(self, table: pa.Table) -> None:
        """Replace the content with a table from :meth:`to_table`; a column that it lacks gets the fill."""
        self.index = {key: row for row, key in enumerate(table["key"].to_pylist())}
        have = table.column_names
        self._columns = {
            name: table[name].to_numpy().copy() if name in have else np.full(table.num_rows, fill)
            for name, fill in self._fills.items()
        }


class Counts:
    """A count per whole number: sparse, in ascending order of the numbers."""

    def __init__(self) -> None:
        self.keys = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.int64)

    def add(self, keys: np.ndarray) -> None:
        """Count each of `keys` once more."""
        new, counts = np.unique(keys, return_counts=True)
        merged, place = np.unique(np.concatenate([self.keys, new]), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate([self.counts, counts]), len(merged)).astype(np.int64)
        self.keys = merged

    def drop_below(self, key: int) -> None:
        """Forget the numbers below `key`."""
        at = np.searchsorted(self.keys, key)
        self.keys, self.counts = self.keys[at:], self.counts[at:]

    def to_table(self) -> pa.Table:
        """Return the numbers and their counts as a table."""
        return pa.table({"key": pa.array(self.keys), "count": pa.array(self.counts)})

    def load(self, table: pa.Table) -> None:
        """Replace the content with a table from :meth:`to_table`."""
        self.keys, self.counts = table["key"].to_numpy().copy(), table["count"].to_numpy().copy()


def quantiles(groups: np.ndarray, counts: np.ndarray, shares: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Find where in each group the counts reach a share of the group's sum.

    :param groups: the group of each count, in ascending order.
    :param shares: from 0 to 1, for example 0.5 for the median.
    :returns: the distinct groups, and an array of indices into `counts`, with one row per share.
    """
    distinct, start = np.unique(groups, return_index=True)
    if not len(distinct):
        return distinct, np.empty((len(shares), 0), dtype=np.int64)
    total = np.cumsum(counts)
    before = np.concatenate([[0], total])[start]
    in_group = np.append(before[1:], total[-1]) - before
    wanted = [before + np.maximum(1, np.ceil(share * in_group)) for share in shares]
    return distinct, np.array([np.searchsorted(total, reach) for reach in wanted])


def to_bin(values: np.ndarray) -> np.ndarray:
    """Return the bin of each value: eight bins per octave, for either sign; 0 for values smaller than a millionth."""
    size = np.abs(values)
    with np.errstate(over="ignore"):
        octave = np.clip(np.floor(8 * np.log2(np.maximum(size, 1e-6) / 1e-6)) + 1, 1, 1000)
    return (np.where(size < 1e-6, 0, np.sign(values) * octave)).astype(np.int64)


def from_bin(bins: np.ndarray) -> np.ndarray:
    """Return the middle of each bin, which differs by at most 5 % from the values in it."""
    return np.where(bins == 0, 0.0, np.sign(bins) * 1e-6 * 2 ** ((np.abs(bins) - 0.5) / 8))
