"""What all tasks of a micro-batch are given, the tables that they open, and the report of each to the driver."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from ...decoders.rules import NO_RULES, Rules
from ...durable import read_checked
from ...errors import FileDamaged, StoreAway, UsageError
from ...location import StorePath, located, may_pass, open_table
from ...tables.delta import Delta
from ...tables.schemas import PARTITIONED_BY, SCHEMAS
from ..deduplicate.dedup import Limits
from ..process import write_failure
from .data_files import FileWriter

STATE_FILE = "buckets.json"

Report = Callable[[str, dict[str, Any]], None]
"""Takes a task's name and what it did. If a task is repeated, one of its equal reports counts."""


@dataclass(frozen=True)
class Job:
    """The parameters of a micro-batch's tasks.

    :ivar tables: folder or URL of the tables, which every node sees.
    :ivar state: folder of the buckets' sets, which every node sees.
    :ivar query_id: the query's id in the checkpoint.
    :ivar batch_id: number of the micro-batch.
    :ivar buckets: number of buckets.
    :ivar limits: how much of each bucket's set may stay in memory.
    :ivar silver_committed: whether silver has this micro-batch from an earlier attempt.
    :ivar table_ids: table to its identity.
    :ivar state_id: identity of the state folder, in its STATE_FILE.
    :ivar rules: whether ids in records are trusted, and which decoder reads which topic.
    :ivar in_one_task: whether one task does all, and nothing is shuffled.
    """

    tables: str
    state: str
    query_id: str
    batch_id: int
    buckets: int
    limits: Limits
    silver_committed: bool
    table_ids: Mapping[str, str]
    state_id: str
    rules: Rules = NO_RULES
    in_one_task: bool = False

    def require_shared(self, name: str) -> None:
        """Check that this node sees the driver's table `name` and state, and not local folders with the same paths.

        Files in a folder that only this node sees would be committed, but missing for everybody else.

        :raises UsageError: the node does not see them.
        """
        try:
            same_state = json.loads(bytes(read_checked(Path(self.state) / STATE_FILE)))["id"] == self.state_id
            same_table = str(open_table(located(self.tables) / name).metadata().id) == self.table_ids[name]
        except (OSError, FileDamaged, DeltaError, UsageError) as error:
            if may_pass(error):
                raise
            same_state = same_table = False
        if not (same_state and same_table):
            raise UsageError(
                f"the node {socket.gethostname()} does not see {self.tables} or {self.state} as the driver does: "
                "--tables and --checkpoint must be paths on a disk that all nodes share"
            )


@contextmanager
def writing(job: Job) -> Iterator[None]:
    """Raise TablesWriteFailed for errors of the disk or of Delta, and StoreAway for those that may go away."""
    try:
        yield
    except (OSError, DeltaError) as error:
        tables = located(job.tables)
        failure = write_failure(error, tables)
        if isinstance(tables, StorePath) and may_pass(error):
            raise StoreAway(*failure.args) from error
        raise failure from error


# Kept by a Python worker between tasks. The keys contain the query's id, so another query never finds them.
_tables: dict[tuple[str, str, str], Delta] = {}


def forget_tables() -> None:
    """Forget the tables that this process has opened, as if it were a new worker."""
    _tables.clear()


def table_of(job: Job, name: str) -> Delta:
    """Return a table of the pipeline.

    :raises UsageError: this node does not see it as the driver does.
    """
    key = (job.tables, job.query_id, name)
    if key not in _tables:
        job.require_shared(name)
        try:
            _tables[key] = Delta(located(job.tables) / name, SCHEMAS[name], PARTITIONED_BY.get(name))
        except UsageError as error:
            if error.__cause__ is not None and may_pass(error.__cause__):
                raise error.__cause__ from error
            raise
    return _tables[key]


def writer_of(job: Job, name: str, attempt: int) -> FileWriter:
    """Return a writer of data files of a table.

    :param attempt: Spark's number of the task, for the names of the files.
    """
    return FileWriter(table_of(job, name).path, PARTITIONED_BY.get(name), f"part-{attempt:05d}-")
