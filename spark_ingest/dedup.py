"""Which readings are new. No state per reading: per boot the highest seq seen and the gaps below it.

The state is a set union, so the order in which readings arrive, how often, and how they are cut into
micro-batches do not change which are kept. A boot whose readings have all arrived has no gaps, however late
some of them were.
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Gap = tuple[int, int]
"""First and last missing seq."""

STATE_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("highest", pa.int64()),
        ("gaps", pa.list_(pa.int64())),
    ]
)
"""`gaps`: first, last, first, last … in rising order."""

# Names hold no U+0000 (record.py), so joined pairs of them are as distinct as the pairs.
_SEPARATOR = "\0"
_AFTER_ANY_SEQ = 1 << 63


class Filtered(NamedTuple):
    """`rows`: indices of the new readings, rising; `boots`: a number per new reading, equal within a boot."""

    rows: np.ndarray
    boots: np.ndarray


class Seen:
    """The set of identities (device_id, boot, seq) seen so far. Empty at first."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._highest = np.empty(0, dtype=np.int64)
        self._gaps: dict[int, list[Gap]] = {}

    def __len__(self) -> int:
        """Boots in the set."""
        return len(self._index)

    @property
    def open_gaps(self) -> int:
        """Ranges of seq that are missing, over all boots."""
        return sum(map(len, self._gaps.values()))

    def take(self, readings: pa.Table) -> Filtered:
        """Add the readings and tell which were new; of equal ones in the table the first counts as new.

        :param readings: columns device_id, boot and seq, without nulls.
        """
        boots = self._boots_of(readings)
        seqs = readings["seq"].to_numpy()
        # Sorted by boot and seq; lexsort is stable, so the first of equals is the one that came first.
        order = np.lexsort((seqs, boots))
        sorted_boots, sorted_seqs = boots[order], seqs[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (sorted_boots[1:] != sorted_boots[:-1]) | (sorted_seqs[1:] != sorted_seqs[:-1])
        above = sorted_seqs > self._highest[sorted_boots]
        new = first & above
        for i in np.flatnonzero(first & ~above).tolist():
            new[i] = self._fill_gap(int(sorted_boots[i]), int(sorted_seqs[i]))
        self._raise_highest(sorted_boots[first & above], sorted_seqs[first & above])
        rows = np.sort(order[new])
        return Filtered(rows, boots[rows])

    def to_table(self) -> pa.Table:
        """The whole set, in STATE_SCHEMA."""
        pairs = [key.split(_SEPARATOR) for key in self._index]
        gaps = [[seq for gap in self._gaps.get(boot, ()) for seq in gap] for boot in range(len(self._index))]
        return pa.table(
            [
                pa.array([pair[0] for pair in pairs], pa.string()),
                pa.array([pair[1] for pair in pairs], pa.string()),
                pa.array(self._highest[: len(self._index)]),
                pa.array(gaps, pa.list_(pa.int64())),
            ],
            schema=STATE_SCHEMA,
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> "Seen":
        """The set that :meth:`to_table` wrote."""
        seen = cls()
        devices, boots = table["device_id"].to_pylist(), table["boot"].to_pylist()
        seen._index = {
            device + _SEPARATOR + boot: i for i, (device, boot) in enumerate(zip(devices, boots, strict=True))
        }
        seen._highest = table["highest"].to_numpy().copy()
        for boot, flat in enumerate(table["gaps"].to_pylist()):
            if flat:
                seen._gaps[boot] = list(zip(flat[::2], flat[1::2], strict=True))
        return seen

    def _boots_of(self, readings: pa.Table) -> np.ndarray:
        """The index of each reading's boot; new boots get one."""
        joined = pc.call_function(
            "binary_join_element_wise", [readings["device_id"], readings["boot"], pa.scalar(_SEPARATOR)]
        )
        encoded = joined.combine_chunks().dictionary_encode()
        index = self._index
        codes = [index.setdefault(key, len(index)) for key in encoded.dictionary.to_pylist()]
        if len(index) > len(self._highest):
            # Doubling: with one boot at a time, copying for each would cost the square.
            grown = np.full(max(len(index), 2 * len(self._highest)), -1, dtype=np.int64)
            grown[: len(self._highest)] = self._highest
            self._highest = grown
        return np.array(codes, dtype=np.int64)[encoded.indices.to_numpy()]

    def _fill_gap(self, boot: int, seq: int) -> bool:
        """Take `seq` out of the boot's gaps; False when it is in none: it was seen before."""
        gaps = self._gaps.get(boot)
        if not gaps:
            return False
        i = bisect_right(gaps, (seq, _AFTER_ANY_SEQ)) - 1
        if i < 0 or gaps[i][1] < seq:
            return False
        low, high = gaps[i]
        gaps[i : i + 1] = [gap for gap in ((low, seq - 1), (seq + 1, high)) if gap[0] <= gap[1]]
        if not gaps:
            del self._gaps[boot]
        return True

    def _raise_highest(self, boots: np.ndarray, seqs: np.ndarray) -> None:
        """Take distinct seqs above their boots' highest, sorted; what they skip becomes gaps."""
        if not len(boots):
            return
        begins = np.ones(len(boots), dtype=bool)
        begins[1:] = boots[1:] != boots[:-1]
        before = np.empty_like(seqs)
        before[1:] = seqs[:-1]
        before[begins] = self._highest[boots[begins]]
        for i in np.flatnonzero(seqs != before + 1).tolist():
            self._gaps.setdefault(int(boots[i]), []).append((int(before[i]) + 1, int(seqs[i]) - 1))
        ends = np.ones(len(boots), dtype=bool)
        ends[:-1] = begins[1:]
        self._highest[boots[ends]] = seqs[ends]
