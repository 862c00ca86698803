"""Store the content of Sparkplug's births in immutable files per micro-batch: ``births-N.json``, with a checksum.

As with the set of readings seen (:mod:`progress`), micro-batch N reads the content after N-1, never the latest, so a
message that is read again gets the same number again. A micro-batch without Sparkplug messages writes no file.
"""

import re
from collections.abc import Callable
from pathlib import Path

from ...decoders.sparkplug import Births
from ...durable import read_checked, replace_checked
from ...errors import FileDamaged

_NAME = re.compile(r"births-(\d+)\.json")


class BirthFiles:
    """The files in `folder`, which must exist; only one process may write them.

    :param report: called with one line for a person.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self._kept: tuple[int, Births] | None = None

    def before(self, batch_id: int) -> Births:
        """Return the content of births before micro-batch `batch_id`, which begins now; remove files not needed."""
        found = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        numbers = [int(name[1]) for name in found if name]
        newest = max((number for number in numbers if number < batch_id), default=None)
        for number in numbers:
            # The others belong to micro-batches that are never repeated, or to an earlier attempt at this one.
            if number != newest:
                self._path(number).unlink()
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == batch_id - 1:
            return kept[1]
        try:
            return Births() if newest is None else Births(bytes(read_checked(self._path(newest))))
        except FileDamaged as error:
            self._report(f"{error}: Sparkplug nodes are unknown until their next birth; umqtt tables rebuild reads all")
            return Births()

    def save(self, batch_id: int, births: Births) -> None:
        """Write the content of births after micro-batch `batch_id` durably, if it has changed."""
        if births.changed:
            replace_checked(self._path(batch_id), births.to_bytes())
            births.changed = False

    def keep(self, batch_id: int, births: Births) -> None:
        """Keep the content in memory for the next micro-batch; every table has micro-batch `batch_id`."""
        self._kept = batch_id, births

    def _path(self, number: int) -> Path:
        return self._folder / f"births-{number}.json"
