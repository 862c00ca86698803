"""One thread that serves the consoles of all virtual boards of this process. Used through umqtt_testkit.board.

It sleeps until a descriptor is ready or a timer is due, so that boards cost nothing while they are silent.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

_Result = TypeVar("_Result")


class Timer:
    """A scheduled call; `cancel` it in the switchboard's thread."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        self.function = None


class _Order(Generic[_Result]):
    """A function for the switchboard's thread, and its result for the thread that asked."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function = function
        self.future: Future[_Result] = Future()

    def run(self) -> None:
        try:
            self.future.set_result(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.future.set_exception(error)

    def cancel(self) -> None:
        self.future.set_exception(RuntimeError("the thread of the virtual boards has died"))


class Switchboard:
    """An event loop in a daemon thread. `shared()` starts one per process."""

    _shared: ClassVar[Switchboard | None] = None
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: os.read(self._woken, 4096))
        self._orders: list[_Order] = []
        self._lock = threading.Lock()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="virtual boards", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Switchboard:
        with cls._shared_lock:
            if cls._shared is None or not cls._shared._thread.is_alive():
                cls._shared = cls()
            return cls._shared

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run `function` in the switchboard's thread; return its result or raise what it raised."""
        if threading.current_thread() is self._thread:
            return function()
        order = _Order(function)
        with self._lock:
            if not self._thread.is_alive():
                raise RuntimeError("the thread of the virtual boards has died; its error was printed then")
            self._orders.append(order)
        with suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake, b"\0")
        return order.future.result()

    # Called in the switchboard's thread only

    def watch(self, descriptor: int, function: Callable[[], object]) -> None:
        """Call `function` whenever `descriptor` can be read or has ended."""
        self._selector.register(descriptor, selectors.EVENT_READ, function)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def later(self, seconds: float, function: Callable[[], None]) -> Timer:
        timer = Timer(function)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # Reached only through a bug: a caller that waits for an answer must learn of it instead of waiting for
            # ever.
            with self._lock:
                for order in self._orders:
                    order.cancel()

    def _serve(self) -> None:
        while True:
            timeout = None
            if self._timers:
                timeout = max(0.0, self._timers[0][0] - time.monotonic())
            for key, _ in self._selector.select(timeout):
                # An earlier function of this round may have closed this one's descriptor.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            with self._lock:
                orders, self._orders = self._orders, []
            for order in orders:
                order.run()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _, _, timer = heapq.heappop(self._timers)
                if timer.function is not None:
                    timer.function()
