"""A device out of every table.

Tables with a column for the device are asked by it. From bronze and quarantine, which have messages as they were
received, goes what came on the device's topics and what claims to be of it. Where ids are trusted, the record alone
says whose a message is, as in silver, and the topic only where no record can be read: what another published on the
device's topic stays.
"""

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ..errors import UsageError
from ..tables.delta import WRITER, trusts_ids
from ..tables.schemas import BRONZE_SCHEMA, PLACE_COLUMNS
from ..tables.upkeep import deleted, existing
from .messages import devices_of
from .process import unfinished
from .rebuild import count_gold

_BY_DEVICE = ("silver", "duplicates", "status", "logs")
_AS_RECEIVED = ("bronze", "quarantine")


def forget(tables: Path, device_id: str) -> dict[str, int]:
    """Remove every row of a device and count gold anew; rows by table. No pipeline may run meanwhile.

    What the spool still holds of it is not touched, and the rows are in older versions of the tables until a vacuum.

    :raises UsageError: the name is none, or there are no tables.
    """
    if not device_id or "\0" in device_id or not _is_unicode(device_id):
        raise UsageError("a device's name is needed: see the table gold/devices")
    found = dict(existing(tables, _AS_RECEIVED + _BY_DEVICE))
    quoted = device_id.replace("'", "''")
    trust_ids = "bronze" in found and trusts_ids(tables)
    removed = {}
    with unfinished(tables, f"forget {shlex.quote(device_id)}"):
        for name, table in found.items():
            if name in _BY_DEVICE:
                removed[name] = deleted(table, f"device_id = '{quoted}'")
            else:
                removed[name] = _deleted_places(table, _places(table, device_id, trust_ids))
        count_gold(tables)
    return removed


def _places(table: DeltaTable, device_id: str, trust_ids: bool) -> pa.Table:
    """Where the messages of the device lie."""
    schema = pa.schema([BRONZE_SCHEMA.field(name) for name in PLACE_COLUMNS])
    found = [schema.empty_table()]
    for batch in table.to_pyarrow_dataset().to_batches(columns=["topic", "payload", *PLACE_COLUMNS]):
        rows = pa.Table.from_batches([batch]).filter(_may_be_of(batch, device_id))
        messages = zip(rows["topic"].to_pylist(), rows["payload"].to_pylist(), strict=True)
        mine = [device_id in devices_of(topic, payload, trust_ids=trust_ids) for topic, payload in messages]
        found.append(rows.select(PLACE_COLUMNS).filter(pa.array(mine, pa.bool_())).cast(schema))
    # A message may be in quarantine for two reasons.
    return pa.concat_tables(found).group_by(list(PLACE_COLUMNS)).aggregate([])


def _may_be_of(batch: pa.RecordBatch, device_id: str) -> pa.Array:
    """Messages whose bytes have the name in them, or escapes, which may spell it: the others need not be read."""

    def holds(column: str, text: str) -> pa.Array:
        return pc.call_function("match_substring", [batch[column]], pc.MatchSubstringOptions(text))

    named = pc.call_function("or", [holds("topic", device_id), holds("payload", device_id)])
    return pc.call_function("or", [named, holds("payload", "\\")])


def _deleted_places(table: DeltaTable, places: pa.Table) -> int:
    if not places.num_rows:
        return 0
    same = " AND ".join(f"held.{name} = gone.{name}" for name in PLACE_COLUMNS)
    merger = table.merge(places, same, source_alias="gone", target_alias="held", writer_properties=WRITER)
    return int(merger.when_matched_delete().execute()["num_target_rows_deleted"])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
