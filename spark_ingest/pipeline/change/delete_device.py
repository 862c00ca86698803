"""Remove a device from every table.

In tables with a column for the device, its rows are found by that column. Bronze and quarantine have messages as they
were received; from these, the messages on the device's topics and those whose record has its id are removed. If ids
are trusted, the record alone decides which device a message belongs to, as in silver, and the topic only if no record
can be read. So messages of other devices on the device's topics stay.
"""

import shlex
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
from deltalake import DeltaTable, write_deltalake

from ...alerts.journal import Journal
from ...decoders.rules import Rules
from ...errors import UsageError
from ...location import Location
from ...tables.delta import WRITER
from ...tables.schemas import BRONZE_SCHEMA, PLACE_COLUMNS
from ...tables.upkeep import deleted, existing
from ..decode.messages import devices_of
from ..process import unfinished
from .rebuild import count_gold, rules_of

_BY_DEVICE = ("silver", "duplicates", "status", "logs")
_AS_RECEIVED = ("bronze", "quarantine")


def delete_device(tables: Location, device_id: str, config: Path | None = None) -> dict[str, int]:
    """Remove every row of a device and recount gold; return the removed rows by table. No pipeline may run meanwhile.

    The device's messages in the spool are not removed, and older versions of the tables keep the rows until a vacuum.

    :param config: the ingest.toml that the pipeline was started with.
    :raises UsageError: `device_id` is no name, there are no tables, `config` is missing or unusable, or another
        command was interrupted.
    """
    if not device_id or "\0" in device_id or not _is_unicode(device_id):
        raise UsageError("a device's name is needed: see the table gold/devices")
    found = dict(existing(tables, _AS_RECEIVED + _BY_DEVICE))
    quoted = device_id.replace("'", "''")
    rules = rules_of(tables, config) if "bronze" in found else Rules()
    removed = {}
    with unfinished(tables, f"forget {shlex.quote(device_id)}"):
        for name, table in found.items():
            if name in _BY_DEVICE:
                removed[name] = deleted(table, f"device_id = '{quoted}'")
            else:
                removed[name] = _deleted_places(table, _places(table, device_id, rules))
        Journal(tables).forget(device_id)
        count_gold(tables)
    return removed


def _places(table: DeltaTable, device_id: str, rules: Rules) -> pa.Table:
    """Return the places and partitions of the device's messages."""
    columns = [*PLACE_COLUMNS, *table.metadata().partition_columns]
    schema = pa.schema([BRONZE_SCHEMA.field(name) for name in columns])
    found = [schema.empty_table()]
    for batch in table.to_pyarrow_dataset().to_batches(columns=["topic", "payload", *columns]):
        rows = pa.Table.from_batches([batch])
        if not rules.decoders:
            rows = rows.filter(_may_be_of(batch, device_id))
        messages = zip(rows["topic"].to_pylist(), rows["payload"].to_pylist(), strict=True)
        mine = [device_id in devices_of(topic, payload, rules) for topic, payload in messages]
        found.append(rows.select(columns).filter(pa.array(mine, pa.bool_())).cast(schema))
    # Remove repeated places: a message may be in quarantine for two reasons.
    return pa.concat_tables(found).group_by(columns).aggregate([])


def _may_be_of(batch: pa.RecordBatch, device_id: str) -> pa.Array:
    """Return which messages contain the name, or may contain it in JSON escapes or in CBOR text of several pieces.

    The other messages need not be decoded.
    """

    def holds(column: str, text: str) -> pa.Array:
        return pc.call_function("match_substring", [batch[column]], pc.MatchSubstringOptions(text))

    signs = (("topic", device_id), ("payload", device_id), ("payload", "\\"), ("payload", "\x7f"))
    return reduce(lambda left, right: pc.call_function("or", [left, right]), (holds(*sign) for sign in signs))


def _deleted_places(table: DeltaTable, places: pa.Table) -> int:
    if not places.num_rows:
        return 0
    held = table.count()
    source = table.to_pyarrow_dataset()
    date = next(iter(table.metadata().partition_columns), None)
    for day in pc.call_function("unique", [places[date]]).to_pylist() if date else [None]:
        where = f"{date} = '{day}'" if date else None
        batches = source.to_batches(filter=pa_dataset.field(date) == day if date else None)
        kept = pa.RecordBatchReader.from_batches(source.schema, _without(batches, places))
        # A merge is not used: it rewrites files with string views, which Arrow cannot filter.
        write_deltalake(table, kept, mode="overwrite", predicate=where, writer_properties=WRITER)
    return held - table.count()


def _without(batches: Iterable[pa.RecordBatch], places: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        numbered = rows.select(PLACE_COLUMNS).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
        kept = numbered.join(places.select(PLACE_COLUMNS), keys=list(PLACE_COLUMNS), join_type="left anti")[
            "row"
        ].combine_chunks()
        yield from rows.take(kept.sort()).to_batches()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
