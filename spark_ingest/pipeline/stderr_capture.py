"""Redirect standard error while the live panel is drawn, so that other output does not corrupt it."""

import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_END = b"\0no more remarks\0"
_DRAINED_WITHIN_S = 2.0


class Remarks:
    """A redirection of file descriptor 2: lines of this process, of Java and of libraries go to `show` instead.

    It begins when the object is created and ends with :meth:`close`.

    :ivar terminal: a stream to where standard error went before.
    :param show: called in a separate thread with each line, without its line end; also after :meth:`close`, for child
        processes that are still running.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._drained = threading.Event()
        sys.stderr.flush()
        self.terminal: TextIO = os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding, errors="backslashreplace")
        read, self._write = os.pipe()
        os.dup2(self._write, 2)
        threading.Thread(target=self._read, args=(read,), name="remarks", daemon=True).start()

    def close(self) -> None:
        """Restore standard error, and wait up to two seconds until everything written so far has been shown."""
        sys.stderr.flush()
        os.dup2(self.terminal.fileno(), 2)
        os.write(self._write, b"\n" + _END + b"\n")
        os.close(self._write)
        self._drained.wait(_DRAINED_WITHIN_S)

    def _read(self, read: int) -> None:
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                text = line.rstrip(b"\r\n")
                if text == _END:
                    self._drained.set()
                elif text:
                    self._show(text.decode(errors="backslashreplace"))
