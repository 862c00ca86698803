"""The job of a data engineer between deduplication and the table: ``transform = "my_job.py"`` in ingest.toml.

The file has a function ``transform(readings: DataFrame) -> DataFrame``. It gets the new readings of a micro-batch with
the columns of silver, and returns what is written of them: with other columns added, changed values, or fewer rows.
A row that is left out still counts as seen: it is in bronze, and not read again.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import UsageError
from ...tables.schemas import SILVER_SCHEMA
from ..process import cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transform = Callable[["DataFrame"], "DataFrame"]


def load(path: Path) -> Transform:
    """Return the function of a job's file.

    :raises UsageError: the file cannot be imported, or has no such function.
    """
    try:
        spec = importlib.util.spec_from_file_location(f"umqtt_transform_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        # Not in sys.modules: so Spark sends the module's functions to executors instead of its name.
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    found = getattr(module, "transform", None)
    if not callable(found):
        raise UsageError(f"{path} has no function transform(readings)")

    def transform(readings: "DataFrame") -> "DataFrame":
        return found(readings)

    return transform


def columns_of(session: "SparkSession", transform: Transform) -> pa.Schema:
    """Return the columns of silver with a transform: those of silver, and those that it adds.

    :raises UsageError: it fails on no rows, or it removes a column of silver or changes its type.
    """
    from pyspark.errors import PySparkException

    try:
        empty = session.createDataFrame(SILVER_SCHEMA.empty_table())
        returned = transform(empty).toArrow().schema
    except KeyboardInterrupt:
        raise
    except PySparkException as error:
        raise UsageError(f"the transform fails: {cause(str(error))}") from error
    except Exception as error:
        raise UsageError(f"the transform fails: {type(error).__name__}: {error}") from error
    for field in SILVER_SCHEMA:
        if field.name not in returned.names:
            raise UsageError(f"the transform removes the column {field.name}: it may add columns and leave out rows")
        if not _is_same(returned.field(field.name).type, field.type):
            raise UsageError(
                f"the transform makes the column {field.name} {returned.field(field.name).type}: it is {field.type}"
            )
    return pa.schema([*SILVER_SCHEMA, *(field for field in returned if field.name not in SILVER_SCHEMA.names)])


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_map(one) and pa.types.is_map(other):
        # Java names the entries otherwise.
        return one.key_type == other.key_type and one.item_type == other.item_type
    return one == other
