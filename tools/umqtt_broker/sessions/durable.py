"""A queue that outlives the process, and a session with such a queue: changes are recorded before they have effects.

Only the front of a long queue is in memory; the rest is only on disk, and loaded page by page as the cursor comes near.
"""

from itertools import islice

from ..core.context import BrokerContext
from ..protocol.packets import DUP, PUBLISH, UINT16, encode_publish_head
from ..protocol.packets5 import HAS_PROPERTIES, encode_content, payload_of
from ..store import RecoveredSession
from ..store.base import DeliveryRow
from .entry import OPEN, Entry
from .ports import ClientConnection, Group
from .queue import MessageQueue
from .session import Session

# A gate (see entry): before the message is sent, the sent limit in the store must include it, so that after a crash it
# is resent with DUP.
_NEEDS_SENT_LIMIT = -1

# The sent limit (the highest position that may have been sent) is moved this many windows ahead at a time, when half of
# them are left.
_SENT_LIMIT_WINDOWS = 8

# Most messages of a page.
_PAGE = 1000

# About how many payload bytes of a queue, and of a page, may be in memory; the rest is only on disk.
_MOST_IN_MEMORY = 4 * 1024 * 1024


class DurableQueue(MessageQueue):
    """A MessageQueue whose messages, and their progress, are recorded in `store` under `number`.

    Recorded are all messages above QoS 0, and the QoS 0 messages that wait in the queue.
    """

    def __init__(self, key: bytes, client_id: bytes, mount: bytes, context: BrokerContext) -> None:
        super().__init__(key, client_id, mount, context)
        self.store = self._store = context.store
        # The part of the queue that is only on disk: how many messages, and their positions, behind _loaded_to up to
        # _spilled_to; _spilled_to is 0 if there are none.
        self._spilled = 0
        self._spilled_to = 0
        self._loaded_to = 0
        self._loading = False
        # Messages in the queue that wait only for a commit, since the window has room for them; their payload bytes.
        self._passing = 0
        self._passing_bytes = 0
        # The sent limit of the last run; the sent limit as recorded, the number of its batch, and as committed.
        self._maybe_sent_to = 0
        self._sent_limit = 0
        self._sent_limit_batch = 0
        self._sent_limit_safe = 0

    def restore(self, recovered: RecoveredSession) -> None:
        """Restore the state from the store. The queue stays on disk until a connection needs it."""
        self.number = recovered.number
        self.protocol_level = recovered.protocol_level
        self._last_position = recovered.last_position
        self._spilled = recovered.queued - len(recovered.released)
        self._spilled_to = recovered.last_position if self._spilled else 0
        self.queued_bytes = recovered.queued_bytes
        self._sent_to = self._maybe_sent_to = self._sent_limit = self._sent_limit_safe = recovered.sent_limit
        if self._context.limits is not None:
            self._context.limits.added(self, self._spilled, self.queued_bytes)

    @property
    def queued(self) -> int:
        """The number of messages that wait behind the cursor, including those that are only on disk."""
        return len(self.queue) + self._spilled

    @property
    def waiting(self) -> tuple[int, int]:
        """What the limits count: the messages that wait for the client, not for the disk, and their payload bytes."""
        return self.queued - self._passing, self.queued_bytes - self._passing_bytes

    def _enqueue(self, packet_id: int, qos: int, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        limits = self._context.limits
        if limits is not None and len(self.queue) < self._room():
            self._pass(len(payload))
            limits = None
        if limits is not None and not limits.admit(self):
            return
        config = self._context.config
        position = self._last_position = self._last_position + 1
        expires_at = self._expiry.deadline
        waiting = len(self.queue)
        # As long as no message is only on disk, queued_bytes are the bytes in memory.
        is_large = self.queued_bytes >= _MOST_IN_MEMORY and waiting >= self._room()
        if self._spilled_to or waiting >= config.max_queued_in_memory or is_large:
            if not self._spilled_to:
                self._loaded_to = position - 1
            self._spilled_to = position
            self._spilled += 1
            sent = False
        else:
            sent = bool(qos) and self._is_soon_sent(waiting)
            gate = OPEN
            if qos and not sent:
                gate = _NEEDS_SENT_LIMIT
            elif qos == 2:
                gate = self._store.batch
            self._append((position, packet_id, qos, head, payload, gate, expires_at))
        self._store.add_delivery(
            (self.number, position, packet_id, qos, flags, sent, 0, topic_name, payload, expires_at)
        )
        self.queued_bytes += len(payload)
        if limits is not None:
            limits.published(self, len(payload))
        if sent and qos == 2:
            self._store.wake(self)

    def _room(self) -> int:
        """Return how many messages of the queue have room in the client's window, so wait only for a commit."""
        return 0

    def _is_soon_sent(self, waiting: int) -> bool:
        """Return True if a message with `waiting` messages before it is sent soon.

        It is then recorded as sent at once, which saves a second write.
        """
        del waiting
        return False

    def _pass(self, size: int) -> None:
        self._passing += 1
        self._passing_bytes += size

    def _count_out(self, messages: int, size: int) -> None:
        self.queued_bytes -= size
        limits = self._context.limits
        if limits is None:
            return
        passed, passed_bytes = self._passing, self._passing_bytes
        self._passing = room = min(len(self.queue), self._room())
        # Usually all of them or none.
        self._passing_bytes = (
            self.queued_bytes if room == self.queued else sum(len(entry[4]) for entry in islice(self.queue, room))
        )
        limits.removed(self, messages - passed + self._passing, size - passed_bytes + self._passing_bytes)

    def pump(self) -> None:
        """Move the cursor, and fetch the next page of the queue when the cursor comes near its end."""
        super().pump()
        if self._spilled_to and not self._loading and self.window and len(self.queue) < self._page_size() // 2 + 1:
            self._load()

    def drop_expired(self) -> None:
        """Drop expired messages at the front of the queue, whether the window is open or not."""
        super().drop_expired()
        if self._spilled_to and not self._loading and not self.queue:
            self._load()

    def _drop(self, position: int) -> None:
        super()._drop(position)
        self._store.remove_delivery(self.number, position)

    def _is_safe(self, position: int, gate: int) -> bool:
        store = self._store
        if gate > 0:
            return gate <= store.committed
        if self._sent_limit_batch <= store.committed:
            self._sent_limit_safe = self._sent_limit
        if position > self._sent_limit - self._windows_ahead() // 2:
            self._move_sent_limit(position)
            store.wake(self)
        return position <= self._sent_limit_safe

    def _move_sent_limit(self, position: int) -> None:
        self._sent_limit = position + self._windows_ahead()
        self._sent_limit_batch = self._store.batch
        self._store.set_sent_limit(self.number, self._sent_limit)

    def _windows_ahead(self) -> int:
        return self._context.config.max_inflight_messages * _SENT_LIMIT_WINDOWS

    # The part of the queue that is on disk

    def _count_lost(self) -> None:
        """Count messages that a damaged store has lost; the store has logged the damage."""
        lost, self._spilled = self._spilled, 0
        self.dropped += lost
        self._stats.dropped_damaged += lost
        self._count_out(lost, self.queued_bytes - sum(len(entry[4]) for entry in self.queue))

    def _load(self) -> None:
        self._loading = True
        asked_to, size = self._spilled_to, self._page_size()
        self._store.load_page(self.number, self._loaded_to, size, lambda rows: self._on_page(rows, size, asked_to))

    def _page_size(self) -> int:
        """Return how many messages to load as one page: fewer if they are large."""
        return max(1, min(_PAGE, _MOST_IN_MEMORY * self.queued // (self.queued_bytes or 1)))

    def _on_page(self, rows: list[DeliveryRow], size: int, asked_to: int) -> None:
        """Append a page of the queue. size: how many messages were requested. asked_to: the queue's end then."""
        self._loading = False
        for row in rows:
            if row.released:
                continue  # in `in_flight` already
            maybe_sent = bool(row.qos) and (row.sent or row.position <= self._maybe_sent_to)
            payload = self._in_form(row)
            first_byte = PUBLISH | row.qos << 1 | row.flags & 1 | (DUP if maybe_sent else 0)
            head = encode_publish_head(first_byte, row.topic_name[len(self.mount) :], len(payload))
            gate = OPEN if maybe_sent or not row.qos else _NEEDS_SENT_LIMIT
            self._append((row.position, row.packet_id, row.qos, head, payload, gate, row.expires_at))
            self._spilled -= 1
        # The page may hold messages beyond asked_to, recorded between the request and its transaction.
        last = rows[-1].position if rows else 0
        self._loaded_to = last if len(rows) == size else max(last, asked_to)
        if self._loaded_to >= self._spilled_to:
            self._spilled_to = 0
            if self._spilled:
                self._count_lost()
        self.pump()

    def _in_form(self, row: DeliveryRow) -> bytes:
        """Return the payload of a stored message in the form for the client's protocol version."""
        has_properties = bool(row.flags & HAS_PROPERTIES)
        if has_properties == (self.protocol_level == 5):
            return row.payload
        payload = payload_of(row.payload) if has_properties else encode_content(row.payload)
        self._resize(len(payload) - len(row.payload))
        return payload


class DurableSession(DurableQueue, Session):
    """A session whose queue outlives the process."""

    def restore(self, recovered: RecoveredSession) -> None:
        """Restore the state from the store. The queue stays on disk until a connection needs it."""
        super().restore(recovered)
        self.username = recovered.username
        self.session_expiry = recovered.session_expiry
        self.away_since = recovered.away_since
        self.inbound = recovered.inbound or self.inbound
        self.last_packet_id = recovered.last_packet_id
        self.in_flight = {
            packet_id: (position, packet_id, 2, None, b"", OPEN, 0) for position, packet_id in recovered.released
        }

    def attach(self, connection: ClientConnection) -> None:
        """Attach `connection`. Nothing is sent before go_online(), which follows the CONNACK."""
        super().attach(connection)
        if self.queue or self._spilled_to:
            self._move_sent_limit(self._sent_to)

    def detach(self) -> None:
        """Detach the connection. Messages in flight go back to the front, with DUP [MQTT-4.4.0-1]."""
        super().detach()
        if self._passing and self._context.limits is not None:
            self._context.limits.added(self, self._passing, self._passing_bytes)
        self._passing = self._passing_bytes = 0
        if self._sent_limit != self._sent_to:
            self._sent_limit = self._sent_limit_safe = self._sent_to
            self._store.set_sent_limit(self.number, self._sent_to)

    def deliver(self, qos: int, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        """Record a QoS 1 or 2 message at the end of the queue. A QoS 1 message may be sent at once."""
        in_flight = self.in_flight
        packet_id = self.last_packet_id
        while True:
            packet_id = packet_id + 1 if packet_id < 65535 else 1
            if packet_id not in in_flight:
                break
        self.last_packet_id = packet_id
        # Exactly once: the packet identifier of a QoS 2 message must be committed before the client sees it.
        if qos == 2 or self.queue or self._spilled_to or len(in_flight) >= self.window:
            self._enqueue(packet_id, qos, head, topic_name, payload, flags)
            return
        expires_at = self._expiry.deadline
        position = self._sent_to = self._last_position = self._last_position + 1
        self._store.add_delivery((self.number, position, packet_id, 1, flags, 1, 0, topic_name, payload, expires_at))
        in_flight[packet_id] = (position, packet_id, 1, head, payload, OPEN, expires_at)
        output = self.output
        assert output is not None  # the window is open
        output += (head, UINT16[packet_id], payload)
        self._sent += 1
        if not self.dirty:
            self.dirty = True
            self._context.dirty.append(self)

    def _room(self) -> int:
        """See DurableQueue."""
        connection = self.connection
        if connection is None or connection.congested or self._spilled_to:
            return 0
        return max(0, self.most_in_flight - len(self.in_flight))

    def _is_soon_sent(self, waiting: int) -> bool:
        """See DurableQueue. True if the client is connected and fewer messages than its window wait."""
        return self.connection is not None and waiting < self._context.config.max_inflight_messages

    def messages_ahead(self, qos: int) -> int:
        """Return how many messages a group's message at `qos` would have before it; -1: the session can take none."""
        waiting = len(self.queue)
        ahead = len(self.in_flight) + waiting
        # At QoS 2 each message waits for a commit before it is sent, so several may wait together. A message at QoS 1
        # is sent at once and would overtake them.
        if ahead >= self.window or self._spilled_to or (waiting and qos != 2):
            return -1
        return ahead

    def transfer(self, group: Group, entry: Entry, head: bytes) -> None:
        """Accept a group's message at QoS 2: it is moved to this session's queue in one transaction, and then sent."""
        payload, expires_at = entry[4], entry[6]
        packet_id = self._next_packet_id()
        position = self._last_position = self._last_position + 1
        self._append((position, packet_id, 2, head, payload, self._store.batch, expires_at))
        self._store.move_delivery(group.number, entry[0], self.number, position, packet_id, 2)
        self.queued_bytes += len(payload)
        if self._context.limits is not None:
            self._pass(len(payload))
        self._store.wake(self)

    def make_own(self, group: Group, packet_id: int) -> None:
        """Make a message in flight this session's own, because its group is gone."""
        at, _, _, head, payload, _, expires_at = self.in_flight[packet_id]
        super().make_own(group, packet_id)
        position = self._sent_to = self._last_position = self._last_position + 1
        self._store.move_delivery(group.number, at, self.number, position, packet_id, 1)
        self.in_flight[packet_id] = (position, packet_id, 1, head, payload, OPEN, expires_at)

    def _on_qos0_sent(self, position: int) -> None:
        self._store.remove_delivery(self.number, position)

    def _record_packet_id(self, position: int, packet_id: int, qos: int, gate: int) -> int:
        self._store.set_packet_id(self.number, position, packet_id)
        if qos == 2:
            gate = self._store.batch
            self._store.wake(self)
        return gate
