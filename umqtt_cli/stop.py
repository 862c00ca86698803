"""Turns Ctrl-C, SIGTERM and SIGHUP into a flag that is read between two steps, so that no message is cut in half."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """A flag: False until a signal comes within the context, then True. A second signal has its usual effect.

    timeout_s: also True after that time, counted from the beginning of the context; timed_out says that this was the
    cause.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._wanted = self.timed_out = False
        self._timeout_s = timeout_s
        self._deadline: float | None = None
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        if not self._wanted and self._deadline is not None and time.monotonic() >= self._deadline:
            self._wanted = self.timed_out = True
        return self._wanted

    def __enter__(self) -> Self:
        if self._timeout_s is not None:
            self._deadline = time.monotonic() + self._timeout_s
        self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def now(self) -> None:
        """Set the flag, as a signal would."""
        self._wanted = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # pyrefly: ignore[bad-argument-type] - as signal.signal() returned it
