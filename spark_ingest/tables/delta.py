"""Delta tables to which each micro-batch is appended once, even if it is replayed.

Each append carries an application transaction (application id, micro-batch). Delta keeps the newest version
of each application in the table itself, in the same atomic commit as the rows. A replay finds it there and
appends nothing.

The application id contains the query's id from the checkpoint. With a fixed id, a new checkpoint, which starts at
micro-batch 0 again, would be taken for a replay, and its rows would be skipped silently.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    Transaction,
    WriterProperties,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ..errors import TablesTaken, UsageError
from ..location import Location, StorePath, open_table, reason, storage_options
from .schemas import PLACE_COLUMNS
from .table import DataFile, places, require_file

_CHECKPOINT_EVERY = 100
_SETTINGS = {
    # A commit lists the whole log twice: 1 ms for every 500 versions in it. Gold needs the versions of some minutes.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": str(_CHECKPOINT_EVERY),
}
_NOT_IN_URLS = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")
WRITER_ID = "umqtt/writer"
"""Delta application id on an object store that tells who may append; see :mod:`spark_ingest.pipeline.run.claim`."""
REMOVED = "umqtt/removed/"
"""Prefix of a Delta application id of bronze, which ends with the UUID of a spool.

The application's version is the place, as :func:`places` returns it, up to which retention has removed the rows of
that spool.
"""
# A dictionary for a column whose values do not repeat takes time and a third of the bytes of a file, for nothing.
_NO_DICTIONARY = ColumnProperties(dictionary_enabled=False)
WRITER = WriterProperties(
    compression="ZSTD",
    compression_level=1,
    column_properties=dict.fromkeys(("payload", "payload_crc", "position"), _NO_DICTIONARY),
)


class Delta:
    """The Delta table at `path`, created with `schema` if it does not exist.

    Columns that the table lacks are added to it; its older rows read as null there.

    :ivar writer: the number of the pipeline that may append, until another one claims the table. None: the holder of
        the folder's lock may append.
    :param partition_by: a date column; each of its values has a folder.
    :param then_by: a column; each of its values has a folder inside those.
    :raises UsageError: the place cannot be written or contains something else.
    """

    # In a local log, the name of the next version shows whether there is one. It does not show that this version has
    # left the log because another process has made hundreds, so now and then the log is listed.
    LIST_EVERY_S = 60.0

    def __init__(
        self, path: Location, schema: pa.Schema, partition_by: str | None = None, then_by: str | None = None
    ) -> None:
        self.path = path
        self._highest: dict[tuple[str, int], int] = {}
        self.writer: int | None = None
        self._removed_up_to: dict[str, int] = {}
        self._listed_at = time.monotonic()
        self._read: tuple[int, pa_dataset.Dataset] | None = None
        _require_url(path)
        self._partition_by = [name for name in (partition_by, then_by) if name] or None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._table = DeltaTable.create(
                str(path),
                schema=schema,
                mode="ignore",
                partition_by=self._partition_by,
                configuration=dict(_SETTINGS),
                raise_if_key_not_exists=False,
                storage_options=storage_options(path),
            )
            self.add_columns(schema)
        except (OSError, DeltaError) as error:
            raise UsageError(f"cannot write the table {path}: {reason(error)}; choose another --tables") from error

    @property
    def delta(self) -> DeltaTable:
        """The newest version of the table."""
        now, newest = time.monotonic(), self._table.version()
        following = self.path / "_delta_log" / f"{newest + 1:020d}.json"
        if isinstance(following, StorePath) or now - self._listed_at >= self.LIST_EVERY_S or following.exists():
            self._table.update_incremental()
            self._listed_at = now
        return self._table

    def catch_up(self) -> None:
        """Read the newest version, so that the next use need not; an object store is asked at each use anyway."""
        if not isinstance(self.path, StorePath):
            _ = self.delta

    @property
    def identity(self) -> str:
        """The id in the table's metadata."""
        return str(self.delta.metadata().id)

    def count(self) -> int:
        """Return the number of rows of the newest version, which its log has."""
        return self.delta.count()

    def dataset(self) -> pa_dataset.Dataset:
        """Return the newest version as a dataset; files whose statistics exclude a filter are not read."""
        delta = self.delta
        # Creating a dataset reads the statistics of every file, and a micro-batch needs a version several times.
        if self._read is None or self._read[0] != delta.version():
            # Drop the old dataset first: both at once would take twice the memory.
            self._read = None
            self._read = delta.version(), delta.to_pyarrow_dataset()
        return self._read[1]

    def has(self, application_id: str, batch_id: int) -> bool:
        """Return whether the micro-batch has already been committed to this table."""
        version = self.delta.transaction_version(application_id)
        return version is not None and version >= batch_id

    def without_removed(self, rows: pa.Table) -> pa.Table:
        """Return `rows` without those that retention removed from the table: a new checkpoint reads them again.

        A spool is read in order, so the removed rows of a spool end at one place.
        """
        for spool in pc.call_function("unique", [rows["spool"]]).to_pylist():
            if spool not in self._removed_up_to:
                version = self.delta.transaction_version(REMOVED + spool)
                self._removed_up_to[spool] = -1 if version is None else version
            if self._removed_up_to[spool] >= 0:
                other = pc.call_function("not_equal", [rows["spool"], pa.scalar(spool)]).to_numpy()
                rows = rows.filter(pa.array(other | (places(rows) > self._removed_up_to[spool])))
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

    def commit_files(self, files: Sequence[DataFile], application_id: str, batch_id: int) -> bool:
        """Add data files that tasks have written in one commit, unless the micro-batch has already been committed.

        :returns: whether the files were added.
        :raises UsageError: this process does not see one of the files as it was written.
        """
        if not files or self.has(application_id, batch_id):
            return False
        for file in files:
            require_file(self.path, file)
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(f["path"], f["size"], f["partition"], now_ms, True, f["stats"]) for f in files
        ]
        with self.committing(application_id, batch_id) as (delta, properties):
            delta.create_write_transaction(
                actions,
                "append",
                delta.schema(),
                self._partition_by or [],
                commit_properties=properties,
                post_commithook_properties=self.hooks(),
            )
        return True

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns of `schema` that the table lacks; its older rows read as null.

        :raises DeltaError: the table cannot be changed.
        """
        held = {field.name for field in self.delta.schema().fields}
        lacking = [field for field in _fields(schema) if field.name not in held]
        if lacking:
            self._table.alter.add_columns(lacking)

    def hooks(self) -> PostCommitHookProperties:
        """Return what delta-rs does after a commit to the version of :attr:`delta`.

        It removes old versions from the log only after a checkpoint, since none can go before. By default it looks for
        them after each commit, which lists the log eight times more.
        """
        is_first_after_checkpoint = (self._table.version() + 1) % _CHECKPOINT_EVERY == 0
        return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=is_first_after_checkpoint)

    @contextmanager
    def committing(self, application_id: str, batch_id: int) -> Iterator[tuple[DeltaTable, CommitProperties]]:
        """Yield the table to commit a micro-batch to, and the properties for the commit.

        The properties carry the micro-batch's transaction and, if :attr:`writer` is set, the writer's. Delta refuses
        the commit if another writer has claimed the table after the yielded version.

        :raises TablesTaken: another writer has claimed the table.
        """
        transactions = [Transaction(application_id, batch_id)]
        if self.writer is not None:
            self._require_writer()
            transactions.append(Transaction(WRITER_ID, self.writer))
        try:
            yield self._table, CommitProperties(app_transactions=transactions)
        except CommitFailedError:
            self._require_writer()
            raise

    def upon(self, application_id: str, version: int) -> DeltaTable:
        """Return the newest version of the table, as the base of a commit with a new version of the application.

        Delta refuses such a commit if another one of the same application came in between.

        :param version: the application's version that the table must have.
        :raises TablesTaken: another process has committed another version of the application.
        """
        delta = self.delta
        if (delta.transaction_version(application_id) or 0) != version:
            raise TablesTaken(f"another process has updated {self.path} meanwhile")
        return delta

    def claim(self, writer: int) -> None:
        """Make `writer` the only writer that may append; Delta refuses the commits of others from now on.

        :raises CommitFailedError: another writer has claimed the table meanwhile.
        """
        try:
            commit_claim(self.delta, writer)
        except CommitFailedError:
            # If the store's answer was lost, the commit was repeated and conflicts with itself.
            if self.delta.transaction_version(WRITER_ID) != writer:
                raise
        self.writer = writer

    def look_for_another(self) -> None:
        """Check that no other writer has claimed the table; do nothing if it cannot be read now. Thread-safe.

        :raises TablesTaken: another writer has.
        """
        with suppress(OSError, DeltaError):
            self._require_writer(open_table(self.path))

    def _require_writer(self, delta: DeltaTable | None = None) -> None:
        if self.writer is not None and (delta or self.delta).transaction_version(WRITER_ID) != self.writer:
            raise TablesTaken(
                f"another pipeline, or a command of umqtt tables, has taken over {self.path}: this pipeline stops, and "
                "has written nothing since; nothing is lost, the spool has it"
            )


def commit_claim(table: DeltaTable, writer: int) -> None:
    """Commit a claim of `writer` to the table; see :meth:`Delta.claim`."""
    properties = CommitProperties(app_transactions=[Transaction(WRITER_ID, writer)])
    partition_by = table.metadata().partition_columns
    table.create_write_transaction([], "append", table.schema(), partition_by, commit_properties=properties)


_TRUST_IDS = "umqtt.trustIds"
_DECODERS = "umqtt.decoders"


def note_rules(bronze: Delta, *, trust_ids: bool, decoders: bool) -> None:
    """Store in bronze's properties how its messages are read, for commands that read bronze later without a pipeline.

    Of the decoders, only their existence is stored: a decoder may be code, and a writer of tables must not choose
    which code runs.
    """
    held = bronze.delta.metadata().configuration
    words = {_TRUST_IDS: str(trust_ids).lower(), _DECODERS: str(decoders).lower()}
    if any(held.get(name, "false") != word for name, word in words.items()):
        bronze.delta.alter.set_table_properties(words, raise_if_not_exists=False)


def noted_rules(tables: Location) -> tuple[bool, bool]:
    """Return what :func:`note_rules` stored: whether ids are trusted, and whether there are decoders."""
    held = open_table(tables / "bronze").metadata().configuration
    return held.get(_TRUST_IDS) == "true", held.get(_DECODERS) == "true"


def transactions(path: Location) -> dict[str, int]:
    """Return the newest version of each application that has written to the table, by application id."""
    log = path / "_delta_log"
    found: dict[str, int] = {}
    for name in sorted(entry.name for entry in log.iterdir()):
        if name.endswith(".checkpoint.parquet"):
            file = pa.BufferReader((log / name).read_bytes())
            actions: list[dict] = pq.read_table(file, columns=["txn"])["txn"].to_pylist()
        elif name.endswith(".json"):
            actions = [json.loads(line).get("txn") for line in (log / name).read_text().splitlines() if line]
        else:
            continue
        for action in actions:
            if action and action["appId"] is not None:
                found[action["appId"]] = max(action["version"], found.get(action["appId"], -1))
    return found


def _require_url(path: Location) -> None:
    if isinstance(path, StorePath):
        return
    # delta-rs turns the path into a URL. With these characters it panics, or writes to another folder, which it does
    # not find again.
    wrong = _NOT_IN_URLS.search(str(path.absolute()))
    if wrong:
        raise UsageError(f"Delta cannot keep a table in {path}: {wrong[0]!r} in its path; choose another --tables")


def _fields(schema: pa.Schema) -> list[Field]:
    return list(Schema.from_arrow(schema).fields)
