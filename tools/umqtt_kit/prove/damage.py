"""Flips bits in files of a board and of the pipeline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from umqtt_testkit.board import VirtualBoard

# Files of a board's outbox: FOLDER/mqtt/N/PLACE, of which a tombstone has one byte.
_OUTBOX = "/mqtt/"


class Flipped(NamedTuple):
    """A bit that was flipped. bit: its number in the byte."""

    path: Path
    at: int
    bit: int

    @property
    def where(self) -> str:
        return f"{self.path.name}, byte {self.at}, bit {self.bit}"

    def put_back(self) -> str:
        """Flip it back; return where it was."""
        _flip(self)
        return self.where


def flip_bit(files: Sequence[Path], rng: random.Random, last: int | None = None) -> Flipped | None:
    """Flip a bit of one of these files, in place; return which, or None if all are empty. last: in its last bytes."""
    found = [path for path in files if path.stat().st_size]
    if not found:
        return None
    path = rng.choice(found)
    size = path.stat().st_size
    flipped = Flipped(path, size - 1 - rng.randrange(min(size, last or size)), rng.randrange(8))
    _flip(flipped)
    return flipped


def flip_in_outbox(board: VirtualBoard, rng: random.Random) -> str | None:
    """Flip a bit of a message that waits in the flash of a board that is off; return which, or None if none waits."""
    files = [path for path, size in sorted(board.files().items()) if _OUTBOX in path and size > 1]
    if not files:
        return None
    path = rng.choice(files)
    content = bytearray(board.read(path))
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    board.install({path: bytes(content)})
    return f"{path}, byte {at}"


def _flip(flipped: Flipped) -> None:
    with flipped.path.open("r+b") as file:
        file.seek(flipped.at)
        byte = file.read(1)[0]
        file.seek(flipped.at)
        file.write(bytes([byte ^ 1 << flipped.bit]))
