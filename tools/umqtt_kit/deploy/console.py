"""Listens to a board after its reset, because a firmware that stops at once says so only on the console."""

from __future__ import annotations

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_kit.device.trouble import HEAP_TOO_SMALL, last_line

_TRACEBACK = "Traceback (most recent call last):\n"
_KEPT = 16 * 1024


class FirmwareStopped(KitError):
    """The firmware ended with a traceback."""


class Console:
    """What a board prints after its reset. name: the board's, for the error text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._printed = b""

    def hear(self, data: bytes) -> None:
        """Take what the board has printed. Raises FirmwareStopped (exit code 5) at the end of a traceback."""
        self._printed = (self._printed + data)[-_KEPT:]
        if not data.endswith(b"\n"):
            return
        text = self._printed.decode(errors="replace").replace("\r\n", "\n")
        _, found, traceback = text.rpartition(_TRACEBACK)
        # The lines of a traceback are indented, except the last one, which names the exception.
        lines = traceback.split("\n")[:-1]
        ended = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), None)
        if found and ended is not None:
            error = last_line("\n".join(lines[: ended + 1]))
            remedy = HEAP_TOO_SMALL if "MemoryError" in error else "see: umqtt doctor"
            raise FirmwareStopped(f"{self._name}: the firmware stopped: {error} — {remedy}", EXIT_DEVICE)
