"""Plain Parquet: a folder of files that any engine can read, to which each micro-batch is appended once.

A file is named after the query and the micro-batch that wrote it, so a replay finds the files of its first attempt
and leaves them alone. A file appears under its name complete and durable, so a reader sees all its rows or none.
Delta has features that plain Parquet lacks: one commit over several files (here a micro-batch that spans midnight
appears day by day), joining small files while they are read, removal of rows, and gold (it follows Delta versions).
"""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from ..durable import read_checked_json, replace_checked, replace_file, sync_directory
from ..errors import FileDamaged, UsageError
from ..location import Location
from .table import Table

MARK = "_umqtt.json"
"""The file in the table's folder with the table's identity; readers of Parquet ignore files with such names."""


class Parquet(Table):
    """The folder of Parquet files at `path`, created if it does not exist.

    Columns that older files lack read as null. Only one process at a time may write.

    :param partition_by: a date column; each of its values has a folder, named as Hive does.
    :raises UsageError: the folder cannot be written or contains something else.
    """

    def __init__(self, path: Location, schema: pa.Schema, partition_by: str | None = None) -> None:
        if not isinstance(path, Path):
            raise UsageError("plain Parquet is written into folders only: leave out --format parquet")
        super().__init__(path)
        self._folder = path
        self._schema = schema
        self._partition_by = partition_by
        self._format = pa_dataset.ParquetFileFormat()
        self._disk = pa_fs.LocalFileSystem()
        try:
            path.mkdir(parents=True, exist_ok=True)
            mark = path / MARK
            if not mark.exists():
                replace_checked(mark, json.dumps({"id": str(uuid.uuid4())}).encode())
                sync_directory(path.parent)
            self._identity = str(read_checked_json(mark)["id"])
            for folder in self._folders():
                for unfinished in folder.glob(".*.tmp"):
                    unfinished.unlink()
        except (OSError, FileDamaged, KeyError) as error:
            reason = getattr(error, "strerror", None) or f"{MARK} is damaged"
            raise UsageError(f"cannot write the table {path}: {reason}; choose another --tables") from error
        # Fragments are kept because they cache the statistics of their files.
        self._fragments = {
            file: self._fragment(file) for folder in self._folders() for file in folder.glob("*.parquet")
        }

    @property
    def identity(self) -> str:
        """The id in the file MARK."""
        return self._identity

    def dataset(self) -> pa_dataset.Dataset:
        """Return a dataset of all complete files; of files that a filter excludes, only the statistics are read."""
        return pa_dataset.FileSystemDataset(
            list(self._fragments.values()), self._schema, self._format, filesystem=self._disk
        )

    def has(self, application_id: str, batch_id: int) -> bool:
        """Return whether rows of the micro-batch have already been committed to this table."""
        name = _file_name(application_id, batch_id)
        return any(folder / name in self._fragments for folder in self._folders())

    def append_once(self, rows: pa.Table, application_id: str, batch_id: int) -> bool:
        """Append `rows` of those days that the micro-batch has not committed yet; return whether it appended any."""
        appended = False
        for folder, some in self._by_folder(rows):
            file = folder / _file_name(application_id, batch_id)
            if file in self._fragments:
                continue
            if not folder.exists():
                folder.mkdir()
                sync_directory(self._folder)
            sink = pa.BufferOutputStream()
            pq.write_table(some, sink, compression="zstd", compression_level=1)
            replace_file(file, memoryview(sink.getvalue()))
            self._fragments[file] = self._fragment(file)
            appended = True
        return appended

    def _by_folder(self, rows: pa.Table) -> Iterator[tuple[Path, pa.Table]]:
        if self._partition_by is None:
            if rows.num_rows:
                yield self._folder, rows
            return
        dates = rows[self._partition_by]
        for date in pc.call_function("unique", [dates]):
            some = rows.filter(pc.call_function("equal", [dates, date])).drop_columns([self._partition_by])
            yield self._folder / f"{self._partition_by}={date.as_py().isoformat()}", some

    def _folders(self) -> Iterator[Path]:
        yield self._folder
        if self._partition_by is not None:
            yield from self._folder.glob(f"{self._partition_by}=*")

    def _fragment(self, file: Path) -> pa_dataset.Fragment:
        where = None
        if self._partition_by is not None and file.parent != self._folder:
            day = pa.scalar(file.parent.name.partition("=")[2]).cast(pa.date32())
            where = pa_dataset.field(self._partition_by) == day
        return self._format.make_fragment(str(file), filesystem=self._disk, partition_expression=where)


def _file_name(application_id: str, batch_id: int) -> str:
    # An application id is "query/table"; the table is known from the folder.
    return f"{application_id.partition('/')[0]}-{batch_id:010d}.parquet"
