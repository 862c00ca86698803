"""Iceberg tables over the Parquet files of the Delta tables: metadata only, no row is copied.

Each run compares the files that the newest version of the Delta table uses with those that the newest Iceberg
snapshot names, and commits the difference at once. So readers see whole versions only, and a run that was
killed is simply run again. Delta's files have no field ids and no partition column; a name mapping and the partition
in the manifests replace them, as the Iceberg specification prescribes for migrated tables.
"""

import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from sqlalchemy.exc import SQLAlchemyError

from ..durable import replace_file
from ..errors import UsageError
from ..location import Location, StorePath
from ..lock import FolderLock
from .schemas import SCHEMAS
from .upkeep import KEEP_HOURS, existing

FOLDER = "iceberg"
"""The folder below --tables that holds everything written by this module."""
NAMESPACE = "umqtt"
_PROPERTIES = {
    "format-version": "2",
    # The added and removed files were computed against one snapshot and must not be applied to another.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
}
_PARTITION = [field.name for field in DATA_FILE_TYPE[2].fields].index("partition")
_NUMBERED = re.compile(r"v\d+\.metadata\.json")
_MAPPING = "schema.name-mapping.default"
DELTA_VERSION = "delta-version"
"""Key in a snapshot's summary: the version of the Delta table that the snapshot shows."""
_UNFINISHED = "umqtt-unfinished"


class Registered(NamedTuple):
    """The result of registering one table: its rows, and how many data files were added and removed."""

    rows: int
    added: int
    removed: int


def register(
    tables: Location, catalog_name: str | None = None, namespace: str = NAMESPACE, *, keep_hours: float = KEEP_HOURS
) -> dict[str, Registered]:
    """Update the Iceberg table of every Delta table to its newest version; return the results by table name.

    :param catalog_name: a catalog of pyiceberg's configuration; None: an SQLite file below `tables`.
    :param namespace: the namespace in the catalog.
    :param keep_hours: snapshots that were replaced longer ago than this are expired.
    :raises UsageError: `tables` is neither a folder nor on ``s3://``, or has no Delta tables; the catalog cannot be
        used, or is None for ``s3://``; or another process is registering.
    """
    if isinstance(tables, StorePath) and not str(tables).startswith("s3://"):
        raise UsageError(f"Iceberg tables are made in a folder or on s3://, not in {tables}: register the Delta tables")
    if isinstance(tables, StorePath) and catalog_name is None:
        raise UsageError(f"{tables} cannot hold a catalog, which is a file of SQLite: give --catalog NAME")
    folder = _folder(tables)
    # Fails if there are no tables, before a folder is created.
    for _ in existing(tables):
        break
    folder.mkdir(exist_ok=True)
    # An object store has no lock. Without it too, of two commits on the same snapshot one fails.
    with FolderLock(folder, "--tables", "umqtt tables register") if isinstance(folder, Path) else nullcontext():
        catalog = _open(folder, catalog_name)
        try:
            catalog.create_namespace_if_not_exists(namespace)
            return dict(_registered(catalog, tables, namespace, keep_hours, publish=catalog_name is None))
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise UsageError(f"{folder} was registered by another process too: run it again") from error
        except SQLAlchemyError as error:
            raise UsageError(f"cannot use the catalog of {folder}: {str(error).splitlines()[0]}") from error


def _registered(
    catalog: Catalog, tables: Location, namespace: str, keep_hours: float, *, publish: bool
) -> Iterator[tuple[str, Registered]]:
    for delta_name in SCHEMAS:
        name = delta_name.rpartition("/")[2]
        identifier = (namespace, name)
        folder = _folder(tables) / namespace / name
        location = _url(folder)
        # Read the snapshot before Delta's version: if another process commits in between, our commit fails, so the
        # table never goes back to an older version.
        held = _held(catalog, identifier, location)
        delta = next((table for _, table in existing(tables, [delta_name])), None)
        if delta is None:
            if held is not None:
                catalog.drop_table(identifier)
            continue
        if delta.protocol().min_reader_version != 1:
            raise UsageError(f"{tables / delta_name} has Delta features that Iceberg cannot show: rewrite it without")
        partition_by = delta.metadata().partition_columns
        if held is not None and [field.name for field in held.spec().fields] != partition_by:
            catalog.drop_table(identifier)
            held = None
        table = held or _create(catalog, identifier, location, delta, partition_by)
        added, removed = _follow(table, delta, tables / delta_name)
        _expire(table, keep_hours)
        if publish:
            _publish(Path(table.metadata_location.removeprefix("file://")))
        _sweep(table, folder / "metadata", keep_hours)
        yield name, Registered(delta.count(), added, removed)


def _url(place: Location) -> str:
    return f"file://{place.absolute()}" if isinstance(place, Path) else str(place)


def _folder(tables: Location) -> Location:
    folder = tables.absolute() / FOLDER
    if any(character in str(folder) for character in "#?%"):
        raise UsageError(f"Iceberg cannot name files in {folder}: choose a path without '#', '?' and '%'")
    return folder


def _open(folder: Location, name: str | None) -> Catalog:
    try:
        if name is None:
            return load_catalog(
                NAMESPACE, type="sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder}"
            )
        return load_catalog(name)
    except Exception as error:  # third-party clients may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"cannot open the catalog {name or folder}: {reason}") from error


def _held(catalog: Catalog, identifier: tuple[str, str], location: str) -> Table | None:
    moved = f"was registered in another folder than {location}: drop it there, or remove {FOLDER} below --tables"
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        raise UsageError(f"the table {'.'.join(identifier)} {moved}") from error
    if table.location() != location:
        raise UsageError(f"the table {'.'.join(identifier)} {moved}")
    return table


def _create(
    catalog: Catalog, identifier: tuple[str, str], location: str, delta: DeltaTable, partition_by: list[str]
) -> Table:
    with catalog.create_table_transaction(
        identifier, _schema(delta), location=location, properties=_PROPERTIES
    ) as creation:
        with creation.update_spec() as spec:
            for column in partition_by:
                spec.add_identity(column)
        creation.set_properties({_MAPPING: creation.table_metadata.schema().name_mapping.model_dump_json()})
    return catalog.load_table(identifier)


def _follow(table: Table, delta: DeltaTable, path: Location) -> tuple[int, int]:
    """Make `table` equal to `delta` by one commit; return how many files it added and removed.

    Files are removed in one snapshot of the commit and added in the next, since pyiceberg drops the manifests that only
    list removals, and merges the others, when it appends. The first of the two is never the current one, and
    :func:`_expire` removes it.
    """
    held = {task.file.file_path: task.file for task in table.scan().plan_files()}
    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    used = {f"{_url(path)}/{unquote(action['path'])}": action for action in actions}
    schema = _schema(delta)
    with table.transaction() as change:
        if {field.name for field in table.schema().fields} != set(schema.names):
            with change.update_schema() as update:
                update.union_by_name(schema)
        added = [_data_file(table, change.table_metadata, file, used[file]) for file in used.keys() - held.keys()]
        removed = [held[file] for file in held.keys() - used.keys()]
        version = {DELTA_VERSION: str(delta.version())}
        if removed:
            with change.update_snapshot(version | ({_UNFINISHED: "true"} if added else {})).overwrite() as files:
                for file in removed:
                    files.delete_data_file(file)
        if added:
            with change.update_snapshot(version).merge_append() as files:
                for file in added:
                    files.append_data_file(file)
    return len(added), len(removed)


def _data_file(table: Table, metadata, file: str, action: dict) -> DataFile:
    found = parquet_file_to_data_file(table.io, metadata, file)
    values = [action[f"partition.{field.name}"] for field in metadata.spec().fields]
    # Partition columns are only in the path. Iceberg stores a date as days since 1970-01-01.
    days = [(value - date(1970, 1, 1)).days if isinstance(value, date) else value for value in values]
    found[_PARTITION] = Record(*days)
    return found


def _schema(delta: DeltaTable) -> pa.Schema:
    return pa.schema(delta.schema().to_arrow())


def _expire(table: Table, keep_hours: float) -> None:
    """Expire snapshots that were replaced more than `keep_hours` ago, when a vacuum removes their files too.

    Those of :func:`_follow` that show no version of the Delta table are expired at once.
    """
    snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    oldest_ms = time.time() * 1000 - keep_hours * 3_600_000
    old = [
        before.snapshot_id
        for before, after in pairwise(snapshots)
        if after.timestamp_ms < oldest_ms or (before.summary and before.summary.get(_UNFINISHED))
    ]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def _publish(metadata: Path) -> None:
    """Copy the metadata to ``vN.metadata.json`` and write N to ``version-hint.text``.

    Engines that read a folder without a catalog look for these files.
    """
    version = str(int(metadata.name.partition("-")[0]) + 1)
    numbered = metadata.with_name(f"v{version}.metadata.json")
    hint = metadata.with_name("version-hint.text")
    if numbered.exists() and hint.exists() and hint.read_text() == version:
        return
    replace_file(numbered, metadata.read_bytes())
    replace_file(hint, version.encode())


def _sweep(table: Table, folder: Location, keep_hours: float) -> None:
    """Remove metadata files that nothing names any more and that are older than `keep_hours`."""
    named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        named.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    names = {name.rpartition("/")[2] for name in named} | {"version-hint.text"}
    written = dict(_written(folder))
    numbered = {name: at for name, at in written.items() if _NUMBERED.fullmatch(name)}
    names.update(sorted(numbered, key=numbered.__getitem__)[-1:])
    for name, at in written.items():
        if name not in names and at < time.time() - keep_hours * 3600:
            (folder / name).unlink(missing_ok=True)


def _written(folder: Location) -> Iterator[tuple[str, float]]:
    """Yield the name of each file in `folder`, and when it was written, in seconds since 1970."""
    if isinstance(folder, Path):
        yield from ((path.name, path.stat().st_mtime) for path in folder.iterdir())
        return
    for info in folder.filesystem().get_file_info(pa_fs.FileSelector(folder.key, allow_not_found=True)):
        yield info.base_name, info.mtime_ns / 1e9
