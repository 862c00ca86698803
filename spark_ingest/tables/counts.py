"""Counts and identities of the rows of silver, read without Spark."""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as pa_dataset

from ..location import Location, is_table, located, open_table
from .schemas import SILVER_SCHEMA

IDENTITY_COLUMNS = ["device_id", "boot", "seq"]


class Summary(NamedTuple):
    """The rows of silver, the distinct identities among them (the same number unless there is a bug), and quarantine.

    :ivar rows: number of rows of silver.
    :ivar distinct: number of distinct identities in silver.
    :ivar quarantined: number of rows of quarantine.
    """

    rows: int
    distinct: int
    quarantined: int


def identity_table(tables: str | Location) -> pa.Table:
    """Return device_id, boot and seq of every row of silver; the table is empty if there is no silver yet."""
    silver = _dataset(located(tables) / "silver")
    if silver is None:
        return pa.schema([SILVER_SCHEMA.field(name) for name in IDENTITY_COLUMNS]).empty_table()
    return silver.to_table(columns=IDENTITY_COLUMNS)


def identities(tables: str | Location) -> Iterator[tuple[str, str, int]]:
    """Yield (device_id, boot, seq) of every row of silver, once per row."""
    for batch in identity_table(tables).to_batches():
        yield from zip(*(batch.column(name).to_pylist() for name in IDENTITY_COLUMNS), strict=True)


def summary(tables: str | Location) -> Summary:
    """Count the rows of silver and quarantine, and the distinct identities of silver."""
    silver = identity_table(tables)
    distinct = silver.group_by(IDENTITY_COLUMNS).aggregate([]).num_rows
    quarantine = _dataset(located(tables) / "quarantine")
    return Summary(silver.num_rows, distinct, quarantine.count_rows() if quarantine else 0)


def _dataset(path: Location) -> pa_dataset.Dataset | None:
    return open_table(path).to_pyarrow_dataset() if is_table(path) else None
