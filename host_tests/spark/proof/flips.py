"""Flips bits in the files of state of a pipeline that is down; the next ones must say so and come to the same result.

Sparkplug's births are left out: when they are damaged, a node's data cannot be read until its next birth.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

_STATE = "*/.state/*"


class _Flip(NamedTuple):
    """A file with a flipped bit, and the newest micro-batch in the checkpoint then."""

    path: Path
    committed: int


class Flips:
    """The flips in one pipeline's files.

    :param tables: folder of the tables; there is none if they are in an object store.
    """

    def __init__(self, checkpoint: Path, tables: Path, rng: random.Random) -> None:
        self.count = 0
        self._checkpoint = checkpoint
        self._tables = tables
        self._rng = rng
        self._waiting: list[_Flip] = []

    def flip(self) -> None:
        """Flip a bit of a file that the next micro-batch or the next update of gold reads, if there is one."""
        files = self._files()
        if not files:
            return
        path = self._rng.choice(files)
        content = bytearray(path.read_bytes())
        content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
        path.write_bytes(content)
        self.count += 1
        self._waiting.append(_Flip(path, self._committed()))

    def unsaid(self, said: str) -> list[str]:
        """Return descriptions of the flips that no pipeline has reported. said: what all of them have printed."""
        lines = said.splitlines()
        reported = {flip for flip in self._waiting if any(f"{flip.path} is damaged" in line for line in lines)}
        return [
            f"nothing was said of the flipped bit in {flip.path}"
            for flip in self._waiting
            if flip not in reported and self._is_read(flip, reported)
        ]

    def _is_read(self, flip: _Flip, reported: set[_Flip]) -> bool:
        """Return whether a pipeline has read the file. The set of a bucket is given up at its first damaged file.

        Without a further micro-batch, nobody reads the sets.
        """
        if flip.path.suffix != ".arrow":
            return True
        same_set = [
            each for each in reported if each.path.parent == flip.path.parent and each.committed == flip.committed
        ]
        damaged = min((_number(each.path) for each in same_set), default=_number(flip.path))
        return flip.committed < self._committed() and _number(flip.path) <= damaged

    def _files(self) -> list[Path]:
        last = self._committed()
        found = []
        for bucket in (self._checkpoint / "umqtt").glob("bucket-*"):
            numbered = {path: _number(path) for path in bucket.glob("*-*.arrow")}
            wholes = [n for path, n in numbered.items() if path.stem.startswith("progress") and n <= last]
            if wholes:
                whole = max(wholes)
                found.append(bucket / f"progress-{whole}.arrow")
                found += [path for path, n in numbered.items() if path.stem.startswith("changes") and whole < n <= last]
        return sorted(found) + sorted(path for path in self._tables.glob(_STATE) if path.name.isdecimal())

    def _committed(self) -> int:
        commits = (self._checkpoint / "commits").glob("*")
        return max((int(path.name) for path in commits if path.name.isdecimal()), default=-1)


def _number(path: Path) -> int:
    """Return the micro-batch of a file of the set of readings seen: they are read in this order."""
    return int(path.stem.partition("-")[2])
