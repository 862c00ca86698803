"""Delta tables, appended to once per micro-batch, whatever is replayed.

Each append carries an application transaction (application id, micro-batch): Delta keeps the newest version
of each application in the table itself, in the same atomic commit as the rows. A replay sees it and appends
nothing.

The application id holds the query's id from the checkpoint. With a fixed id, a new checkpoint would start at
micro-batch 0 again and the table would take it for a replay: rows silently skipped.
"""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from ..errors import UsageError
from .table import Table, places

_SETTINGS = {
    # A commit each half second: without this the log would hold five million files after a month.
    "delta.logRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": "100",
}
_NOT_IN_URLS = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")
REMOVED = "umqtt/removed/"
"""With a spool behind it, an application of bronze: up to which place of the spool retention has removed rows."""
WRITER = WriterProperties(compression="ZSTD", compression_level=1)


class Delta(Table):
    """One Delta table at `path`, made with `schema` when it does not exist.

    Columns that an older table lacks are added to it.

    :param partition_by: a date column; a folder for each of its values.
    :param then_by: a column; a folder in those for each of its values.
    :raises UsageError: the folder cannot be written or holds something else.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, partition_by: str | None = None, then_by: str | None = None
    ) -> None:
        super().__init__(path)
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
            )
            held = {field.name for field in self._table.schema().fields}
            lacking = [field for field in _fields(schema) if field.name not in held]
            if lacking:
                self._table.alter.add_columns(lacking)
        except (OSError, DeltaError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise UsageError(f"cannot write the table {path}: {reason}; choose another --tables") from error

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
        write_deltalake(
            self._table,
            rows,
            mode="append",
            schema_mode="merge",
            partition_by=self._partition_by,
            writer_properties=WRITER,
            commit_properties=CommitProperties(app_transactions=[Transaction(application_id, batch_id)]),
        )
        return True


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


def noted_rules(tables: Path) -> tuple[bool, bool]:
    """What :func:`note_rules` kept: whether ids are trusted, and whether there are decoders."""
    held = DeltaTable(str(tables / "bronze")).metadata().configuration
    return held.get(_TRUST_IDS) == "true", held.get(_DECODERS) == "true"


def transactions(path: Path) -> dict[str, int]:
    """The newest version of every application that has written to the table, by application id."""
    log = path / "_delta_log"
    found: dict[str, int] = {}
    for name in sorted(entry.name for entry in log.iterdir()):
        if name.endswith(".checkpoint.parquet"):
            actions: list[dict] = pq.read_table(log / name, columns=["txn"])["txn"].to_pylist()
        elif name.endswith(".json"):
            actions = [json.loads(line).get("txn") for line in (log / name).read_text().splitlines() if line]
        else:
            continue
        for action in actions:
            if action and action["appId"] is not None:
                found[action["appId"]] = max(action["version"], found.get(action["appId"], -1))
    return found


def _require_url(path: Path) -> None:
    # delta-rs makes a URL of the path: with these it panics, or writes to another folder and does not find it again.
    wrong = _NOT_IN_URLS.search(str(path.absolute()))
    if wrong:
        raise UsageError(f"Delta cannot keep a table in {path}: {wrong[0]!r} in its path; choose another --tables")


def _fields(schema: pa.Schema) -> list[Field]:
    return list(Schema.from_arrow(schema).fields)
