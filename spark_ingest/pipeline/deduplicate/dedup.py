"""Find out which readings are new, with no state per reading: per boot, the highest seq seen and the gaps below it.

The state is a set union. So the order and the number of times in which readings arrive, and their division into
micro-batches, do not change which ones are kept. A boot whose readings have all arrived has no gaps, however late
some of them were.

The state is bounded: boots that were silent for long, and those beyond :class:`Limits`, leave it, and only a 64-bit
hash of each stays. Beyond the limits, the device with most gives way, its longest silent boots first. When a boot that
left sends again, silver is asked which of its readings it has (`recall`): this is slower, but exact.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NEVER = -(1 << 62)
"""The highest seq of a boot without readings."""

STATE_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("highest", pa.int64()),
        ("gaps", pa.list_(pa.int64())),
        ("last_us", pa.int64()),
    ]
)
"""`gaps`: first, last, first, last … in ascending order; `last_us`: newest received time, Unix microseconds."""

# Names contain no U+0000 (record.py), so different pairs of names stay different when joined.
SEPARATOR = "\0"

Recall = Callable[[list[tuple[str, str]]], pa.Table]
"""A function from (device_id, boot) pairs to what silver has of them: columns device_id, boot, seq."""


@dataclass(frozen=True)
class Limits:
    """The limits of what stays in memory. A boot takes about 250 bytes, and a gap 16.

    The defaults allow 10,000 devices that boot every second day, and 100 open gaps for each of those boots.

    :ivar boots: boots, at most.
    :ivar gaps: gaps of all boots, at most.
    :ivar gaps_of_a_boot: gaps of one boot, at most.
    :ivar idle_days: a boot leaves if it was silent for longer, measured from the newest received time.
    """

    boots: int = 200_000
    gaps: int = 20_000_000
    gaps_of_a_boot: int = 20_000
    idle_days: float = 40.0


# Hashes of boots that have left a set: 8 bytes each.
MAX_ARCHIVED = 10_000_000


class Filtered(NamedTuple):
    """The new readings of a table.

    :ivar rows: indices of the new readings, in ascending order.
    :ivar boots: a number per new reading, equal within a boot.
    :ivar firsts: per reading of the table, the index of the first reading with the same identity.
    """

    rows: np.ndarray
    boots: np.ndarray
    firsts: np.ndarray


class Seen:
    """The set of identities (device_id, boot, seq) seen so far, which is empty at first.

    :param recall: asked for boots that have left the set; without it, no boot ever leaves.
    """

    def __init__(self, recall: Recall | None = None) -> None:
        self.recall = recall
        self._index: dict[str, int] = {}
        self._highest = np.empty(0, dtype=np.int64)
        self._last_us = np.empty(0, dtype=np.int64)
        self._gaps: dict[int, array[int]] = {}
        # In an array, each takes 8 bytes; in a set, it would take 80.
        self._archived = np.empty(0, dtype=np.uint64)
        self._shift = np.uint64(0)  # how many of their low bits are left out
        self._is_changed = np.empty(0, dtype=bool)
        self._keys = pa.array([], pa.string())
        self._recent = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of boots in the set."""
        return len(self._index)

    @property
    def open_gaps(self) -> int:
        """The number of missing ranges of seq, over all boots."""
        return sum(map(len, self._gaps.values())) // 2

    @property
    def archived(self) -> np.ndarray:
        """The 64-bit hashes of the boots that have left the set, in ascending order."""
        return self._archived

    def take(self, readings: pa.Table, *, ask: bool = True) -> Filtered:
        """Add readings and return which were new; of equal readings in the table, the first counts as new.

        :param readings: columns device_id, boot and seq, without nulls; received_ts, if present, tells how long a
            boot is silent. A negative seq is never new and leaves no gap.
        :param ask: recall boots that have left the set.
        """
        boots = self._boots_of(readings, ask=ask)
        seqs = readings["seq"].to_numpy()
        # Sort by boot and seq. lexsort is stable, so the first of equal readings is the one that came first.
        order = np.lexsort((seqs, boots))
        sorted_boots, sorted_seqs = boots[order], seqs[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (sorted_boots[1:] != sorted_boots[:-1]) | (sorted_seqs[1:] != sorted_seqs[:-1])
        above = sorted_seqs > self._highest[sorted_boots]
        new = first & above
        for i in np.flatnonzero(first & ~above).tolist():
            new[i] = self._fill_gap(int(sorted_boots[i]), int(sorted_seqs[i]))
        self._raise_highest(sorted_boots[first & above], sorted_seqs[first & above])
        if "received_ts" in readings.column_names:
            np.maximum.at(self._last_us, boots, readings["received_ts"].cast(pa.int64()).to_numpy())
        is_new = np.zeros(len(order), dtype=bool)
        is_new[order[new]] = True
        rows = np.flatnonzero(is_new)
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = sorted_boots[1:] != sorted_boots[:-1]
        self._recent = sorted_boots[begins]
        self._is_changed[self._recent] = True
        firsts = np.empty(len(order), dtype=np.int64)
        firsts[order] = order[first][np.cumsum(first) - 1]
        return Filtered(rows, boots[rows], firsts)

    def shrink(self, limits: Limits) -> int:
        """Remove boots that were silent for long or are beyond `limits`; return how many.

        The choice depends only on the set, so a replay removes the same boots.
        """
        if self.recall is None or not self._index:
            return 0
        count = len(self._index)
        last = self._last_us[:count]
        gaps = np.zeros(count, dtype=np.int64)
        for boot, flat in self._gaps.items():
            gaps[boot] = len(flat) // 2
        leaves = (last < last.max() - int(limits.idle_days * 86_400_000_000)) | (gaps > limits.gaps_of_a_boot)
        stay = np.flatnonzero(~leaves)
        if len(stay) > limits.boots or gaps[stay].sum() > limits.gaps:
            # Of each device, the boots that were silent for longest leave first.
            stay = stay[np.argsort(-last[stay], kind="stable")]
            devices = self._names(stay)[0].dictionary_encode().indices.to_numpy()
            room = _within(np.ones_like(stay), devices, limits.boots)
            leaves[stay[~(room & _within(gaps[stay] * room, devices, limits.gaps))]] = True
        if leaves.any():
            self._archive(leaves)
        return int(leaves.sum())

    def take_changes(self) -> pa.Table:
        """Return the boots that changed since the last call, with all their data, in STATE_SCHEMA."""
        changed = np.flatnonzero(self._is_changed)
        self._is_changed[:] = False
        return self._rows(changed)

    def to_table(self) -> pa.Table:
        """Return the whole set, in STATE_SCHEMA."""
        return self._rows(np.arange(len(self._index)))

    def apply(self, changes: pa.Table, archived: np.ndarray | None = None) -> None:
        """Replace the boots in `changes` with their data there.

        :param changes: the result of :meth:`take_changes` or :meth:`to_table`.
        :param archived: hashes of boots that have left the set, which are added.
        """
        boots = self._boots_of(changes, ask=False)
        self._highest[boots] = changes["highest"].to_numpy()
        self._last_us[boots] = changes["last_us"].to_numpy()
        lists = changes["gaps"].combine_chunks()
        flat, offsets = lists.flatten().to_numpy(), np.zeros(len(boots) + 1, dtype=np.int64)
        np.cumsum(pc.call_function("list_value_length", [lists]).to_numpy(zero_copy_only=False), out=offsets[1:])
        for i, boot in enumerate(boots.tolist()):
            self._gaps.pop(boot, None)
            if offsets[i] < offsets[i + 1]:
                self._gaps[boot] = array("q", flat[offsets[i] : offsets[i + 1]].tobytes())
        if archived is not None:
            everything = int(np.bitwise_or.reduce(archived)) if len(archived) else 0
            # The bits that an earlier process left out are 0 in all of them.
            self._shift = max(self._shift, np.uint64((everything & -everything).bit_length() - 1 if everything else 0))
            self._add_archived(archived)

    def _rows(self, boots: np.ndarray) -> pa.Table:
        device_ids, names = self._names(boots)
        held = [(row, self._gaps[i]) for row, i in enumerate(boots.tolist()) if i in self._gaps]
        offsets = np.zeros(len(boots) + 1, dtype=np.int32)
        for row, flat in held:
            offsets[row + 1] = len(flat)
        np.cumsum(offsets, out=offsets)
        flat = np.frombuffer(b"".join(flat.tobytes() for _, flat in held), dtype=np.int64)
        return pa.table(
            [
                device_ids,
                names,
                pa.array(self._highest[boots]),
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, pa.int64())),
                pa.array(self._last_us[boots]),
            ],
            schema=STATE_SCHEMA,
        )

    def _boots_of(self, readings: pa.Table, *, ask: bool = True) -> np.ndarray:
        """Return the index of each reading's boot; new boots get an index.

        :param ask: recall boots that have left the set.
        """
        keys = joined_keys(readings)
        # Arrow looks keys up three times as fast as Python, but hashes those that it compares them with each time.
        # So it gets the boots of the readings before, which most of the next ones are of.
        found = pc.call_function("index_in", [keys], pc.SetLookupOptions(self._known_keys(self._recent)))
        boots = np.empty(len(keys), dtype=np.int64)
        is_recent = found.is_valid().to_numpy(zero_copy_only=False)
        boots[is_recent] = self._recent[found.drop_null().to_numpy()]
        if found.null_count:
            boots[~is_recent] = self._look_up(keys.filter(pa.array(~is_recent)), ask=ask)
        return boots

    def _look_up(self, keys: pa.Array, *, ask: bool) -> np.ndarray:
        encoded = keys.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        if ask and len(self._archived) and self.recall is not None:
            new = [key for key in distinct if key not in self._index]
            hashes = self._shortened(boot_hashes(new))
            at = np.searchsorted(self._archived, hashes).clip(max=len(self._archived) - 1)
            self._recall([new[i] for i in np.flatnonzero(self._archived[at] == hashes).tolist()])
        index = self._index
        codes = [index.setdefault(key, len(index)) for key in distinct]
        if len(index) > len(self._highest):
            # Double the size: copying for every single new boot would take quadratic time.
            size = max(len(index), 2 * len(self._highest))
            self._highest = _grown(self._highest, size, -1)
            self._last_us = _grown(self._last_us, size, NEVER)
            self._is_changed = _grown(self._is_changed, size, False)
        return np.array(codes, dtype=np.int64)[encoded.indices.to_numpy()]

    def _names(self, boots: np.ndarray) -> tuple[pa.Array, pa.Array]:
        """Return device_id and boot of these boots."""
        joined = self._known_keys(boots)
        names = pc.call_function("split_pattern", [joined], pc.SplitPatternOptions(SEPARATOR)).flatten()
        first = np.arange(0, 2 * len(boots), 2)
        return names.take(pa.array(first)), names.take(pa.array(first + 1))

    def _known_keys(self, boots: np.ndarray) -> pa.Array:
        """Return the keys of these boots."""
        missing = len(self._index) - len(self._keys)
        if missing:
            newest = list(islice(reversed(self._index), missing))
            self._keys = pa.concat_arrays([self._keys, pa.array(newest[::-1], pa.string())])
        return self._keys.take(pa.array(boots))

    def _recall(self, keys: list[str]) -> None:
        if not keys:
            return
        assert self.recall is not None
        pairs = [tuple(key.split(SEPARATOR)) for key in keys]
        # Their hashes stay: others may have the same.
        self.take(self.recall([(device_id, boot) for device_id, boot in pairs]), ask=False)

    def _archive(self, leaves: np.ndarray) -> None:
        keys = list(self._index)
        self._add_archived(boot_hashes([keys[i] for i in np.flatnonzero(leaves).tolist()]))
        self._keep(np.flatnonzero(~leaves))

    def _add_archived(self, hashes: np.ndarray) -> None:
        """Add hashes. If they become too many, low bits are left out until few enough differ.

        A boot whose hash then equals another's is asked for in vain, which is slower, but as exact.
        """
        self._archived = np.union1d(self._archived, self._shortened(hashes))
        while len(self._archived) > MAX_ARCHIVED:
            self._shift += np.uint64(1)
            self._archived = np.unique(self._shortened(self._archived))

    def _shortened(self, hashes: np.ndarray) -> np.ndarray:
        return hashes >> self._shift << self._shift

    def _keep(self, stay: np.ndarray) -> None:
        self._keys, self._recent = self._known_keys(stay), np.empty(0, dtype=np.int64)
        self._index = {key: number for number, key in enumerate(self._keys.to_pylist())}
        self._highest, self._last_us = self._highest[stay], self._last_us[stay]
        self._is_changed = self._is_changed[stay]
        moved = {old: new for new, old in enumerate(stay.tolist())}
        self._gaps = {moved[old]: gaps for old, gaps in self._gaps.items() if old in moved}

    def _fill_gap(self, boot: int, seq: int) -> bool:
        """Remove `seq` from the boot's gaps; return False if it is in no gap, because it was seen before."""
        gaps = self._gaps.get(boot)
        if gaps is None:
            return False
        # The firsts and lasts of gaps are in ascending order; a seq in a gap sorts to an odd index or equals a first.
        i = bisect_left(gaps, seq)
        if not i % 2 and (i == len(gaps) or gaps[i] != seq):
            return False
        i -= i % 2
        low, high = gaps[i], gaps[i + 1]
        parts = [end for gap in ((low, seq - 1), (seq + 1, high)) if gap[0] <= gap[1] for end in gap]
        gaps[i : i + 2] = array("q", parts)
        if not gaps:
            del self._gaps[boot]
        return True

    def _raise_highest(self, boots: np.ndarray, seqs: np.ndarray) -> None:
        """Raise the highest seq of boots; the seqs that are skipped become gaps.

        :param boots: index of the boot of each seq.
        :param seqs: distinct, all above the highest of their boots; sorted by boot and seq.
        """
        if not len(boots):
            return
        begins = np.ones(len(boots), dtype=bool)
        begins[1:] = boots[1:] != boots[:-1]
        before = np.empty_like(seqs)
        before[1:] = seqs[:-1]
        before[begins] = self._highest[boots[begins]]
        for i in np.flatnonzero(seqs != before + 1).tolist():
            self._gaps.setdefault(int(boots[i]), array("q")).extend((int(before[i]) + 1, int(seqs[i]) - 1))
        ends = np.ones(len(boots), dtype=bool)
        ends[:-1] = begins[1:]
        self._highest[boots[ends]] = seqs[ends]


def joined_keys(readings: pa.Table) -> pa.Array:
    """Return device_id, U+0000, boot of each reading."""
    parts = [readings["device_id"], readings["boot"], pa.scalar(SEPARATOR)]
    return pc.call_function("binary_join_element_wise", parts).combine_chunks()


def boot_hashes(keys: Sequence[str]) -> np.ndarray:
    """Return the 64-bit hashes of keys of :func:`joined_keys`."""
    digests = (blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _within(sizes: np.ndarray, owners: np.ndarray, limit: int) -> np.ndarray:
    """Return which items stay so that their sizes sum up to `limit` at most: the owner with most loses its last items.

    :param owners: a number per item, equal for the items of one owner.
    """
    by_owner = np.argsort(owners, kind="stable")
    sums = np.cumsum(sizes[by_owner])
    begins = np.flatnonzero(np.diff(owners[by_owner], prepend=-1))
    before = np.repeat(sums[begins] - sizes[by_owner][begins], np.diff(begins, append=len(sums)))
    # What its owner has up to each item: all owners are cut at the same level.
    level = np.empty_like(sums)
    level[by_owner] = sums - before
    lowest = np.argsort(level, kind="stable")
    stay = np.empty(len(sizes), dtype=bool)
    stay[lowest] = np.cumsum(sizes[lowest]) <= limit
    return stay | (sizes == 0)


def _grown(column: np.ndarray, size: int, fill: int) -> np.ndarray:
    grown = np.full(size, fill, dtype=column.dtype)
    grown[: len(column)] = column
    return grown
