"""Reads from a client more slowly than it sends, without losing anything and without a deadlock.

Its packets go through here instead of straight into the packet loop while

- it is not decided whether its CONNECT is accepted: everything waits;
- a queue it publishes to is full: what it publishes waits until there is room;
- the disk does not keep up, or fails: what it publishes waits until it works;
- it sends more messages than max_receive_rate: they wait until it is their turn.

Acknowledgements and PINGREQ never wait: they are taken out of turn. Were they left unread behind a message that waits
for room, and that room could only come from these very acknowledgements, nothing would ever move again. When too much
waits, the socket is not read; but never that of a client that has messages to acknowledge: what it publishes goes
through then, above the limit, and is counted. The same for a client that acknowledges nothing as long as its own
messages are not acknowledged. The disk is no such limit: no client can make it work.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from ..core.queue_limits import QueueLimits, ReceiveRate
from ..errors import MalformedPacket
from ..protocol.packets import DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from ..store import Store
from .framing import packet_length
from .ports import BackpressureClient

_OUT_OF_TURN = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ})

_DISCONNECT = bytes((DISCONNECT, 0))
# The same in MQTT 5, where a client may write the reason code 0.
_DISCONNECT_5 = bytes((DISCONNECT, 1, 0))

# Bytes that may wait before reading from the socket stops.
_MOST_WAITING = 1024 * 1024
# The same while the disk fails: it may take long, and be the same for all clients.
_MOST_WAITING_FOR_DISK = 64 * 1024

# Bytes of packets that are looked at in one turn.
_MOST_AT_ONCE = 16 * 1024

# Bytes of the shortest PUBLISH: its topic name has at least one.
_SHORTEST = 5

# Seconds of silence after which a client that neither acknowledges nor is acknowledged is let through.
_STANDSTILL = 5.0


class Backpressure:
    """The packets of one connection that wait. paused: its socket is not read."""

    __slots__ = (
        "_connection",
        "_deciding",
        "_full",
        "_limits",
        "_loop",
        "_rate",
        "_store",
        "_timer",
        "_waiting",
        "_waiting_size",
        "paused",
    )

    def __init__(self, connection: BackpressureClient, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._deciding = False
        # Queues, None for all of them together, and the store.
        self._full: set[object] = set()
        self._limits: QueueLimits | None = None
        self._rate: ReceiveRate | None = None
        self._store: Store | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_size = 0
        self.paused = False

    # Reasons to hold back

    def decide(self, is_undecided: bool) -> None:
        """Hold everything back until the CONNECT is decided."""
        self._deciding = is_undecided
        self._set_paused(is_undecided)
        if not is_undecided:
            self._connection.feed_pending()

    def wait_for_room(self, limits: QueueLimits) -> None:
        """Hold messages back until all queues that were hit have room."""
        self._limits = limits
        full = limits.wait_for_room(self)
        if full and not self._full:
            self._connection.stats.publishers_held += 1
        self._full |= full
        self._watch()

    def wait_for_store(self, store: Store) -> None:
        """Hold messages back until the store has written what it was given."""
        if store not in self._full:
            self._connection.stats.publishers_held += 1
            self._store = store
            self._full.add(store)
            store.wait_for_room(self)

    def room_again(self, full: object) -> None:
        """Continue: one of these queues, or the store, has room or is gone. None: all queues together."""
        # Not at once: the session that calls is in the middle of something.
        self._loop.call_soon(self._on_room, full)

    def _on_room(self, full: object) -> None:
        self._full.discard(full)
        if full is self._store:
            self._store = None
        if not self._connection.closing and self._connection.backpressure is self:
            self._go_on()

    def limit_rate(self, rate: int) -> None:
        """Take at most `rate` messages a second; 0: no limit."""
        self._rate = ReceiveRate(rate, self._loop.time()) if rate else None

    # Input

    def feed(self, data: bytes) -> None:
        """Take what was read, as far as its packets are whole: what may not wait at once, the rest in its turn."""
        connection = self._connection
        if self._deciding:
            connection.keep_rest(data, 0)
            return
        # No PUBLISH is shorter: if there is room for so many, none need be looked at by itself.
        rate = self._rate
        if (
            rate is not None
            and not self._waiting
            and not self._full
            and rate.covers(len(data) // _SHORTEST, connection.heard_at)
        ):
            before = connection.messages_in
            connection.process_packets(data)
            rate.spend(connection.messages_in - before)
            return
        at = needed = 0
        is_much = False
        out_of_turn: list[bytes] = []
        end, max_packet_size = len(data), connection.context.config.max_packet_size
        try:
            while length := packet_length(data, at, max_packet_size):
                if at + length > end:
                    needed = length
                    break
                if at > _MOST_AT_ONCE:
                    is_much = True
                    break
                packet = data[at : at + length]
                if packet[0] in _OUT_OF_TURN:
                    out_of_turn.append(packet)
                else:
                    if packet == _DISCONNECT or (connection.protocol_level == 5 and packet == _DISCONNECT_5):
                        # It counts as received [MQTT-3.1.2-10], even if the connection is lost before its turn.
                        connection.forget_will()
                    self._waiting.append(packet)
                    self._waiting_size += length
                at += length
        except MalformedPacket:
            # The packet loop will report it after the packets before it.
            self._waiting.append(data[at:])
            self._waiting_size += end - at
            at = end
        if out_of_turn:
            connection.process_packets(b"".join(out_of_turn))
            self._watch()
        if at < end and not connection.closing:
            if is_much or connection.is_waiting:
                connection.wait_for_turn(data[at:])
            else:
                connection.keep_rest(data[at:], needed or end - at + 1)
        self._advance()

    def take_all(self) -> None:
        """The client has gone after its last packet: take everything it said, whatever the limits; in turns.

        But not while the disk fails: what nobody was promised is left out, or every client that comes and goes would
        add to what waits for the disk.
        """
        connection = self._connection
        while self._waiting and not connection.closing and self._has_time():
            packet = self._next()
            if self._store is not None and packet[0] & 0xF0 == PUBLISH:
                connection.stats.dropped_disk += not packet[0] & 6
            else:
                connection.process_packets(packet)

    def cancel(self) -> None:
        """Drop what waits: the connection is at its end."""
        self._waiting.clear()
        self._forget_full()
        if self._store is not None:
            self._store.wait_no_more(self)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def waiting(self) -> int:
        """Packets that wait for their turn."""
        return len(self._waiting)

    # Progress

    def _go_on(self) -> None:
        self._connection.begin_turn()
        self._advance()

    def _advance(self) -> None:
        """Take what may be taken, one packet at a time: a limit may be hit by each."""
        connection = self._connection
        while self._waiting and not self._full and not connection.closing and self._has_time():
            if self._rate is not None and self._waiting[0][0] & 0xF0 == PUBLISH:
                if not self._rate.available(self._loop.time()):
                    break
                self._rate.spend(1)
            connection.process_packets(self._next())
        if connection.closing:
            self.cancel()
            return
        if not self._waiting and not self._full and self._rate is None:
            self._set_paused(False)
            connection.read_freely()
            return
        if self._waiting_size > _MOST_WAITING and self._may_let_through():
            self._let_through()
            return
        self._set_paused(self._waiting_size > (_MOST_WAITING if self._store is None else _MOST_WAITING_FOR_DISK))
        if self._waiting and not self._full and self._rate is not None and not connection.is_waiting:
            connection.stats.rate_limited += 1
            self._set_timer(self._rate.wait(), self._go_on)

    def _has_time(self) -> bool:
        """Tell whether the next packet may be taken in this turn; if not, another turn follows."""
        connection = self._connection
        if connection.is_waiting:
            return False
        if connection.has_time():
            return True
        connection.wait_for_turn(b"")
        return False

    def _next(self) -> bytes:
        packet = self._waiting.popleft()
        self._waiting_size -= len(packet)
        return packet

    def _may_let_through(self) -> bool:
        """Tell whether the room that a message waits for may have to come from this very client."""
        return bool(self._full) and self._store is None and self._connection.is_waited_for

    def _let_through(self) -> None:
        """Process what waits although there is no room."""
        self._connection.stats.publishers_let_through += 1
        self._forget_full()
        self.take_all()
        self._advance()

    def _forget_full(self) -> None:
        self._full.clear()
        if self._limits is not None:
            self._limits.wait_no_more(self)

    def _watch(self) -> None:
        """Restart the timer that notices a standstill."""
        if self._full:
            self._set_timer(_STANDSTILL, self._on_standstill)

    def _on_standstill(self) -> None:
        if self._waiting and self._may_let_through():
            self._let_through()
        else:
            self._watch()

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, callback)

    def _set_paused(self, paused: bool) -> None:
        if paused != self.paused:
            self.paused = paused
            self._connection.update_reading()
