"""The event loop of a broker that has its own process: it calls the callbacks of ready sockets directly.

For each ready socket, asyncio makes a key and a queue entry and runs the callback in a context, which takes longer than
reading a small packet. An asyncio event loop accepts a selector; the selector here calls the readers and writers of
plain connections itself as soon as they are ready, and returns only the other events to asyncio. In any other event
loop, and without epoll, the loop itself watches the connections: that works in the same way, but is slower.

CPU time of the broker in other event loops, relative to this one, measured in alternation, medians of 9. asyncio's own:
1.07 for one message a read, 1.10 for 100 pairs, 1.03 to 1.17 for a connection, 1.0 for batches. uvloop: 0.97 to 0.99
for one message a read, 1.09 for a connection; and its TLS has its own buffers, which tls.py could not make smaller.
"""

import asyncio
import math
import os
import select
import selectors
import sys
from collections.abc import Callable
from typing import Protocol

_Callback = Callable[[], object]


class Readiness(Protocol):
    """The part of asyncio's event loop interface that plain connections use."""

    def add_reader(self, fd: int, callback: _Callback, /) -> None:
        """Call `callback` whenever `fd` can be read, or has failed."""

    def remove_reader(self, fd: int, /) -> object:
        """Remove the callback. Safe to call again."""

    def add_writer(self, fd: int, callback: _Callback, /) -> None:
        """Call `callback` whenever `fd` can be written, or has failed."""

    def remove_writer(self, fd: int, /) -> object:
        """Remove the callback. Safe to call again."""


class Watcher(Protocol):
    """The additional interface of the broker's own event loop."""

    def is_any_ready_but(self, fd: int, /) -> bool:
        """Tell whether a descriptor other than `fd` is ready now."""
        ...


def readiness(loop: asyncio.AbstractEventLoop) -> Readiness:
    """Return the object with which plain connections are watched in this event loop."""
    return getattr(loop, "streams", loop)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest event loop for a broker on this system."""
    return BrokerLoop() if sys.platform == "linux" else asyncio.new_event_loop()


if sys.platform == "linux":
    # Nearly every event is this one: it is compared with each, so it is not looked up in the module each time.
    _READ = select.EPOLLIN

    class BrokerLoop(asyncio.SelectorEventLoop):
        """asyncio's event loop with a selector that serves plain connections. streams: that selector, a Readiness."""

        def __init__(self) -> None:
            self.streams = _Selector(self)
            super().__init__(self.streams)

    class _Selector(selectors.EpollSelector):
        """The selector: see Readiness.

        A descriptor must be closed only after its reader and its writer are removed, and never within a callback:
        otherwise another connection could get the same number, and be called for the old one's events.
        """

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            super().__init__()
            self._loop = loop
            # The same epoll under another descriptor: it watches plain connections beside asyncio's own descriptors.
            self._streams = select.epoll.fromfd(os.dup(self.fileno()))
            self._readers: dict[int, _Callback] = {}
            self._writers: dict[int, _Callback] = {}

        def add_reader(self, fd: int, callback: _Callback, /) -> None:
            self._add(fd, self._writers, select.EPOLLIN)
            self._readers[fd] = callback

        def remove_reader(self, fd: int, /) -> None:
            if self._readers.pop(fd, None) is not None:
                self._remove(fd, self._writers, select.EPOLLOUT)

        def add_writer(self, fd: int, callback: _Callback, /) -> None:
            self._add(fd, self._readers, select.EPOLLOUT)
            self._writers[fd] = callback

        def remove_writer(self, fd: int, /) -> None:
            if self._writers.pop(fd, None) is not None:
                self._remove(fd, self._readers, select.EPOLLIN)

        def _add(self, fd: int, others: dict[int, _Callback], event: int) -> None:
            if fd in others:
                self._streams.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            else:
                self._streams.register(fd, event)

        def _remove(self, fd: int, others: dict[int, _Callback], event: int) -> None:
            # Unregister a descriptor without callbacks: epoll would still report it once it has failed.
            if fd in others:
                self._streams.modify(fd, event)
            else:
                self._streams.unregister(fd)

        def is_any_ready_but(self, fd: int, /) -> bool:
            """See Watcher."""
            return any(ready != fd for ready, _ in self._streams.poll(0, 2))

        def close(self) -> None:
            """Close the selector."""
            self._streams.close()
            super().close()

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Wait up to `timeout` seconds, call the callbacks of plain connections, and return asyncio's events."""
            if timeout is None:
                timeout = -1
            elif timeout > 0:
                # epoll takes milliseconds: round up, or the loop would spin until a timer is due.
                timeout = math.ceil(timeout * 1000) / 1000
            try:
                ready = self._streams.poll(timeout)
            except InterruptedError:
                return []
            readers, writers = self._readers, self._writers
            others: list[tuple[selectors.SelectorKey, int]] = []
            for fd, event in ready:
                try:
                    if event == _READ and fd in readers:  # nearly always
                        readers[fd]()
                    elif fd in readers:
                        if event != select.EPOLLOUT:
                            readers[fd]()
                        # The reader may have removed the writer.
                        if event != select.EPOLLIN and fd in writers:
                            writers[fd]()
                    elif fd in writers:
                        writers[fd]()
                    elif (key := self.get_map().get(fd)) is not None:
                        events = (selectors.EVENT_READ if event != select.EPOLLOUT else 0) | (
                            selectors.EVENT_WRITE if event != select.EPOLLIN else 0
                        )
                        others.append((key, events & key.events))
                except Exception as error:  # noqa: BLE001 - as asyncio does: one that fails takes no other with it
                    self._loop.call_exception_handler({"message": "a defect of the broker", "exception": error})
            return others
