"""The ordered queue of messages that a session or a shared subscription has. It is limited, and its messages counted.

The cursor is the front of the queue: the messages before it are sent, those behind it wait. The router delivers
messages to queues. There are two kinds: a `Session` sends to one client within its window, a `SharedQueue` to its
members. A queue that must outlive the process is also a DurableQueue.
"""

from collections import deque
from typing import cast

from ..access.permission import Rights
from ..compiled import mypyc_attr
from ..core.context import BrokerContext
from ..protocol.packets import DUP
from ..store import Store
from .entry import OPEN, Entry, converted


# Its durable kinds have two bases, which mypyc cannot compile.
@mypyc_attr(allow_interpreted_subclasses=True)
class MessageQueue:
    """An ordered queue of messages that wait.

    key: unique; client_id with the mount point before it, see registry.Sessions. client_id: of a group, its name,
    `$share/GROUP/FILTER`. mount: the mount point of its listener, which its subscriptions include and its client does
    not see. store: None if nothing of the queue outlives the process. number: the queue's number in the store.
    rights: what it may read; None: everything. queued_bytes: payload bytes that wait behind the cursor.
    dropped: messages dropped here. has_ended: the session is gone; its last subscriptions are being removed.
    protocol_level: with 5, waiting messages have properties, see entry.converted(). window: how many messages may be in
    flight; 0: nothing may be sent. qos0_output: the list to which QoS 0 messages are appended directly; None:
    deliver_qos0() must decide. dirty: it is in the context's list of those to flush.
    """

    __slots__ = (
        "_context",
        "_expiry",
        "_last_position",
        "_sent_to",
        "_stats",
        "client_id",
        "dirty",
        "dropped",
        "has_ended",
        "key",
        "mount",
        "number",
        "protocol_level",
        "qos0_output",
        "queue",
        "queued_bytes",
        "rights",
        "store",
        "window",
    )

    def __init__(self, key: bytes, client_id: bytes, mount: bytes, context: BrokerContext) -> None:
        self.key = key
        self.client_id = client_id
        self.mount = mount
        self.store: Store | None = None
        self.number = 0
        self.rights: Rights | None = None
        self.has_ended = False
        self.protocol_level = 4
        # A deque is made only when needed: an empty one takes 700 bytes, and most clients of a fleet only publish.
        self.queue = cast("deque[Entry]", ())
        self.queued_bytes = 0
        self.dropped = 0
        # There are many reasons for which nothing may be sent. Each sets this to 0, so that one comparison is enough.
        self.window = 0
        self.qos0_output: list[bytes] | None = None
        self.dirty = False
        # Positions: of the last message, and of the last message that was sent.
        self._last_position = 0
        self._sent_to = 0
        self._context = context
        self._stats = context.stats
        self._expiry = context.expiry

    @property
    def queued(self) -> int:
        """The number of messages that wait behind the cursor."""
        return len(self.queue)

    @property
    def waiting(self) -> tuple[int, int]:
        """What the limits count: the messages that wait for the client, and their payload bytes."""
        return self.queued, self.queued_bytes

    def set_protocol_level(self, protocol_level: int) -> None:
        """Convert the waiting messages to the form for a client of another protocol version."""
        is_version5 = protocol_level == 5
        has_changed = is_version5 != (self.protocol_level == 5)
        self.protocol_level = protocol_level
        if has_changed and self.queue:
            before = sum(len(entry[4]) for entry in self.queue)
            self.queue = deque(converted(entry, is_version5) for entry in self.queue)
            self._resize(sum(len(entry[4]) for entry in self.queue) - before)

    def _resize(self, size: int) -> None:
        """Count that the waiting messages take `size` more bytes."""
        self.queued_bytes += size
        if self._context.limits is not None:
            self._context.limits.added(self, 0, size)

    # Methods that Session and SharedQueue implement

    def deliver(self, qos: int, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        """Deliver a QoS 1 or 2 message: send it, or let it wait.

        head: the PUBLISH up to the topic name, with this QoS, the retain flag, and the topic name that the client sees.
        topic_name: with the mount point. payload: in the form for this queue, see entry.Entry. flags: see DeliveryRow.
        """
        raise NotImplementedError

    def deliver_qos0(self, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        """Deliver a QoS 0 message if `qos0_output` is None. The parameters are those of deliver()."""
        raise NotImplementedError

    def is_too_large(self, qos: int, head: bytes, payload: bytes) -> bool:
        """Tell whether a message is larger than the client accepts; a SharedQueue leaves that to its members."""
        raise NotImplementedError

    def mark_dirty(self) -> None:
        """Have flush() called at the end of the current turn of the event loop."""
        if not self.dirty:
            self.dirty = True
            self._context.dirty.append(self)

    def flush(self) -> None:
        """Write the collected packets, in one piece."""
        self.dirty = False
        self._write()

    def on_commit(self) -> None:
        """Continue: the changes that the queue waited for are safe."""
        raise NotImplementedError

    def _advance(self) -> bool:
        """Send from the front of the queue until a buffer is full. Returns True if there may be more to send."""
        raise NotImplementedError

    def _write(self) -> None:
        """Write the collected packets."""
        raise NotImplementedError

    # What waits

    def _enqueue(self, packet_id: int, qos: int, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        """Put a message at the end of the queue, unless a limit is reached and it is dropped."""
        del topic_name, flags
        limits = self._context.limits
        if limits is not None and not limits.admit(self):
            return
        position = self._last_position = self._last_position + 1
        self._append((position, packet_id, qos, head, payload, OPEN, self._expiry.deadline))
        self.queued_bytes += len(payload)
        if limits is not None:
            limits.published(self, len(payload))

    def _append(self, entry: Entry) -> None:
        if not self.queue and not isinstance(self.queue, deque):
            self.queue = deque()
        self.queue.append(entry)

    def pump(self) -> None:
        """Move the cursor: send from the front of the queue while there is room."""
        while self._advance():
            self._write()

    def drop_expired(self) -> None:
        """Drop expired messages at the front of the queue, whether the window is open or not."""
        queue = self.queue
        dropped = size = 0
        while queue and self._is_expired(queue[0]):
            entry = queue.popleft()
            self._drop_expired(entry[0])
            dropped += 1
            size += len(entry[4])
        if dropped:
            self._count_out(dropped, size)

    def _is_expired(self, entry: Entry) -> bool:
        """Tell whether a message is too old to be sent.

        Never one that the client may have seen: its packet identifier is in use until it is acknowledged.
        """
        head, expires_at = entry[3], entry[6]
        return bool(expires_at and head and not head[0] & DUP and expires_at <= self._expiry.now())

    def _drop_too_large(self, position: int) -> None:
        """Drop a message that is larger than the client accepts [MQTT-3.1.2-25 of MQTT 5]."""
        self._stats.dropped_too_large += 1
        self._drop(position)

    def _drop_expired(self, position: int) -> None:
        self._stats.dropped_expired += 1
        self._drop(position)

    def _drop(self, position: int) -> None:
        """Drop a message that waits."""
        del position
        self.dropped += 1

    def _count_out(self, messages: int, size: int) -> None:
        self.queued_bytes -= size
        if self._context.limits is not None:
            self._context.limits.removed(self, messages, size)

    # Overridden by DurableQueue

    def _is_safe(self, position: int, gate: int) -> bool:
        """Return True if the message at the cursor may be sent; if a commit must come first, on_commit() follows."""
        del position, gate
        return True
