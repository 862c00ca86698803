"""Delta tables, appended to once per micro-batch, whatever is replayed.

Each append carries an application transaction (application id, micro-batch): Delta keeps the newest version
of each application in the table itself, in the same atomic commit as the rows. A replay sees it and appends
nothing.

The application id holds the query's id from the checkpoint. With a fixed id, a new checkpoint would start at
micro-batch 0 again and the table would take it for a replay: rows silently skipped.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ..errors import TablesTaken, UsageError
from ..location import Location, StorePath, open_table, reason, storage_options
from .table import Table, places

_SETTINGS = {
    # A commit each half second: without this the log would hold five million files after a month.
    "delta.logRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": "100",
}
_NOT_IN_URLS = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")
WRITER_ID = "umqtt/writer"
"""An application of tables on an object store: who may append; see :mod:`spark_ingest.pipeline.claim`."""
REMOVED = "umqtt/removed/"
"""With a spool behind it, an application of bronze: up to which place of the spool retention has removed rows."""
WRITER = WriterProperties(compression="ZSTD", compression_level=1)


class Delta(Table):
    """One Delta table at `path`, made with `schema` when it does not exist.

    Columns that an older table lacks are added to it.

    :ivar writer: the pipeline that may append; another one's commit ends that. None: whoever holds the folder's lock.
    :param partition_by: a date column; a folder for each of its values.
    :param then_by: a column; a folder in those for each of its values.
    :raises UsageError: the place cannot be written or holds something else.
    """

    def __init__(
        self, path: Location, schema: pa.Schema, partition_by: str | None = None, then_by: str | None = None
    ) -> None:
        super().__init__(path)
        self.writer: int | None = None
        self._removed_up_to: dict[str, int] = {}
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
            held = {field.name for field in self._table.schema().fields}
            lacking = [field for field in _fields(schema) if field.name not in held]
            if lacking:
                self._table.alter.add_columns(lacking)
        except (OSError, DeltaError) as error:
            raise UsageError(f"cannot write the table {path}: {reason(error)}; choose another --tables") from error

    @property
    def delta(self) -> DeltaTable:
        """The newest version."""
        self._table.update_incremental()
        return self._table

    @property
    def identity(self) -> str:
        """The id in the table's metadata."""
        return str(self.delta.metadata().id)

    def dataset(self) -> pa_dataset.Dataset:
        """The newest version; files whose statistics exclude a filter are not read."""
        delta = self.delta
        # Making one takes the statistics of every file; a micro-batch asks several times before the next version.
        if self._read is None or self._read[0] != delta.version():
            # The old one goes first: both at once would take twice the memory.
            self._read = None
            self._read = delta.version(), delta.to_pyarrow_dataset()
        return self._read[1]

    def has(self, application_id: str, batch_id: int) -> bool:
        """Whether the micro-batch has already been committed to this table."""
        version = self.delta.transaction_version(application_id)
        return version is not None and version >= batch_id

    def without_removed(self, rows: pa.Table) -> pa.Table:
        """See :class:`Table`. A spool is read in order, so what was removed lies up to a place in each of them."""
        for spool in pc.call_function("unique", [rows["spool"]]).to_pylist():
            if spool not in self._removed_up_to:
                version = self.delta.transaction_version(REMOVED + spool)
                self._removed_up_to[spool] = -1 if version is None else version
            if self._removed_up_to[spool] >= 0:
                other = pc.call_function("not_equal", [rows["spool"], pa.scalar(spool)]).to_numpy()
                rows = rows.filter(pa.array(other | (places(rows) > self._removed_up_to[spool])))
        return rows

    def append_once(self, rows: pa.Table, application_id: str, batch_id: int) -> bool:
        """Append `rows` unless the micro-batch has already been committed; True when it appended."""
        if not rows.num_rows or self.has(application_id, batch_id):
            return False
        with self.committing(application_id, batch_id) as (delta, properties):
            write_deltalake(
                delta,
                rows,
                mode="append",
                schema_mode="merge",
                partition_by=self._partition_by,
                writer_properties=WRITER,
                commit_properties=properties,
            )
        return True

    @contextmanager
    def committing(self, application_id: str, batch_id: int) -> Iterator[tuple[DeltaTable, CommitProperties]]:
        """The version to commit a micro-batch upon, and what the commit carries: its transaction, and :attr:`writer`'s.

        Where another writer has claimed the table after that version, Delta refuses the commit.

        :raises TablesTaken: another has.
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
        """The newest version of the table, to commit another version of the application upon.

        A commit that carries one is refused when one of the same application came in between.

        :raises TablesTaken: another process has committed one since.
        """
        delta = self.delta
        if (delta.transaction_version(application_id) or 0) != version:
            raise TablesTaken(f"another process has updated {self.path} meanwhile")
        return delta

    def claim(self, writer: int) -> None:
        """Make `writer` the one that may append: what another one would commit from now on is refused.

        :raises CommitFailedError: another one has done so meanwhile.
        """
        try:
            commit_claim(self.delta, writer)
        except CommitFailedError:
            # The store's answer may have been lost, and the commit repeated.
            if self.delta.transaction_version(WRITER_ID) != writer:
                raise
        self.writer = writer

    def look_for_another(self) -> None:
        """Make sure, as far as the table can be read now, that no other writer has claimed it; for any thread.

        :raises TablesTaken: one has.
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
    """As :meth:`Delta.claim`."""
    properties = CommitProperties(app_transactions=[Transaction(WRITER_ID, writer)])
    partition_by = table.metadata().partition_columns
    table.create_write_transaction([], "append", table.schema(), partition_by, commit_properties=properties)


_TRUST_IDS = "umqtt.trustIds"
_DECODERS = "umqtt.decoders"


def note_rules(bronze: Delta, *, trust_ids: bool, decoders: bool) -> None:
    """Keep with bronze how its messages are read, for what is made of it later without a pipeline.

    Only whether there are decoders: what they are may be code, and whoever can write tables may not choose that.
    """
    held = bronze.delta.metadata().configuration
    words = {_TRUST_IDS: str(trust_ids).lower(), _DECODERS: str(decoders).lower()}
    if any(held.get(name, "false") != word for name, word in words.items()):
        bronze.delta.alter.set_table_properties(words, raise_if_not_exists=False)


def noted_rules(tables: Location) -> tuple[bool, bool]:
    """What :func:`note_rules` kept: whether ids are trusted, and whether there are decoders."""
    held = open_table(tables / "bronze").metadata().configuration
    return held.get(_TRUST_IDS) == "true", held.get(_DECODERS) == "true"


def transactions(path: Location) -> dict[str, int]:
    """The newest version of every application that has written to the table, by application id."""
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
    # delta-rs makes a URL of the path: with these it panics, or writes to another folder and does not find it again.
    wrong = _NOT_IN_URLS.search(str(path.absolute()))
    if wrong:
        raise UsageError(f"Delta cannot keep a table in {path}: {wrong[0]!r} in its path; choose another --tables")


def _fields(schema: pa.Schema) -> list[Field]:
    return list(Schema.from_arrow(schema).fields)
