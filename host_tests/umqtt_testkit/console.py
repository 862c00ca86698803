"""The serial port of a virtual board: a pty that tools open, connected to the board's present process."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import time
import tty
from collections.abc import Callable
from pathlib import Path

from .switchboard import Switchboard, Timer

_READ_SIZE = 16384
# How long a board's output waits for a tool that has the port open but does not read.
_PATIENCE_S = 2.0
_RETRY_S = 0.002
_ARRIVED_AFTER_S = 0.1


class Port:
    """The outer pty, which tools see as the board's serial port. `path` is what mpremote and pyserial open.

    A serial port without a reader loses its output and never blocks the board, but a reader that is a little late
    must lose nothing; and a pty does not tell the two apart. So after something was typed, or all output was read,
    the port counts as attended, and output waits up to two seconds for room. Otherwise a full port is emptied for
    newer output.
    """

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self.master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self.master, False)
        self.path = Path(os.ttyname(self._slave))
        self._attended = False
        self._written_at: float | None = None  # no output was written yet that could have been read
        self._waiting = b""
        self._retry: Timer | None = None
        self._waited_s = 0.0

    @property
    def blocked(self) -> bool:
        return bool(self._waiting)

    def read(self) -> bytes:
        """Return what a tool has typed."""
        self._attended = True
        try:
            return os.read(self.master, _READ_SIZE)
        except BlockingIOError:
            return b""

    def write(self, data: bytes, when_free: Callable[[], None]) -> None:
        """Show output. If `blocked` afterwards, the caller must not write again before `when_free()` is called."""
        now = time.monotonic()
        # Recent output may not have arrived in the pty yet: an empty one then does not mean that a tool has read it.
        if self._written_at is not None and now - self._written_at > _ARRIVED_AFTER_S and not self._unread():
            self._attended = True
        self._written_at = now
        self._waiting += data
        if self._retry is None:
            self._waited_s = 0.0
            self._push(when_free)

    def _push(self, when_free: Callable[[], None]) -> None:
        self._retry = None
        try:
            written = os.write(self.master, self._waiting)
        except BlockingIOError:
            written = 0
        if written:
            self._waited_s = 0.0
        self._waiting = self._waiting[written:]
        if self._waiting and (self._waited_s >= _PATIENCE_S or not self._attended):
            self._attended = False
            termios.tcflush(self._slave, termios.TCIFLUSH)
            self._waiting = b""
        if not self._waiting:
            when_free()
            return
        # A pty does not signal that a reader made room: retry soon, but only while a reader lags.
        self._waited_s += _RETRY_S
        self._retry = self._switchboard.later(_RETRY_S, lambda: self._push(when_free))

    def _unread(self) -> int:
        return struct.unpack("i", fcntl.ioctl(self._slave, termios.FIONREAD, b"\0\0\0\0"))[0]

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        os.close(self.master)
        os.close(self._slave)


def open_inner() -> tuple[int, int]:
    """Open the pty of one life; return (master, slave). It is in raw mode, so Ctrl-C is a byte like any other.

    Every life has its own pty, so that nothing typed before a reset reaches the program after it.
    """
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    return master, slave
