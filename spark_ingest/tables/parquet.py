"""Plain Parquet: a folder of files that any engine can read, to which each micro-batch is appended once.

Tasks write files that are hidden from readers: their names begin with a dot. A commit first notes, in one file that
is replaced atomically, the micro-batch and its files, and then renames them one by one. Whoever opens the table
finishes the renames that a killed process has left. So a reader sees a file with all its rows or not at all.
Delta has features that plain Parquet lacks: one commit over several files (here the files of a micro-batch appear one
after the other), joining small files while they are read, removal of rows, and gold (it follows Delta versions).
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs

from ..durable import read_checked_json, replace_checked, sync_directory
from ..errors import FileDamaged, UsageError
from ..location import Location
from .table import DataFile, Table, require_file

MARK = "_umqtt.json"
"""The file in the table's folder with the table's identity; readers of Parquet ignore files with such names."""
_COMMIT = "_umqtt_commit.json"


class Parquet(Table):
    """The folder of Parquet files at `path`, created if it does not exist.

    Columns that older files lack read as null. Only one process at a time may write.

    :param partition_by: a date column; each of its values has a folder, named as Hive does.
    :raises UsageError: the folder cannot be written or contains something else.
    """

    FILE_PREFIX = ".part-"

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
            self._show()
        except (OSError, FileDamaged, KeyError) as error:
            reason = getattr(error, "strerror", None) or f"{MARK} is damaged"
            raise UsageError(f"cannot write the table {path}: {reason}; choose another --tables") from error
        # Fragments are kept because they cache the statistics of their files.
        self._fragments: dict[Path, pa_dataset.Fragment] = {}

    @property
    def identity(self) -> str:
        """The id in the file MARK."""
        return self._identity

    def dataset(self) -> pa_dataset.Dataset:
        """Return a dataset of all complete files; of files that a filter excludes, only the statistics are read."""
        files = [file for folder in self._folders() for file in folder.glob("[!.]*.parquet")]
        self._fragments = {file: self._fragments.get(file) or self._fragment(file) for file in files}
        return pa_dataset.FileSystemDataset(
            list(self._fragments.values()), self._schema, self._format, filesystem=self._disk
        )

    def has(self, application_id: str, batch_id: int) -> bool:
        """Return whether the micro-batch has already been committed to this table."""
        return self._noted()["versions"].get(application_id, -1) >= batch_id

    def commit_files(self, files: Sequence[DataFile], application_id: str, batch_id: int) -> bool:
        """Add data files; see :meth:`Table.commit_files`."""
        if not files or self.has(application_id, batch_id):
            return False
        for file in files:
            require_file(self.path, file)
        versions = {**self._noted()["versions"], application_id: batch_id}
        note = {"versions": versions, "files": [file["path"] for file in files]}
        replace_checked(self._folder / _COMMIT, json.dumps(note).encode())
        self._show()
        return True

    def add_columns(self, schema: pa.Schema) -> None:
        """Make the columns of `schema` that the table lacks part of what is read; older rows read as null."""
        for field in schema:
            if field.name not in self._schema.names:
                self._schema = self._schema.append(field)

    def _noted(self) -> dict[str, Any]:
        """Return the newest micro-batch of each query, and the files of the last commit."""
        try:
            return read_checked_json(self._folder / _COMMIT)
        except FileNotFoundError:
            return {"versions": {}, "files": []}

    def _show(self) -> None:
        """Rename the files of the last commit so that readers see them, unless that is done."""
        for name in self._noted()["files"]:
            hidden = self._folder / name
            # A task that opens the table at this moment does the same.
            with suppress(FileNotFoundError):
                hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))
                sync_directory(hidden.parent)

    def remove_uncommitted(self) -> None:
        """Remove the files that tasks have written and nobody will commit; no task may be writing any more."""
        for folder in self._folders():
            for file in folder.glob(".*.parquet"):
                file.unlink()

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
