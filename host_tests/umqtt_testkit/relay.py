"""Relayed connections of the fault proxy on an asyncio loop. Used through umqtt_testkit.proxy.

Everything here runs in the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

Direction = Literal["up", "down"]  # up: from the device to the broker

_QUEUE_LIMIT = 256 * 1024
_ABORT_WITH_RST = struct.pack("ii", 1, 0)


@dataclass
class Faults:
    """The faults of the network now; shared by all connections of a proxy."""

    one_way_delay_s: float = 0.0
    blackhole: bool = False
    stalled: set[Direction] = field(default_factory=set)
    dribble_s: float | None = None
    split: bool = False
    random: Random = field(default_factory=Random)


@dataclass
class Counters:
    """What a proxy has counted since it started."""

    accepted: int = 0
    cut: int = 0
    upstream_failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Pipe:
    """One direction of a connection: takes what one end sends and hands it to the other when the faults allow."""

    def __init__(self, relay: Relay, direction: Direction) -> None:
        self.direction: Direction = direction
        self.passed = 0
        self.stalled = False
        self.cut_after: int | None = None
        self.cut_with_reset = True
        self.target_full = False
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None
        self._relay = relay
        self._faults = relay.faults
        self._loop = relay.loop
        # (earliest time to send, bytes); empty bytes are the end of the stream.
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued = 0
        self._last_due = 0.0
        self._timer: asyncio.Handle | None = None
        self._reading = True

    @property
    def held(self) -> bool:
        return self.stalled or self._faults.blackhole or self.direction in self._faults.stalled

    def feed(self, data: bytes) -> None:
        """Take bytes from the source (b"" is its end)."""
        faults = self._faults
        hindered = faults.one_way_delay_s or faults.split or faults.dribble_s or self.held
        if hindered or self._queue or self.target is None:
            self._enqueue(data)
            if self._timer is None:
                self.pump()
            else:
                self.regulate()
        else:
            self._write(data)

    def _enqueue(self, data: bytes) -> None:
        due = max(self._last_due, self._loop.time() + self._faults.one_way_delay_s)
        for piece in self._pieces(data):
            self._queue.append((due, piece))
        self._last_due = due
        self._queued += len(data)

    def _pieces(self, data: bytes) -> list[bytes]:
        if self._faults.dribble_s:
            return [data[i : i + 1] for i in range(len(data))] or [data]
        if not self._faults.split or len(data) < 2:
            return [data]
        cuts = sorted(self._faults.random.sample(range(1, len(data)), min(3, len(data) - 1)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def pump(self) -> None:
        """Pass on what is due. Called whenever a fault changes, bytes come, or time has passed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and not self.held and self.target is not None:
            due, data = self._queue[0]
            wait = due - self._loop.time()
            if wait > 0:
                self._timer = self._loop.call_later(wait, self.pump)
                break
            self._queue.popleft()
            self._queued -= len(data)
            self._write(data)
            if self._faults.split and self._queue:
                # Send the next piece in its own turn of the loop, so that the kernel sends it as its own segment.
                self._timer = self._loop.call_soon(self.pump)
                break
            if self._faults.dribble_s and self._queue:
                # Counted from now, not from a schedule, so that a late turn does not send several bytes at once.
                self._timer = self._loop.call_later(self._faults.dribble_s, self.pump)
                break
        self.regulate()

    def regulate(self) -> None:
        """Read from the source only while there is room: the source then feels TCP's back-pressure."""
        reading = not (self.held or self.target_full or self.target is None or self._queued > _QUEUE_LIMIT)
        if self.source is None or reading == self._reading or self.source.is_closing():
            return
        self._reading = reading
        if reading:
            self.source.resume_reading()
        else:
            self.source.pause_reading()

    def _write(self, data: bytes) -> None:
        target = self.target
        if target is None or target.is_closing():
            return
        if not data:
            with contextlib.suppress(OSError):  # the other end may have been cut meanwhile
                target.write_eof()
            self._relay.ended(self)
            return
        if self.cut_after is not None and len(data) >= self.cut_after:
            data, last = data[: self.cut_after], True
        else:
            last = False
        if data:
            target.write(data)
        self.passed += len(data)
        self._relay.count(self.direction, len(data))
        if last:
            self._relay.cut(reset=self.cut_with_reset)
        elif self.cut_after is not None:
            self.cut_after -= len(data)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()


class _End(asyncio.Protocol):
    """One socket of a relayed connection: what it receives goes into `out`; `into` writes to it."""

    def __init__(self, relay: Relay, out: Pipe, into: Pipe) -> None:
        self._relay, self._out, self._into = relay, out, into

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._relay.transports.append(transport)
        self._out.source = self._into.target = transport
        if self._relay.closed:  # cut while the upstream connection was being made
            self._relay.close_transport(transport)
            return
        self._into.pump()
        self._out.regulate()

    def data_received(self, data: bytes) -> None:
        self._out.feed(data)

    def eof_received(self) -> bool:
        self._out.feed(b"")
        return True  # keep the other direction open

    def pause_writing(self) -> None:
        self._into.target_full = True
        self._into.regulate()

    def resume_writing(self) -> None:
        self._into.target_full = False
        self._into.regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._relay.close(reset=True)


class Relay:
    """A device's connection and its upstream counterpart."""

    def __init__(
        self,
        faults: Faults,
        counters: Counters,
        upstream: tuple[str, int],
        on_close: Callable[[Relay], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.faults = faults
        self.closed = False
        self._with_reset = False
        self.transports: list[asyncio.Transport] = []
        self.up = Pipe(self, "up")
        self.down = Pipe(self, "down")
        self._counters = counters
        self._upstream = upstream
        self._on_close = on_close
        self._connecting: asyncio.Task[None] | None = None
        self._ended: set[Direction] = set()

    def downstream_protocol(self) -> asyncio.Protocol:
        """Return the protocol of the device's socket."""
        return _End(self, self.up, self.down)

    def connect(self) -> None:
        """Connect upstream; under a blackhole, which swallows the SYN, only when it is lifted."""
        if self._connecting is None and not self.closed and not self.faults.blackhole:
            self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self.loop.create_connection(lambda: _End(self, self.down, self.up), *self._upstream)
        except OSError:
            self._counters.upstream_failed += 1
            self.close(reset=True)

    def refresh(self) -> None:
        """Pass on what may flow now, after a fault was switched."""
        self.connect()
        self.up.pump()
        self.down.pump()

    def count(self, direction: Direction, length: int) -> None:
        if direction == "up":
            self._counters.bytes_up += length
        else:
            self._counters.bytes_down += length

    def ended(self, pipe: Pipe) -> None:
        self._ended.add(pipe.direction)
        if len(self._ended) == 2:
            self.close(reset=False)

    def cut(self, *, reset: bool) -> None:
        """Sever the connection now: RST or FIN to both ends."""
        if not self.closed:
            self._counters.cut += 1
            self.close(reset=reset)

    def close(self, *, reset: bool) -> None:
        self.closed = True
        self._with_reset = reset
        self._on_close(self)
        self.up.close()
        self.down.close()
        for transport in self.transports:
            self.close_transport(transport)

    def close_transport(self, transport: asyncio.Transport) -> None:
        """End one side in the way the relay was closed."""
        sock: socket.socket | None = transport.get_extra_info("socket")
        if self._with_reset and sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_WITH_RST)
            transport.abort()
        else:
            transport.close()
