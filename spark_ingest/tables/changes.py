"""Which rows were appended to a table between two of its versions.

Rows get into the tables below gold only by appends. Compaction moves rows without changing them; retention and the
removal of a device only remove rows. So none of these shows here.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as pa_dataset

from ..location import Location, StorePath, is_table, open_table

# A row of silver may have thousands of metrics.
_BATCH_ROWS = 4096
_APPENDS = ("WRITE", "STREAMING UPDATE", "CREATE TABLE", "CREATE OR REPLACE TABLE")


class LogGone(Exception):
    """The log or a file of an old version was removed: only the whole table can be read."""


class Appended(NamedTuple):
    """The files appended to the table at `path` up to `version`; the names in `files` are relative to `path`."""

    path: Location
    version: int
    files: list[str]

    def batches(self, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield `columns` of the appended rows; a column that an older file lacks is null.

        :raises LogGone: a file has been removed.
        """
        if not self.files:
            return
        wanted = pa.schema([schema.field(name) for name in columns])
        files = [self.path / name for name in self.files]
        if not all(file.exists() for file in files):
            raise LogGone(f"a file of {self.path} has been removed")
        store = self.path.filesystem() if isinstance(self.path, StorePath) else None
        names = [file.key if isinstance(file, StorePath) else str(file) for file in files]
        dataset = pa_dataset.dataset(names, schema=wanted, format="parquet", filesystem=store)
        yield from dataset.to_batches(columns=list(columns), batch_size=_BATCH_ROWS)


def appended(path: Location, after: int | None, up_to: int | None = None) -> Appended:
    """Return the files that were appended after version `after`.

    :param after: None: return all files of the newest version. So does -1, unless `up_to` is given.
    :param up_to: the last version to include; None: the newest.
    :raises LogGone: the log does not hold all versions since `after` any more.
    """
    if not is_table(path):
        return Appended(path, -1, [])
    if after is None or (after < 0 and up_to is None):
        table = open_table(path)
        root = str(path.absolute()) + "/"
        files = [unquote(uri.removeprefix("file://")).removeprefix(root) for uri in table.file_uris()]
        return Appended(path, table.version(), files)
    files, version = [], after
    while version != up_to:
        try:
            lines = _commit(path, version + 1).read_text().splitlines()
        except FileNotFoundError:
            break
        version += 1
        files += _added([json.loads(line) for line in lines if line])
    # Get the newest version last: a pipeline may have committed in between.
    newest = (open_table(path).version() if version == after else version) if up_to is None else up_to
    if version < newest and not _commit(path, version + 1).exists():
        raise LogGone(f"the log of {path} does not hold version {version + 1} any more")
    return Appended(path, version, files)


def _commit(path: Location, version: int) -> Location:
    return path / "_delta_log" / f"{version:020d}.json"


def _added(actions: list[dict]) -> list[str]:
    operation = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), "WRITE")
    if operation not in _APPENDS or any(action.get("remove", {}).get("dataChange") for action in actions):
        return []
    return [unquote(action["add"]["path"]) for action in actions if action.get("add", {}).get("dataChange")]
