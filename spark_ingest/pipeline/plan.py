"""The micro-batches in Spark's checkpoint: the newest committed one, and one that is planned but not committed.

Spark writes the offsets of a micro-batch into its checkpoint before it begins, and after a failure repeats exactly
that micro-batch. A micro-batch that does not fit into this machine's memory would fail for ever. As long as no table
has rows of it, its plan can be dropped: Spark then plans another one, within the current limits.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from ..durable import sync_directory
from ..errors import IngestError, UsageError
from ..source.data_source import read_ranges
from ..source.offsets import Offset, bytes_between
from ..source.options import Options
from ..source.rows import ARROW_SCHEMA
from ..spool.access import Spools
from .messages import MESSAGE_COLUMNS


def planned_messages(checkpoint: Path, batch_id: int, options: Options) -> pa.Table:
    """Return the messages of a micro-batch whose plan Spark has written, without a job of Spark.

    A job takes 90 ms however few messages there are: they pass through a task's Python process, Java's rows and a
    socket. The rows and their order are those of the frame that Spark passes to ``foreachBatch``, since both are the
    ranges between the same two offsets.

    :param options: the options of the source, which is the query's only one.
    :returns: MESSAGE_COLUMNS.
    :raises IngestError: the plan is missing or has a format that is not known.
    :raises DataLoss, SpoolDamaged: part of the data is gone or damaged.
    """
    end = _offset(checkpoint / "offsets" / str(batch_id))
    start = _offset(checkpoint / "offsets" / str(batch_id - 1)) if batch_id else {}
    if start is None or end is None:
        raise IngestError(f"cannot read the plan of micro-batch {batch_id} in the checkpoint {checkpoint}")
    batches = read_ranges(options, options.tree().ranges(start, end))
    return pa.Table.from_batches(batches, ARROW_SCHEMA).select(MESSAGE_COLUMNS)


def remove_first_plan_cut_short(checkpoint: Path) -> None:
    """Remove what a kill leaves while Spark writes its first plan; the caller holds the checkpoint's lock.

    Spark writes a plan under a hidden name and then renames it. It refuses to plan micro-batch 0 while anything is in
    the folder of plans.
    """
    offsets = checkpoint / "offsets"
    if _newest(offsets) < 0:
        for hidden in offsets.glob(".*"):
            hidden.unlink()


def drop_oversized_plan(
    checkpoint: Path, spools: Spools, max_bytes: int, is_written: Callable[[str, int], bool]
) -> str | None:
    """Drop the plan of an uncommitted micro-batch of more than `max_bytes`; the caller holds the checkpoint's lock.

    :param is_written: takes the query's id and the micro-batch's number; returns whether any table has rows of it.
    :returns: one line for a person if a plan was dropped, else None.
    """
    offsets = checkpoint / "offsets"
    batch_id = _newest(offsets)
    if batch_id <= _newest(checkpoint / "commits"):
        return None
    end = _offset(offsets / str(batch_id))
    start = _offset(offsets / str(batch_id - 1)) if batch_id else {}
    if start is None or end is None:
        return None
    size = bytes_between(start, end, spools)
    query_id = str(json.loads((checkpoint / "metadata").read_bytes())["id"])
    if size <= max_bytes or is_written(query_id, batch_id):
        return None
    # Remove the checksum last: Spark accepts an offset without a checksum, but not one with a wrong checksum.
    (offsets / str(batch_id)).unlink()
    (offsets / f".{batch_id}.crc").unlink(missing_ok=True)
    sync_directory(offsets)
    return f"micro-batch {batch_id} was planned with {size} bytes of spool, more than --max-bytes: it is planned anew"


def committed_offset(checkpoint: Path) -> Offset:
    """Return the offset up to which Spark has committed micro-batches.

    :raises UsageError: no micro-batch was committed, or its offset cannot be read.
    """
    batch_id = _newest(checkpoint / "commits")
    offset = _offset(checkpoint / "offsets" / str(batch_id))
    if offset is None:
        raise UsageError(f"{checkpoint} holds no micro-batch that was committed: give the --checkpoint of umqtt ingest")
    return offset


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


def _offset(path: Path) -> Offset | None:
    """Return the offset of the only source in one of Spark's offset files; None if the file is missing or unknown."""
    try:
        version, _, offset = path.read_text().splitlines()
        found = json.loads(offset)
        return found if version == "v1" and isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
