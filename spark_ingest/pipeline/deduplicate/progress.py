"""Store the set of readings seen in immutable files per micro-batch.

Micro-batch N reads the set after N-1, never the latest, and writes the set after N before silver is
committed. So a replay of N starts from the same set and finds the same readings new, whether or not the first
attempt wrote its set. (With the latest set, every reading of a replayed micro-batch would count as seen, and all of
them would be lost.)

The set after N consists of the newest whole set, ``progress-M.arrow``, and the changes of each micro-batch since,
``changes-(M+1).arrow`` to ``changes-N.arrow``. So a micro-batch writes only the boots that it has readings of.
"""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...durable import read_checked, replace_checked
from .dedup import Limits, Seen

_NAME = re.compile(r"(progress|changes)-(-?\d+)\.arrow")
_WHOLE_EVERY = 100
_ARCHIVED = b"umqtt.archived"


class Progress:
    """The files in `folder`, which is created if it does not exist; only one process may write them.

    :param limits: the limits to which the set is reduced when it is written whole.
    :param whole_every: micro-batches from one whole set to the next, at most.
    """

    def __init__(self, folder: Path, limits: Limits | None = None, *, whole_every: int = _WHOLE_EVERY) -> None:
        self._folder = folder
        self._limits = limits or Limits()
        self._whole_every = whole_every
        self._last_saved: int | None = None
        self._since_whole = 0
        self._changed_rows = 0
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, batch_id: int) -> Seen | None:
        """Return the set after micro-batch `batch_id`, or None if files of it are missing.

        :raises FileDamaged: a file fails its checksum.
        """
        whole = self._newest_whole(batch_id)
        if whole is None:
            return None
        seen = Seen()
        try:
            table = _read(self._path("progress", whole))
            hashes = (table.schema.metadata or {}).get(_ARCHIVED, b"")
            seen.apply(table, np.frombuffer(hashes, dtype=np.uint64))
        except FileNotFoundError:
            return None
        self._changed_rows, self._since_whole, self._last_saved = 0, 0, whole
        return seen if self.catch_up(seen, batch_id) else None

    def catch_up(self, seen: Seen, batch_id: int) -> bool:
        """Apply the changes since the set was loaded or saved; return False, with `seen` useless, if some are missing.

        Spark gives a bucket now to one and now to another of its Python workers, whose sets are a few micro-batches
        behind.

        :param seen: the set that :meth:`load` returned or :meth:`save` wrote last.
        :param batch_id: the micro-batch after which the set is wanted.
        :raises FileDamaged: a file fails its checksum.
        """
        if self._last_saved is None or self._last_saved > batch_id:
            return False
        for number in range(self._last_saved + 1, batch_id + 1):
            try:
                changes = _read(self._path("changes", number))
            except FileNotFoundError:
                return False
            self._changed_rows += changes.num_rows
            self._since_whole += 1
            seen.apply(changes)
        self._last_saved = batch_id
        return True

    def save(self, batch_id: int, seen: Seen) -> None:
        """Write the set after micro-batch `batch_id` durably.

        :param seen: the set that :meth:`load` returned or this method saved last, or a new one.
        """
        changes = seen.take_changes()
        self._changed_rows += changes.num_rows
        follows = self._last_saved == batch_id - 1 and self._newest_whole(batch_id - 1) is not None
        if follows and self._since_whole + 1 < self._whole_every and self._changed_rows <= max(4 * len(seen), 1000):
            # Remove the whole set of an attempt whose plan was dropped: it would be taken for this micro-batch's set.
            self._path("progress", batch_id).unlink(missing_ok=True)
            self._write("changes", batch_id, changes)
            self._since_whole += 1
        else:
            seen.shrink(self._limits)
            table = seen.to_table().replace_schema_metadata({_ARCHIVED: seen.archived.tobytes()})
            self._write("progress", batch_id, table)
            self._since_whole = self._changed_rows = 0
        self._last_saved = batch_id

    def remove_before(self, batch_id: int) -> None:
        """Remove the files that the set after `batch_id` and later sets do not need.

        It is called with N-1 when N begins: the checkpoint has committed N-1 by then, so no earlier micro-batch is
        ever replayed.
        """
        whole = self._newest_whole(batch_id)
        for kind, number in self._files():
            if whole is not None and (number < whole or (number == whole and kind == "changes")):
                self._path(kind, number).unlink()

    def _newest_whole(self, batch_id: int) -> int | None:
        return max((n for kind, n in self._files() if kind == "progress" and n <= batch_id), default=None)

    def _files(self) -> list[tuple[str, int]]:
        matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return [(match[1], int(match[2])) for match in matches if match]

    def _write(self, kind: str, batch_id: int, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(table)
        replace_checked(self._path(kind, batch_id), sink.getvalue().to_pybytes())

    def _path(self, kind: str, batch_id: int) -> Path:
        return self._folder / f"{kind}-{batch_id}.arrow"


def _read(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(read_checked(path))).read_all()
