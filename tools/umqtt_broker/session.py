"""One session: subscriptions, the ordered queue with its cursor, the in-flight window, incoming QoS 2.

There is no path for offline clients beside the one for connected ones. Every QoS 1 and 2 message goes to the
end of ONE queue; being connected only means that the window at its front is open. A message that finds the
queue empty and the window open passes straight through, which is the same thing done faster. What is
unacknowledged when a connection ends goes back to the front, in order, with DUP.

With a store on disk only the front of a long queue is in memory; the rest is paged in as the cursor comes
near.
"""

from collections import deque
from typing import TYPE_CHECKING

from .config import BrokerConfig
from .packets import DUP, PUBLISH, PUBREL, UINT16, encode_publish_head
from .stats import Stats
from .store import RecoveredSession, Store
from .store.base import DeliveryRow

if TYPE_CHECKING:
    from .connection import Connection

# A queued message: position, packet_id, qos, head (the PUBLISH up to the topic name; None once its PUBREC
# came and only PUBREL is resent), payload, gate. A tuple, and its pieces shared by all sessions: this is the
# hot path.
Entry = tuple[int, int, int, bytes | None, bytes, int]

# Gates: what must be safe in the store before a message may be sent. A positive gate is the number of a
# batch.
_OPEN = 0
# The store must know that the message may have been sent, so that after a crash it goes again with DUP.
_NEEDS_SENT_LIMIT = -1

# The limit of what may have been sent is moved this many windows ahead at a time, half of it before it is
# reached.
_SENT_LIMIT_WINDOWS = 8

_PAGE = 1000


class Session:
    """The state MQTT keeps for a client identifier. `store` is None if nothing of it outlives the process."""

    __slots__ = (
        "_dirty_sessions",
        "_loaded_to",
        "_loading",
        "_max_in_memory",
        "_maybe_sent_to",
        "_sent_limit",
        "_sent_limit_batch",
        "_sent_limit_safe",
        "_sent_to",
        "_spilled",
        "_spilled_to",
        "_stats",
        "_window",
        "clean",
        "client_id",
        "connection",
        "dirty",
        "in_flight",
        "inbound",
        "last_packet_id",
        "last_position",
        "limit",
        "number",
        "out",
        "queue",
        "store",
        "subscriptions",
    )

    def __init__(
        self,
        client_id: bytes,
        clean: bool,
        store: Store | None,
        config: BrokerConfig,
        stats: Stats,
        dirty: list["Session"],
    ) -> None:
        self.client_id = client_id
        self.clean = clean
        self.store = store
        self.number = 0
        self.connection: Connection | None = None
        self.subscriptions: dict[bytes, int] = {}
        self.inbound: set[int] = set()
        self.queue: deque[Entry] = deque()
        self.in_flight: dict[int, Entry] = {}
        # `limit` is the window while it is open, else 0; `out` collects packets until the flush, None while
        # nothing may be sent: one comparison each instead of asking for all the reasons.
        self.limit = 0
        self.out: list[bytes] | None = None
        self.dirty = False
        self.last_packet_id = 0
        self.last_position = 0
        self._dirty_sessions = dirty
        self._stats = stats
        self._window = config.max_inflight_messages
        self._max_in_memory = config.max_queued_in_memory
        # The part of the queue that is on disk alone: positions behind _loaded_to up to _spilled_to; 0 for
        # none.
        self._spilled = 0
        self._spilled_to = 0
        self._loaded_to = 0
        self._loading = False
        # Positions: sent so far; sent, perhaps, before a crash; may be sent, as recorded and as safe.
        self._sent_to = 0
        self._maybe_sent_to = 0
        self._sent_limit = 0
        self._sent_limit_batch = 0
        self._sent_limit_safe = 0

    def restore(self, recovered: RecoveredSession) -> None:
        """Take over what the store knew. The queue stays on disk until a connection wants it."""
        self.number = recovered.number
        self.subscriptions = dict(recovered.subscriptions)
        self.inbound = recovered.inbound
        self.last_packet_id = recovered.last_packet_id
        self.last_position = recovered.last_position
        self.in_flight = {
            packet_id: (position, packet_id, 2, None, b"", _OPEN) for position, packet_id in recovered.released
        }
        self._spilled = recovered.queued - len(recovered.released)
        self._spilled_to = recovered.last_position if self._spilled else 0
        self._sent_to = self._maybe_sent_to = self._sent_limit = self._sent_limit_safe = recovered.sent_limit

    @property
    def queued(self) -> int:
        """Messages waiting behind the cursor, on disk ones included."""
        return len(self.queue) + self._spilled

    # The connection's comings and goings

    def attach(self, connection: "Connection") -> None:
        """Belong to `connection`. Nothing is sent before go_online(), which follows the CONNACK."""
        self.connection = connection
        if self.store is not None and (self.queue or self._spilled_to):
            self._move_sent_limit(self._sent_to)

    def go_online(self) -> None:
        """Send PUBRELs again, in the order of their PUBRECs [MQTT-4.6.0-4], then open the window."""
        self.out = []
        for packet_id in self.in_flight:
            self.out += (bytes((PUBREL, 2)), UINT16[packet_id])
        self._mark_dirty()
        self.open_window()

    def detach(self) -> None:
        """Belong to no connection. What is in flight goes back to the front, with DUP [MQTT-4.4.0-1]."""
        self.connection = None
        self.limit = 0
        self.out = None
        released: dict[int, Entry] = {}
        unacknowledged: list[Entry] = []
        for packet_id, (position, _, qos, head, payload, _) in self.in_flight.items():
            if head is None:
                released[packet_id] = self.in_flight[packet_id]
            else:
                again = bytes((head[0] | DUP,)) + head[1:]
                unacknowledged.append((position, packet_id, qos, again, payload, _OPEN))
        self.in_flight = released
        self.queue.extendleft(reversed(unacknowledged))
        if self.store is not None and self._sent_limit != self._sent_to:
            self._sent_limit = self._sent_limit_safe = self._sent_to
            self.store.set_sent_limit(self.number, self._sent_to)

    def open_window(self) -> None:
        """Let QoS 1 and 2 messages through, if there is a connection that can take them."""
        connection = self.connection
        if connection is not None and connection.established and not connection.congested:
            if self.out is None:
                self.out = []
            self.limit = self._window
            self.pump()

    def close_window(self) -> None:
        """Keep QoS 1 and 2 messages in the queue until open_window()."""
        self.limit = 0

    def stop_output(self) -> None:
        """The connection cannot take more: QoS 1 and 2 wait, QoS 0 is dropped and counted."""
        self.limit = 0
        out, self.out = self.out, None
        if out and self.connection is not None:
            # These are in flight already; only what comes later can wait.
            self.connection.write(out)

    def on_commit(self) -> None:
        """What the queue waited for is safe."""
        self.open_window()

    # Messages to the client

    def deliver(self, qos: int, head: bytes, topic_name: bytes, payload: bytes, retain: int) -> None:
        """Put a QoS 1 or 2 message at the end of the queue; if nothing is before it, into the window.

        `head` is the PUBLISH up to the topic name, for this QoS and retain flag.
        """
        in_flight = self.in_flight
        packet_id = self.last_packet_id
        while True:
            packet_id = packet_id + 1 if packet_id < 65535 else 1
            if packet_id not in in_flight:
                break
        self.last_packet_id = packet_id
        store = self.store
        if store is not None:
            if not self._deliver_durable(store, packet_id, qos, head, topic_name, payload, retain):
                return
            position = self.last_position
        elif self.queue or len(in_flight) >= self.limit:
            self.queue.append((0, packet_id, qos, head, payload, _OPEN))
            return
        else:
            position = 0
        in_flight[packet_id] = (position, packet_id, qos, head, payload, _OPEN)
        out = self.out
        assert out is not None  # the window is open
        out.append(head)
        out.append(UINT16[packet_id])
        out.append(payload)
        self._stats.messages_out += 1
        if not self.dirty:
            self.dirty = True
            self._dirty_sessions.append(self)

    def _deliver_durable(
        self,
        store: Store,
        packet_id: int,
        qos: int,
        head: bytes,
        topic_name: bytes,
        payload: bytes,
        retain: int,
    ) -> bool:
        """Record a message. Returns True if it may be sent at once; else it is in the queue."""
        position = self.last_position = self.last_position + 1
        queue = self.queue
        if self._spilled_to or len(queue) >= self._max_in_memory:
            if not self._spilled_to:
                self._loaded_to = position - 1
            self._spilled_to = position
            self._spilled += 1
            store.add_delivery(DeliveryRow(self.number, position, packet_id, qos, retain, 0, 0, topic_name, payload))
            return False
        if qos == 1 and not queue and len(self.in_flight) < self.limit:
            store.add_delivery(DeliveryRow(self.number, position, packet_id, 1, retain, 1, 0, topic_name, payload))
            self._sent_to = position
            return True
        # To a connected client it will soon be sent: saying so now spares a second write when it is.
        soon = self.connection is not None and len(queue) < self._window
        gate = _NEEDS_SENT_LIMIT
        if soon:
            # Exactly once: the identifier must be safe before the client can know it.
            gate = store.batch if qos == 2 else _OPEN
        store.add_delivery(DeliveryRow(self.number, position, packet_id, qos, retain, soon, 0, topic_name, payload))
        queue.append((position, packet_id, qos, head, payload, gate))
        if gate > 0:
            store.wake(self)
        return False

    def pump(self) -> None:
        """Move the cursor: send from the front of the queue while the window has room."""
        queue, in_flight, limit = self.queue, self.in_flight, self.limit
        while queue and len(in_flight) < limit:
            position, packet_id, _, head, payload, gate = queue[0]
            if gate and not self._is_safe(position, gate):
                break
            if packet_id in in_flight:
                self._renumber()
                continue
            # The queue holds no PUBRELs, and the window is open.
            assert head is not None and self.out is not None
            in_flight[packet_id] = queue.popleft()
            if head[0] & DUP:
                self._stats.resent += 1
            self.out += (head, UINT16[packet_id], payload)
            self._stats.messages_out += 1
            if position > self._sent_to:
                self._sent_to = position
            if not self.dirty:
                self._mark_dirty()
        if self._spilled_to and not self._loading and limit and len(queue) < _PAGE // 2:
            self._load()

    def _is_safe(self, position: int, gate: int) -> bool:
        """Tell whether the store knows enough for the message at the cursor; if not, on_commit() follows."""
        store = self.store
        assert store is not None
        if gate > 0:
            return gate <= store.committed
        if self._sent_limit_batch <= store.committed:
            self._sent_limit_safe = self._sent_limit
        if position > self._sent_limit - self._window * _SENT_LIMIT_WINDOWS // 2:
            self._move_sent_limit(position)
            store.wake(self)
        return position <= self._sent_limit_safe

    def _move_sent_limit(self, position: int) -> None:
        assert self.store is not None
        self._sent_limit = position + self._window * _SENT_LIMIT_WINDOWS
        self._sent_limit_batch = self.store.batch
        self.store.set_sent_limit(self.number, self._sent_limit)

    def _renumber(self) -> None:
        """Give the message at the cursor a free packet identifier: a message sent before it has taken its own."""
        position, packet_id, qos, head, payload, gate = self.queue[0]
        while packet_id in self.in_flight:
            packet_id = packet_id + 1 if packet_id < 65535 else 1
        if self.store is not None:
            self.store.set_packet_id(self.number, position, packet_id)
            if qos == 2:
                gate = self.store.batch
                self.store.wake(self)
        self.queue[0] = (position, packet_id, qos, head, payload, gate)

    # The part of the queue that is on disk

    def _load(self) -> None:
        assert self.store is not None
        self._loading = True
        asked_to = self._spilled_to
        self.store.load_page(self.number, self._loaded_to, _PAGE, lambda rows: self._on_page(rows, asked_to))

    def _on_page(self, rows: list[DeliveryRow], asked_to: int) -> None:
        """Append a page of the queue. `asked_to` is the end of the queue when the page was asked for."""
        self._loading = False
        for row in rows:
            if row.released:
                continue  # in the window already
            maybe_sent = row.sent or row.position <= self._maybe_sent_to
            first_byte = PUBLISH | row.qos << 1 | row.retain | (DUP if maybe_sent else 0)
            head = encode_publish_head(first_byte, row.topic_name, len(row.payload))
            gate = _OPEN if maybe_sent else _NEEDS_SENT_LIMIT
            self.queue.append((row.position, row.packet_id, row.qos, head, row.payload, gate))
            self._spilled -= 1
        # The page may hold messages recorded between the request and its transaction, so beyond asked_to.
        last = rows[-1].position if rows else 0
        self._loaded_to = last if len(rows) == _PAGE else max(last, asked_to)
        if self._loaded_to >= self._spilled_to:
            self._spilled_to = 0
        self.pump()

    # Output

    def flush(self) -> None:
        """Write what has collected, in one piece."""
        self.dirty = False
        out = self.out
        if out and self.connection is not None:
            # A new list first: write() may find the peer slow and take it away.
            self.out = []
            self.connection.write(out)

    def _mark_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self._dirty_sessions.append(self)

    def drop_qos0(self) -> None:
        """Count a QoS 0 message that cannot be sent now."""
        if self.connection is None:
            self._stats.dropped_qos0_offline += 1
        else:
            self._stats.dropped_qos0_slow += 1
