"""Witness files: what a device promised to deliver, noted outside its own process memory and flash.

One file a device, `{device_id}.witness`, one line a reading: `BOOT SEQ`. A line is appended by one write
right after publish() returned, so a reading counts as made from that moment on, whatever happens to the
device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SUFFIX = ".witness"


class ReadingId(NamedTuple):
    """The identity that a reading keeps on its whole way."""

    device_id: str
    boot: str
    seq: int


class WitnessError(Exception):
    """A witness file holds what no device wrote; str() names the file and the line."""


def witness_path(folder: Path, device_id: str) -> Path:
    return folder / (device_id + _SUFFIX)


class Witness:
    """The writing side for one device."""

    def __init__(self, folder: Path, device_id: str) -> None:
        path = witness_path(folder, device_id)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, boot: str, seq: int) -> None:
        """Append one reading. Raises OSError: a witness that cannot write must not be overlooked."""
        line = b"%s %d\n" % (boot.encode(), seq)
        if os.write(self._file, line) != len(line):
            raise OSError("a witness line was written in part: the disk is full")

    def close(self) -> None:
        os.close(self._file)


class WitnessCounter:
    """Counts the lines of all witness files in a folder while they grow; reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_to: dict[str, int] = {}
        self.lines = 0

    def update(self) -> int:
        """Returns the number of readings witnessed so far."""
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


def read_witnesses(folder: Path) -> Iterator[ReadingId]:
    """Every reading witnessed in folder. Raises WitnessError; a line cut short by a kill is no reading."""
    for path in sorted(folder.glob("*" + _SUFFIX)):
        device_id = path.name.removesuffix(_SUFFIX)
        lines = path.read_bytes().split(b"\n")
        # What follows the last newline is empty, or a line whose write never finished: publish() had
        # returned, but nobody was told.
        for number, line in enumerate(lines[:-1], 1):
            boot, _, seq = line.decode("ascii", "replace").partition(" ")
            if not boot or not seq.isdigit():
                raise WitnessError(f"{path}:{number}: not `BOOT SEQ`: {line[:80]!r}")
            yield ReadingId(device_id, boot, int(seq))
