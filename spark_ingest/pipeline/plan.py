"""Which micro-batches a checkpoint of Spark's has: the newest one committed, and one planned and not committed.

Spark writes the offsets of a micro-batch into its checkpoint before it begins, and after a failure repeats exactly that
micro-batch. One that this machine has no memory for would fail for ever. As long as no table has anything of it, its
plan can be dropped: Spark then plans another one, within the limits that hold now.
"""

import json
from collections.abc import Callable
from pathlib import Path

from ..durable import sync_directory
from ..errors import UsageError
from ..source.offsets import Offset, bytes_between
from ..spool.access import Spools


def drop_oversized_plan(
    checkpoint: Path, spools: Spools, max_bytes: int, is_written: Callable[[str, int], bool]
) -> str | None:
    """Drop the plan of an uncommitted micro-batch of more than `max_bytes`; the caller holds the checkpoint's lock.

    :param is_written: told the query's id and the micro-batch's number: whether a table has anything of it.
    :returns: one line for a person, when a plan was dropped.
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
    # Its checksum last: Spark reads an offset without one, but not one with another's.
    (offsets / str(batch_id)).unlink()
    (offsets / f".{batch_id}.crc").unlink(missing_ok=True)
    sync_directory(offsets)
    return f"micro-batch {batch_id} was planned with {size} bytes of spool, more than --max-bytes: it is planned anew"


def committed_offset(checkpoint: Path) -> Offset:
    """Up to where the micro-batches go that Spark has committed.

    :raises UsageError: that cannot be read.
    """
    batch_id = _newest(checkpoint / "commits")
    offset = _offset(checkpoint / "offsets" / str(batch_id))
    if offset is None:
        raise UsageError(f"{checkpoint} holds no micro-batch that was committed: give the --checkpoint of umqtt ingest")
    return offset


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


def _offset(path: Path) -> Offset | None:
    """The one source's offset in a file of Spark's; None when it is not what is known of such a file."""
    try:
        version, _, offset = path.read_text().splitlines()
        found = json.loads(offset)
        return found if version == "v1" and isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
