"""The set of readings seen, as one immutable file per micro-batch.

Micro-batch N reads ``progress-(N-1)``, never the latest, and writes ``progress-N`` before silver is
committed. A replay of N therefore starts from the same set and finds the same readings new, whether or not
it got as far as writing ``progress-N`` the first time. (Reading the latest would find every reading of a
replayed batch already seen, and lose them all.)
"""

import re
from pathlib import Path

import pyarrow as pa

from .dedup import Seen
from .durable import replace_file

_NAME = re.compile(r"progress-(-?\d+)\.arrow")


class Progress:
    """The files in `folder`, which is made when it does not exist; one process writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, batch_id: int) -> Seen | None:
        """The set after micro-batch `batch_id`; None when there is no such file, or it cannot be read."""
        try:
            data = self._path(batch_id).read_bytes()
            return Seen.from_table(pa.ipc.open_file(data).read_all())
        except (FileNotFoundError, pa.ArrowInvalid, KeyError):
            return None

    def save(self, batch_id: int, seen: Seen) -> None:
        """Make the set after micro-batch `batch_id` durable."""
        table = seen.to_table()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        replace_file(self._path(batch_id), sink.getvalue().to_pybytes())

    def remove_before(self, batch_id: int) -> None:
        """Remove the sets of earlier micro-batches.

        Called with N-1 when N begins: the checkpoint holds N-1 then, so nothing before it is ever replayed.
        """
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and int(match[1]) < batch_id:
                path.unlink()

    def _path(self, batch_id: int) -> Path:
        return self._folder / f"progress-{batch_id}.arrow"
