"""A device out of every table.

Tables with a column for the device are asked by it. From bronze and quarantine, which have messages as they were
received, goes what came on the device's topics and what claims to be of it. Where ids are trusted, the record alone
says whose a message is, as in silver, and the topic only where no record can be read: what another published on the
device's topic stays.
"""

import shlex
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
from deltalake import DeltaTable, write_deltalake

from ..alerts.journal import Journal
from ..decoders.rules import Rules
from ..errors import UsageError
from ..location import Location
from ..tables.delta import WRITER
from ..tables.schemas import BRONZE_SCHEMA, PLACE_COLUMNS
from ..tables.upkeep import deleted, existing
from .messages import devices_of
from .process import unfinished
from .rebuild import count_gold, rules_of

_BY_DEVICE = ("silver", "duplicates", "status", "logs")
_AS_RECEIVED = ("bronze", "quarantine")


def forget(tables: Location, device_id: str, config: Path | None = None) -> dict[str, int]:
    """Remove every row of a device and count gold anew; rows by table. No pipeline may run meanwhile.

    What the spool still holds of it is not touched, and the rows are in older versions of the tables until a vacuum.

    :param config: the ingest.toml that the pipeline was started with.
    :raises UsageError: the name is none, there are no tables, or `config` is missing.
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
    """Where the messages of the device lie, and in which partitions."""
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
    # A message may be in quarantine for two reasons.
    return pa.concat_tables(found).group_by(columns).aggregate([])


def _may_be_of(batch: pa.RecordBatch, device_id: str) -> pa.Array:
    """Messages whose bytes have the name in them, or may spell it by JSON's escapes or CBOR's pieces of text.

    The others need not be read.
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
        # Not a merge: files that it rewrites have strings as views, which Arrow cannot filter.
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
