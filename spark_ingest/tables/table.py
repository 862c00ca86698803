"""The interface of a table for a pipeline: append the rows of a micro-batch exactly once, and read what is there."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset

from ..errors import UsageError
from ..location import Location, StorePath
from .schemas import PLACE_COLUMNS


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


class Table(ABC):
    """A table at `path`.

    :cvar FILE_PREFIX: how the names of files begin that tasks write for :meth:`commit_files`.
    """

    FILE_PREFIX = "part-"

    def __init__(self, path: Location) -> None:
        self.path = path
        self._highest: dict[tuple[str, int], int] = {}

    @property
    @abstractmethod
    def identity(self) -> str:
        """An id that no other table has, even one that was created later at the same path."""

    @abstractmethod
    def dataset(self) -> pa_dataset.Dataset:
        """Return everything that is committed now."""

    def count(self) -> int:
        """Return the number of rows that are committed now."""
        return self.dataset().count_rows()

    @abstractmethod
    def has(self, application_id: str, batch_id: int) -> bool:
        """Return whether the micro-batch has already been committed to this table."""

    @abstractmethod
    def commit_files(self, files: Sequence[DataFile], application_id: str, batch_id: int) -> bool:
        """Add data files that tasks have written, unless the micro-batch has already been committed.

        :returns: whether the files were added.
        :raises UsageError: this process does not see one of the files as it was written.
        """

    @abstractmethod
    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns of `schema` that the table lacks; its older rows read as null."""

    def without_removed(self, rows: pa.Table) -> pa.Table:
        """Return `rows` without those that retention removed from the table: a new checkpoint reads them again."""
        return rows

    def without_known(self, rows: pa.Table) -> pa.Table:
        """Return `rows` without those whose PLACE_COLUMNS the table already holds: a new checkpoint reads them again.

        Messages of a spool come in the order of their places. So a place beyond the highest one that the table had
        when this process first met the segment is new, and the table need not be read for it.
        """
        if not rows.num_rows:
            return rows
        ends = rows.group_by(["spool", "segment"]).aggregate([("position", "min"), ("position", "max")])
        near: pa_dataset.Expression | None = None
        for end in ends.to_pylist():
            segment = (end["spool"], end["segment"])
            in_segment = (pa_dataset.field("spool") == segment[0]) & (pa_dataset.field("segment") == segment[1])
            if segment not in self._highest:
                self._highest[segment] = self._highest_place(in_segment)
            if end["position_min"] <= self._highest[segment]:
                between = pa_dataset.field("position") <= end["position_max"]
                here = in_segment & (pa_dataset.field("position") >= end["position_min"]) & between
                near = here if near is None else near | here
        if near is None:
            return rows
        known = self.scan(PLACE_COLUMNS, near)
        if not known.num_rows:
            return rows
        numbered = rows.select(PLACE_COLUMNS).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
        fresh = numbered.join(known, keys=list(PLACE_COLUMNS), join_type="left anti")
        row = fresh["row"].combine_chunks()
        return rows.take(row.take(pc.call_function("array_sort_indices", [row])))

    def scan(self, columns: Sequence[str], where: pa_dataset.Expression | None = None) -> pa.Table:
        """Return `columns` of the newest version; files whose statistics exclude `where` are not read."""
        return self.dataset().to_table(columns=list(columns), filter=where)

    def _highest_place(self, in_segment: pa_dataset.Expression) -> int:
        position = self.scan(["position"], in_segment)["position"]
        return pc.call_function("max", [position]).as_py() if len(position) else -1
