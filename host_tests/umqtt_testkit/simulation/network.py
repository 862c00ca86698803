"""Links between a client without a socket and an asyncio protocol: bytes that are delayed, stalled, cut or never come.

A link is two streams, one in each direction. Each keeps the order of its bytes, as TCP does, and nothing else: every
chunk has its own delay, a stalled stream delivers later, a cut one delivers some of the bytes under way and drops the
others, and each end learns of the cut, or does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from .clock import SECOND, Clock, Process

_RESET = 104  # ECONNRESET
_UNREACHABLE = 113  # EHOSTUNREACH


@dataclass
class Network:
    """What all links share. delay, jitter: s of one direction. capacity: bytes under way in one direction.

    split: the chance that a chunk arrives as two. refuses: no new link is made. on_bytes: called with all that is sent.
    mistakes: exceptions of protocols.
    """

    clock: Clock
    random: Random
    delay: float = 0.005
    jitter: float = 0.01
    capacity: int = 65536
    split: float = 0.05
    refuses: bool = False
    on_bytes: Callable[[bytes], object] = lambda data: None

    def __post_init__(self) -> None:
        self.process = Process()
        self.mistakes: list[str] = []


class Stream:
    """One direction of a link. deliver: gets each chunk; None is the end of the stream."""

    def __init__(self, network: Network, deliver: Callable[[bytes | None], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._chunks: deque[bytes | None] = deque()
        self._due = 0  # chunks that have arrived and are not delivered: the stream is stalled or its reader paused
        self._last = 0
        self._stalled_until = 0
        self.size = 0  # bytes under way
        self.on_room: Callable[[], object] | None = None  # called once, when bytes have arrived
        self.is_paused = self.is_dead = False

    def room(self) -> int:
        """Return how many bytes the stream takes now."""
        return self._network.capacity - self.size

    def send(self, data: bytes | None) -> None:
        """Send a chunk, or with None the end."""
        if self.is_dead:
            return
        network = self._network
        if data:
            network.on_bytes(data)
            if len(data) > 1 and network.random.random() < network.split:
                at = network.random.randrange(1, len(data))
                self._send(data[:at])
                data = data[at:]
        self._send(data)

    def _send(self, data: bytes | None) -> None:
        network = self._network
        self.size += len(data or b"")
        self._chunks.append(data)
        delay = network.delay + network.jitter * network.random.random()
        self._last = max(self._last, int(network.clock.now + delay * SECOND))
        network.clock.at(self._last, network.process, self._arrive)

    def _arrive(self) -> None:
        if self._chunks:
            self._due += 1
            self._pass_on()

    def _pass_on(self) -> None:
        while self._due and self._chunks and not self.is_paused and self._network.clock.now >= self._stalled_until:
            self._due -= 1
            data = self._chunks.popleft()
            self.size -= len(data or b"")
            self._deliver(data)
            if self.on_room is not None:
                on_room, self.on_room = self.on_room, None
                on_room()

    def resume(self) -> None:
        """Deliver what has arrived."""
        self.is_paused = False
        self._pass_on()

    def stall(self, until: int) -> None:
        """Deliver nothing before that time."""
        self._stalled_until = max(until, self._stalled_until)
        self._network.clock.at(until, self._network.process, self._pass_on)

    def cut(self, size: int) -> None:
        """Deliver the next `size` bytes of those under way, and nothing after them."""
        chunks, self._chunks = self._chunks, deque()
        self.is_dead = True
        self.size = self._due = 0
        while size > 0 and chunks:
            data = chunks.popleft()
            if data is None:
                return
            self._deliver(data[:size])
            size -= len(data)


class Link:
    """A link from the moment at which a client asks for it: the client's transport (see umqtt_robust/transport.py).

    new_protocol: makes the other end's asyncio protocol when the link is made. wake: called when the client has
    something to do.
    """

    def __init__(
        self, network: Network, new_protocol: Callable[[], asyncio.Protocol | None], wake: Callable[[], None], name: str
    ) -> None:
        if network.refuses:
            raise OSError(_UNREACHABLE)
        self.network = network
        self._new_protocol = new_protocol
        self._wake = wake
        self.name = name
        self.socket = self
        self.inbox = bytearray()
        self.error = 0
        self.is_ended = False  # the other end has closed
        self.is_closed = False  # this end has
        self.up = Stream(network, self._to_broker)
        self.down = Stream(network, self._to_client)
        self.other: Transport | None = None
        self.is_connected = False
        network.clock.at(network.clock.now + network.delay * SECOND, network.process, self._connect)

    def _connect(self) -> None:
        protocol = None if self.network.refuses or self.is_closed else self._new_protocol()
        if protocol is None:
            self.error = self.error or _UNREACHABLE
        else:
            self.is_connected = True
            self.other = Transport(self, protocol)
            protocol.connection_made(self.other)
        self._wake()

    # The client's end

    def ready(self) -> bool:
        """Return whether the link is made. Raises OSError."""
        if self.error:
            raise OSError(self.error)
        return self.is_connected

    def read(self, buf: bytearray, offset: int) -> int | None:
        """See umqtt_robust/transport.py."""
        inbox = self.inbox
        if not inbox:
            if self.error:
                raise OSError(self.error)
            return 0 if self.is_ended else None
        n = min(len(inbox), len(buf) - offset)
        buf[offset : offset + n] = inbox[:n]
        del inbox[:n]
        if self.down.is_paused:
            self.down.resume()
        return n

    def write(self, buf: bytearray, offset: int, size: int) -> int | None:
        """See umqtt_robust/transport.py."""
        if self.error:
            raise OSError(self.error)
        n = min(size, self.up.room())
        if n <= 0 and not self.up.is_dead:
            self.up.on_room = self._wake
            return None
        self.up.send(bytes(memoryview(buf)[offset : offset + n]))
        return n

    def close(self) -> None:
        """Close this end."""
        if not self.is_closed:
            self.is_closed = True
            self.up.send(None)

    def wait(self, ms: int, writing: bool) -> None:
        """Return at once: time is virtual."""

    def _to_client(self, data: bytes | None) -> None:
        if self.is_closed:
            return
        if data is None:
            self.is_ended = True
        else:
            self.inbox += data
            self.down.is_paused = len(self.inbox) > self.network.capacity
        self._wake()

    # The other end

    def _to_broker(self, data: bytes | None) -> None:
        if self.other is not None:
            self.other.arrive(data)

    def fail_client(self) -> None:
        """Tell the client that the link is broken."""
        self.error = _RESET
        self.inbox.clear()
        self._wake()

    def fail_broker(self) -> None:
        """Tell the other end that the link is broken."""
        if self.other is not None:
            self.other.lose(ConnectionResetError(_RESET, "reset"))

    def cut(self, up: int, down: int, *, client_knows: bool = True, broker_knows: bool = True) -> None:
        """Cut the link after so many of the bytes under way in each direction."""
        self.up.cut(up)
        self.down.cut(down)
        if client_knows:
            self.fail_client()
        if broker_knows:
            self.fail_broker()


class Transport(asyncio.Transport):
    """The other end's transport."""

    def __init__(self, link: Link, protocol: asyncio.Protocol) -> None:
        self._link = link
        self._protocol = protocol
        self._out = bytearray()  # what the stream does not take yet
        self._high = 65536
        self._is_congested = self._is_closing = False
        self.is_lost = False  # the protocol is told nothing more

    def arrive(self, data: bytes | None) -> None:
        """Take what has come from the client; None: the client has closed."""
        if self.is_lost:
            return
        if data is None:
            self.lose(None)
        elif not self._is_closing:
            try:
                self._protocol.data_received(data)
            except Exception as error:  # noqa: BLE001 - a mistake of the program, which ends one connection
                self._link.network.mistakes.append(f"{type(error).__name__}: {error} for {data[:60]!r}")
                self.lose(error)

    def lose(self, error: Exception | None) -> None:
        """End the connection, once."""
        if not self.is_lost:
            self.is_lost = self._is_closing = True
            self._protocol.connection_lost(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        if self.is_lost:
            return
        self._out += data
        self._flush()
        if self._out and len(self._out) > self._high and not self._is_congested:
            self._is_congested = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        stream = self._link.down
        n = min(len(self._out), stream.room())
        if n > 0:
            stream.send(bytes(self._out[:n]))
            del self._out[:n]
        if self._out and not stream.is_dead:
            stream.on_room = self._try_again

    def _try_again(self) -> None:
        if self.is_lost or not self._out:
            return
        self._flush()
        if self._is_congested and len(self._out) <= self._high // 4:
            self._is_congested = False
            self._protocol.resume_writing()
        if self._is_closing and not self._out:
            self._finish()

    def close(self) -> None:
        """See asyncio."""
        if not self._is_closing:
            self._is_closing = True
            if not self._out:
                self._finish()

    def _finish(self) -> None:
        self._link.down.send(None)
        self._soon(None)

    def _soon(self, error: Exception | None) -> None:
        network = self._link.network
        network.clock.at(network.clock.now, network.process, self.lose, error)

    def abort(self) -> None:
        """See asyncio."""
        self._is_closing = True
        self._out.clear()
        self._link.down.send(None)
        self._soon(None)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closing

    def pause_reading(self) -> None:
        """See asyncio."""
        self._link.up.is_paused = True

    def resume_reading(self) -> None:
        """See asyncio: what has arrived is delivered in the next turn."""
        stream = self._link.up
        if stream.is_paused:
            network = self._link.network
            network.clock.at(network.clock.now, network.process, stream.resume)

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return len(self._out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        del low
        self._high = 65536 if high is None else high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the client's address as peername, and nothing else."""
        return (self._link.name, 1) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self._protocol = cast(asyncio.Protocol, protocol)
