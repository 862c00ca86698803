"""The ground truth: the readings that each device promised to deliver, noted outside its memory and flash.

There is one file per device, `{device_id}.readings`, with one line per reading: `BOOT SEQ`. Each line is appended by
one write right after publish() has returned. From that moment on the reading counts as made, whatever happens to the
device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SUFFIX = ".readings"


class ReadingId(NamedTuple):
    """The identity of a reading, which it keeps from the device to the table."""

    device_id: str
    boot: str
    seq: int


class GroundTruthError(Exception):
    """A file of the ground truth holds a line that no device wrote; str() names the file and the line."""


def ground_truth_path(folder: Path, device_id: str) -> Path:
    return folder / (device_id + _SUFFIX)


class GroundTruth:
    """The writer of one device's file."""

    def __init__(self, folder: Path, device_id: str) -> None:
        path = ground_truth_path(folder, device_id)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, boot: str, seq: int) -> None:
        """Append one reading. Raises OSError if it cannot be written: a reading left out here would hide a loss."""
        line = b"%s %d\n" % (boot.encode(), seq)
        if os.write(self._file, line) != len(line):
            raise OSError("a line of the ground truth was written in part: the disk is full")

    def close(self) -> None:
        os.close(self._file)


class GroundTruthCounter:
    """A count of the lines in all files of a folder while they grow; it reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_to: dict[str, int] = {}
        self.lines = 0

    def update(self) -> int:
        """Read what is new and return the number of readings made so far."""
        for entry in os.scandir(self._folder):
            if not entry.name.endswith(_SUFFIX):
                continue
            start = self._read_to.get(entry.name, 0)
            if entry.stat().st_size == start:
                continue
            with open(entry.path, "rb") as file:
                file.seek(start)
                grown = file.read()
            self.lines += grown.count(b"\n")
            self._read_to[entry.name] = start + len(grown)
        return self.lines


def read_ground_truth(folder: Path) -> Iterator[ReadingId]:
    """Yield every reading in the files of `folder`. Raises GroundTruthError.

    A line cut short by a kill is not a reading.
    """
    for path in sorted(folder.glob("*" + _SUFFIX)):
        device_id = path.name.removesuffix(_SUFFIX)
        lines = path.read_bytes().split(b"\n")
        # After the last newline there is nothing, or a line whose write never finished: publish() had returned, but
        # nobody was told.
        for number, line in enumerate(lines[:-1], 1):
            boot, _, seq = line.decode("ascii", "replace").partition(" ")
            if not boot or not seq.isdigit():
                raise GroundTruthError(f"{path}:{number}: not `BOOT SEQ`: {line[:80]!r}")
            yield ReadingId(device_id, boot, int(seq))
