"""Make rows of silver, and sort readings that silver already has into duplicates and conflicts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset

from ...tables.delta import Delta
from ...tables.schemas import DUPLICATES_SCHEMA, PLACE_COLUMNS, SILVER_SCHEMA
from .clock import event_times
from .dedup import Filtered, Seen

CONFLICT = "identity conflict: another payload was stored under this device, boot and seq"
"""The reason in quarantine for a reading in conflict."""

_IDENTITY = ("device_id", "boot", "seq")
_PLACE = list(PLACE_COLUMNS)
_COLUMNS = [*_IDENTITY, "payload_crc", *_PLACE]
_SEEN_COLUMNS = [*_IDENTITY, "received_ts", *_PLACE]
# Readings that are identified by their place have a negative seq, and are in no set of readings seen.
_NUMBERED = pa_dataset.field("seq") >= 0
# A filter lists devices only up to this number; a longer list costs more than it saves.
_FEW = 1000


class Repeated(NamedTuple):
    """Readings whose identity silver already has: `duplicates` with the same payload, `conflicts` with another.

    Neither contains the message from which silver's row was made; a new checkpoint reads such messages again.
    """

    duplicates: pa.Table
    conflicts: pa.Table


class Judged(NamedTuple):
    """What readings add to the tables: rows of `silver` and of `duplicates`, and the readings in conflict."""

    silver: pa.Table
    duplicates: pa.Table
    conflicts: pa.Table


def judge(readings: pa.Table, unnumbered: pa.Table, seen: Seen, silver: Delta) -> Judged:
    """Find the new readings and add them to `seen`.

    :param readings: numbered readings, in READING_SCHEMA, in an order that depends on the offsets alone.
    :param unnumbered: readings that are identified by their place.
    :param silver: the table, for comparing the payloads of readings that were seen before.
    """
    new = seen.take(readings)
    rows = silver_rows(readings, new)
    again = repeated(readings, new, silver)
    if unnumbered.num_rows:
        own = without_repeated(silver.without_known(unnumbered), again)
        rows = pa.concat_tables([rows, unnumbered_rows(own)])
    return Judged(rows, duplicate_rows(again.duplicates), again.conflicts)


def silver_rows(readings: pa.Table, new: Filtered) -> pa.Table:
    """Return the new readings as rows of silver.

    :param readings: READING_SCHEMA.
    :param new: which of the readings are new, from :meth:`Seen.take`.
    """
    # Usually every reading is new, and none needs to be copied.
    kept = readings if len(new.rows) == readings.num_rows else readings.take(pa.array(new.rows))
    kept = kept.combine_chunks()
    columns = {name: kept[name] for name in kept.column_names}
    ts, up_ms, received_ts = (_array(kept[name]) for name in ("ts", "up_ms", "received_ts"))
    columns |= event_times(new.boots, ts, up_ms, received_ts)._asdict()
    columns["received_date"] = received_ts.cast(pa.date32())
    return pa.table([columns[name] for name in SILVER_SCHEMA.names], schema=SILVER_SCHEMA)


def unnumbered_rows(readings: pa.Table) -> pa.Table:
    """Return readings that are identified by their place, all of them new, as rows of silver."""
    every = np.arange(readings.num_rows)
    # None of them has an uptime, so their boots are not needed and each gets its own number.
    return silver_rows(readings, Filtered(every, every, every))


def without_repeated(unnumbered: pa.Table, again: Repeated) -> pa.Table:
    """Return unnumbered readings without those in messages whose numbered reading was stored before.

    :param unnumbered: READING_SCHEMA.
    :param again: the numbered readings of the same messages that are not new.
    """
    stored = pa.concat_tables([again.duplicates.select(_PLACE), again.conflicts.select(_PLACE)])
    if not stored.num_rows or not unnumbered.num_rows:
        return unnumbered
    known = set(zip(*(stored[name].to_pylist() for name in _PLACE), strict=True))
    mine = zip(*(unnumbered[name].to_pylist() for name in _PLACE), strict=True)
    return unnumbered.filter(pa.array([place not in known for place in mine], pa.bool_()))


def repeated(readings: pa.Table, new: Filtered, table: Delta) -> Repeated:
    """Compare the readings that are not new with the payloads stored under their identities.

    :param new: which of the readings are new, from :meth:`Seen.take`.
    :param table: silver, which may or may not contain the new readings yet.
    """
    if len(new.rows) == readings.num_rows:
        return Repeated(readings.slice(0, 0), readings.slice(0, 0))
    again = np.ones(readings.num_rows, dtype=bool)
    again[new.rows] = False
    crc = readings["payload_crc"].to_numpy()
    # The first reading of an identity may be in this micro-batch; if it was seen earlier, it is in the table.
    here = again & ~again[new.firsts]
    conflict = here & (crc != crc[new.firsts])
    stored = np.zeros(readings.num_rows, dtype=bool)
    before = np.flatnonzero(again & ~here)
    if len(before):
        rest = readings.select(_COLUMNS).take(pa.array(before))
        # If retention has removed the stored reading, it cannot be compared; the new one then counts as a duplicate.
        numbered = rest.append_column("row", pa.array(before))
        joined = numbered.join(_stored(rest, readings["ts"].take(pa.array(before)), table), keys=list(_IDENTITY),
                               right_suffix="_stored", join_type="inner")  # fmt: skip
        same = np.ones(joined.num_rows, dtype=bool)
        for name in _PLACE:
            same &= _equal(joined, name)
        row = joined["row"].to_numpy()
        stored[row[same]] = True
        conflict[row[~same & ~_equal(joined, "payload_crc")]] = True
    return Repeated(readings.filter(pa.array(again & ~conflict & ~stored)), readings.filter(pa.array(conflict)))


def duplicate_rows(duplicates: pa.Table) -> pa.Table:
    """Return readings as rows of the table duplicates."""
    return duplicates.select(DUPLICATES_SCHEMA.names).cast(DUPLICATES_SCHEMA)


def stored_identities(table: Delta, boots: Sequence[tuple[str, str]], without: pa.Table) -> pa.Table:
    """Return the identities that silver has of some boots, which have left the set of readings seen.

    :param boots: (device_id, boot) of each.
    :param without: readings that do not count, by their places.
    """
    devices = sorted({device_id for device_id, _ in boots})
    where = pa_dataset.field("device_id").isin(devices) & pa_dataset.field("boot").isin([boot for _, boot in boots])
    return _without(table.scan(_SEEN_COLUMNS, where), without)


def seen_in_tables(
    silver: Delta, duplicates: Delta, without: pa.Table, part: Callable[[pa.Table], pa.Table] = lambda rows: rows
) -> tuple[Seen, int]:
    """Build the set of readings seen from the tables themselves; return it, and from how many rows it was built.

    This is for a new checkpoint on tables that have rows, and for when the files of the set are gone. Duplicates
    count too, because retention may have removed the readings that they repeat.

    :param without: readings that do not count, by their places.
    :param part: returns those of the given rows that count.
    """
    seen, count = Seen(), 0
    for table in (silver, duplicates):
        for some in table.dataset().to_batches(columns=_SEEN_COLUMNS, filter=_NUMBERED):
            rows = _without(part(pa.Table.from_batches([some])), without)
            seen.take(rows)
            count += rows.num_rows
    return seen, count


def _without(rows: pa.Table, without: pa.Table) -> pa.Table:
    return rows.join(without.select(_PLACE), keys=_PLACE, join_type="left anti") if without.num_rows else rows


def _stored(rest: pa.Table, ts: pa.ChunkedArray, table: Delta) -> pa.Table:
    """Return the rows of silver with the identities of `rest`.

    :param ts: the device's time of each reading in `rest`, by which most rows are found quickly.
    """
    missing = rest.group_by(list(_IDENTITY)).aggregate([])
    near = _between("seq", missing["seq"])
    parts = []
    # A true duplicate has the same ts, which equals event_ts if the clock was good, and files are in the order of
    # time. So the first look-up reads few files. Rows that it does not find are looked for in all files.
    times = ts.drop_null()
    if len(times):
        parts.append(_look_up(missing, table, near & _between("event_ts", times)))
        missing = missing.join(parts[0].select(_IDENTITY), keys=list(_IDENTITY), join_type="left anti")
    if missing.num_rows:
        devices = pc.call_function("unique", [missing["device_id"].combine_chunks()])
        if len(devices) <= _FEW:
            near &= pa_dataset.field("device_id").isin(devices)
        parts.append(_look_up(missing, table, near))
    return pa.concat_tables(parts)


def _equal(joined: pa.Table, name: str) -> np.ndarray:
    both = [joined[name], joined[name + "_stored"]]
    return pc.call_function("equal", both).to_numpy().astype(bool)


def _look_up(identities: pa.Table, table: Delta, where: pa_dataset.Expression) -> pa.Table:
    return table.scan(_COLUMNS, where).join(identities, keys=list(_IDENTITY), join_type="inner").select(_COLUMNS)


def _between(column: str, values: pa.ChunkedArray) -> pa_dataset.Expression:
    ends = pc.call_function("min_max", [values])
    return (pa_dataset.field(column) >= ends["min"]) & (pa_dataset.field(column) <= ends["max"])


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
