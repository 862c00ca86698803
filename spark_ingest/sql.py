"""Makes the tables available by name to SQL engines; docs/sql.md shows Spark, DuckDB, polars, pandas and delta-rs.

Nothing here needs a Delta extension, a jar or the network: delta-rs lists the files of a table, and every engine can
read them.
"""

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import DeltaTable

from .errors import UsageError
from .location import Location, StorePath, located
from .tables.schemas import SCHEMAS
from .tables.upkeep import existing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDERS = {folder.rpartition("/")[2]: folder for folder in SCHEMAS}
"""Folders below --tables by their name in SQL: ``silver``, …, and for gold ``devices``, ``windows``, …"""


def open_tables(tables: str | Location) -> dict[str, DeltaTable]:
    """Open every existing table in `tables` at its newest version; return them by their names in FOLDERS.

    :raises UsageError: there is no table, or one cannot be opened.
    """
    names = {folder: name for name, folder in FOLDERS.items()}
    return {names[folder]: table for folder, table in existing(located(tables))}


def spark_views(spark: "SparkSession", tables: str | Location) -> list[str]:
    """Make a temporary view of the current version of every table; return the names of the views.

    Spark reads the Parquet files that delta-rs lists, in parallel and with its own push-down, so it needs no Delta
    jar. A view is not updated with its table: call this again to see newer rows, and after a compaction or a vacuum.

    :raises UsageError: as :func:`open_tables`, or the tables are on an object store.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    tables = located(tables)
    if isinstance(tables, StorePath):
        raise UsageError("Spark has no jars for an object store here: open_tables() gives its tables to other engines")
    opened = open_tables(tables)
    for name, table in opened.items():
        # Use the table's schema, because older files lack columns that were added later.
        schema = from_arrow_schema(table.to_pyarrow_dataset().schema)
        # delta-rs percent-encodes paths; Spark does not decode them.
        files = [_literal(unquote(file)) for file in table.file_uris()]
        # basePath is needed because only the path of a file has the partition's value.
        reader = spark.read.schema(schema).option("basePath", str((tables / FOLDERS[name]).absolute()))
        frame = reader.parquet(*files) if files else spark.createDataFrame([], schema)
        frame.createOrReplaceTempView(name)
    return list(opened)


def _literal(path: str) -> str:
    """Escape glob characters in a path for Spark."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
