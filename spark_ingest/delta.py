"""Delta tables, appended to once per micro-batch, whatever is replayed.

Each append carries an application transaction (application id, micro-batch): Delta keeps the newest version
of each application in the table itself, in the same atomic commit as the rows. A replay sees it and appends
nothing.

The application id holds the query's id from the checkpoint. With a fixed id, a new checkpoint would start at
micro-batch 0 again and the table would take it for a replay: rows silently skipped.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pa_dataset
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from .errors import UsageError


class Table:
    """One Delta table at `path`, made with `schema` when it does not exist.

    :raises UsageError: the folder cannot be written or holds something else.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._table = DeltaTable.create(str(path), schema=schema, mode="ignore")
        except (OSError, DeltaError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise UsageError(f"cannot write the table {path}: {reason}; choose another --tables") from error

    def has(self, application_id: str, batch_id: int) -> bool:
        """Whether the micro-batch has already been committed to this table."""
        self._table.update_incremental()
        version = self._table.transaction_version(application_id)
        return version is not None and version >= batch_id

    def append_once(self, rows: pa.Table, application_id: str, batch_id: int) -> bool:
        """Append `rows` unless the micro-batch has already been committed; True when it appended."""
        if not rows.num_rows or self.has(application_id, batch_id):
            return False
        properties = CommitProperties(app_transactions=[Transaction(application_id, batch_id)])
        write_deltalake(self._table, rows, mode="append", commit_properties=properties)
        return True

    def without_known(self, rows: pa.Table, key: Sequence[str], prune_by: str) -> pa.Table:
        """`rows` without those whose `key` the table already holds.

        For rows that a new checkpoint reads again; meant for tables that get few.

        :param prune_by: a key column by whose range files are skipped.
        """
        if not rows.num_rows:
            return rows
        self._table.update_incremental()
        low, high = min(rows[prune_by].to_pylist()), max(rows[prune_by].to_pylist())
        near = (pa_dataset.field(prune_by) >= low) & (pa_dataset.field(prune_by) <= high)
        known = self._table.to_pyarrow_dataset().to_table(columns=list(key), filter=near)
        return rows.join(known, keys=list(key), join_type="left anti") if known.num_rows else rows

    def read(self, columns: list[str]) -> pa.Table:
        """The newest version's rows, some columns."""
        self._table.update_incremental()
        return self._table.to_pyarrow_table(columns=columns)
