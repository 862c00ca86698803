"""Listens to a board after its reset, because a firmware that stops at once says so only on the console."""

from __future__ import annotations

from umqtt_kit.device import Board
from umqtt_kit.device.trouble import HEAP_TOO_SMALL, last_line
from umqtt_kit.errors import EXIT_DEVICE, KitError

_TRACEBACK = "Traceback (most recent call last):\n"
_KEPT = 16 * 1024


class Console:
    """What the board prints from its reset on, read over the connection that reset it, so that nothing is missed.

    If the board's own USB goes away in a reset, nothing is heard.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._gone = False
        self._printed = b""

    def check(self) -> None:
        """Raise KitError (exit code 5) once the board has printed a traceback."""
        if self._gone:
            return
        try:
            self._printed = (self._printed + self._board.read_output())[-_KEPT:]
        except KitError:
            self._gone = True
            return
        text = self._printed.decode(errors="replace").replace("\r\n", "\n")
        _, found, traceback = text.rpartition(_TRACEBACK)
        # The lines of a traceback are indented, except the last one, which names the exception.
        lines = traceback.split("\n")[:-1]
        ended = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), None)
        if found and ended is not None:
            error = last_line("\n".join(lines[: ended + 1]))
            remedy = HEAP_TOO_SMALL if "MemoryError" in error else "see: umqtt doctor"
            raise KitError(f"{self._board.name}: the firmware stopped: {error} — {remedy}", EXIT_DEVICE)
