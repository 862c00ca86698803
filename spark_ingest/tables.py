"""Reading the tables without Spark: counts and identities, by delta-rs and Arrow alone. ::

python -c 'from spark_ingest.tables import summary; print(summary("tables"))'
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from .record import SILVER_SCHEMA

IDENTITY_COLUMNS = ["device_id", "boot", "seq"]


class Summary(NamedTuple):
    """`rows` of silver, the `distinct` identities among them (equal, unless something is broken), `quarantined`."""

    rows: int
    distinct: int
    quarantined: int


def identity_table(tables: str | Path) -> pa.Table:
    """device_id, boot and seq of every row of silver; empty when there is no table yet."""
    path = str(Path(tables) / "silver")
    if not DeltaTable.is_deltatable(path):
        return pa.schema([SILVER_SCHEMA.field(name) for name in IDENTITY_COLUMNS]).empty_table()
    return DeltaTable(path).to_pyarrow_table(columns=IDENTITY_COLUMNS)


def identities(tables: str | Path) -> Iterator[tuple[str, str, int]]:
    """(device_id, boot, seq) of every row of silver, repeated where a row is."""
    for batch in identity_table(tables).to_batches():
        yield from zip(*(batch.column(name).to_pylist() for name in IDENTITY_COLUMNS), strict=True)


def summary(tables: str | Path) -> Summary:
    """Count rows and identities."""
    silver = identity_table(tables)
    distinct = silver.group_by(IDENTITY_COLUMNS).aggregate([]).num_rows
    quarantine = str(Path(tables) / "quarantine")
    quarantined = DeltaTable(quarantine).count() if DeltaTable.is_deltatable(quarantine) else 0
    return Summary(silver.num_rows, distinct, quarantined)
