"""What tasks tell of the data files that they have written, and places of messages as numbers."""

from typing import TypedDict

import numpy as np
import pyarrow as pa

from ..errors import UsageError
from ..location import Location, StorePath


def places(rows: pa.Table) -> np.ndarray:
    """Return each message's place in its spool as one number; later messages have larger numbers."""
    return (rows["segment"].to_numpy() << 40) + rows["position"].to_numpy()


class DataFile(TypedDict):
    """A durable Parquet file, described in types that JSON can represent.

    :ivar path: relative to the table.
    :ivar size: in bytes.
    :ivar partition: partition column to value.
    :ivar rows: number of rows.
    :ivar stats: Delta's statistics of the file, as JSON text.
    """

    path: str
    size: int
    partition: dict[str, str]
    rows: int
    stats: str


def require_file(folder: Location, file: DataFile) -> None:
    """Check that this process sees a data file as a task has written it.

    :raises UsageError: it does not.
    """
    path = folder / file["path"]
    is_there = isinstance(path, StorePath) or path.is_file()
    size = (path.size() if isinstance(path, StorePath) else path.stat().st_size) if is_there else None
    if size != file["size"]:
        raise UsageError(
            f"an executor has written {path} and the driver does not see it: "
            "--tables must be a path on a disk that all nodes share; nothing was committed to this table"
        )
