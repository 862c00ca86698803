"""Ctrl-C and SIGTERM as a question that is asked between two steps, so that no message is cut in half by them."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """False until one of the signals has come within the context, then True; a second one does what it always did."""

    def __init__(self) -> None:
        self._wanted = False
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self._wanted

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def now(self) -> None:
        """As if a signal had come."""
        self._wanted = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - as signal.signal() returned it
