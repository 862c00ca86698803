"""Reads from a client more slowly than it sends, without losing anything and without a deadlock.

A client's packets pass through here, instead of going straight into the packet loop, in four cases:

- It is not decided yet whether its CONNECT is accepted: everything waits.
- A queue that it publishes to is full: its messages wait until there is room.
- The disk is too slow, or fails: its messages wait until what was recorded is written.
- max_receive_rate is set: messages above it wait for their turn.

Acknowledgements and PINGREQ never wait: they are processed before the packets in front of them. Otherwise there would
be a deadlock: a message would wait for room that only the acknowledgements behind it can make.

When too many bytes wait, the socket is not read any more, except from a client that has messages to acknowledge: its
own waiting messages are then processed above the limit, and that is counted. The same happens after some seconds of
silence, because some clients acknowledge nothing until their own messages are acknowledged. A wait for the disk is
never cut short in this way: no acknowledgement of a client makes room there.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from ..core.queue_limits import QueueLimits, ReceiveRate
from ..errors import MalformedPacket
from ..protocol.packets import DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from ..store import Store
from .framing import packet_length
from .ports import PacketClient

_OUT_OF_TURN = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ})

_DISCONNECT = bytes((DISCONNECT, 0))
# The same in MQTT 5, where a client may write the reason code 0.
_DISCONNECT_5 = bytes((DISCONNECT, 1, 0))

# Bytes of packets that may wait before the socket is not read any more.
_MOST_WAITING = 1024 * 1024
# The same for a wait for the disk, which may take long and concern all clients at once.
_MOST_WAITING_FOR_DISK = 64 * 1024

# Bytes of a read that are split into packets in one turn.
_MOST_AT_ONCE = 16 * 1024

# Bytes of the shortest PUBLISH, whose topic name has one byte.
_SHORTEST = 5

# Seconds without any acknowledgement from the client after which its waiting messages are processed above the limit.
_STANDSTILL = 5.0


class Backpressure:
    """The waiting packets of one connection. paused: its socket is not read."""

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

    def __init__(self, connection: PacketClient, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._deciding = False
        # What the messages wait for: full queues, None for the total of all queues, and the store.
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
        """Hold everything back from decide(True) on, and release it with decide(False): the CONNECT is decided."""
        self._deciding = is_undecided
        self._set_paused(is_undecided)
        if not is_undecided:
            self._connection.feed_pending()

    def wait_for_room(self, limits: QueueLimits) -> None:
        """Hold messages back until every queue in `limits.hits` has room."""
        self._limits = limits
        full = limits.wait_for_room(self)
        if full and not self._full:
            self._connection.stats.publishers_held += 1
        self._full |= full
        self._watch()

    def wait_for_store(self, store: Store) -> None:
        """Hold messages back until the store has written what is recorded."""
        if store not in self._full:
            self._connection.stats.publishers_held += 1
            self._store = store
            self._full.add(store)
            store.wait_for_room(self)

    def room_again(self, full: object) -> None:
        """Continue: `full` has room or is gone. full: a queue, None for the total of all queues, or the store."""
        # Not at once: the caller, a session for instance, has not finished its own change.
        self._loop.call_soon(self._on_room, full)

    def _on_room(self, full: object) -> None:
        self._full.discard(full)
        if full is self._store:
            self._store = None
        if not self._connection.closing and self._connection.backpressure is self:
            self._go_on()

    def limit_rate(self, rate: int) -> None:
        """Process at most `rate` messages a second; 0: no limit."""
        self._rate = ReceiveRate(rate, self._loop.time()) if rate else None

    # Input

    def feed(self, data: bytes) -> None:
        """Process the whole packets in `data`: acknowledgements and PINGREQ at once, the others in their turn."""
        connection = self._connection
        if self._deciding:
            connection.keep_rest(data, 0)
            return
        # `data` holds no more messages than this; if the rate allows that many, the packets need not be split up.
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
            # The packet loop reports the malformed packet after it has processed the packets before it.
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
        """Process all waiting packets, whatever the limits, in turns. For a client that has gone after its last packet.

        While the messages wait for the disk they are left out instead: they were not acknowledged, and otherwise every
        client that comes and goes would add to what waits for the disk.
        """
        connection = self._connection
        while self._waiting and not connection.closing and self._has_time():
            packet = self._next()
            if self._store is not None and packet[0] & 0xF0 == PUBLISH:
                connection.stats.dropped_disk += not packet[0] & 6
            else:
                connection.process_packets(packet)

    def cancel(self) -> None:
        """Drop all waiting packets, because the connection ends."""
        self._waiting.clear()
        self._forget_full()
        if self._store is not None:
            self._store.wait_no_more(self)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def waiting(self) -> int:
        """The number of packets that wait."""
        return len(self._waiting)

    # Progress

    def _go_on(self) -> None:
        self._connection.begin_turn()
        self._advance()

    def _advance(self) -> None:
        """Process waiting packets as far as the limits allow, one at a time: each may reach a limit."""
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
        """Return True if the next packet may be processed in this turn. If not, another turn is scheduled."""
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
        """Return True if the room that messages wait for may depend on acknowledgements of this client."""
        return bool(self._full) and self._store is None and self._connection.is_waited_for

    def _let_through(self) -> None:
        """Process the waiting packets although there is no room."""
        self._connection.stats.publishers_let_through += 1
        self._forget_full()
        self.take_all()
        self._advance()

    def _forget_full(self) -> None:
        self._full.clear()
        if self._limits is not None:
            self._limits.wait_no_more(self)

    def _watch(self) -> None:
        """Restart the timer that detects a standstill, if messages wait for room."""
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
