"""The outbox: application messages at QoS 1 and 2, in order, from publish() to the last acknowledgement.

It knows nothing of packets. The bodies lie in the store; here is only an index in RAM, of fixed size, so that a steady
flow of messages allocates nothing. The messages stand in a ring in the order of their publish(); a message that leaves
the middle leaves a hole there.
"""

from array import array

from ._platform import const
from .errors import OutboxFull
from .store import MemoryStore

# What a full outbox does with one more message.
REJECT = 0  # publish() raises OutboxFull
DROP_OLDEST = 1  # the oldest message that cannot have been sent yet makes room
DROP_NEWEST = 2  # the new message is dropped

# Why a message was dropped: the last argument of Outbox.on_dropped.
FULL = 0
EXPIRED = 1

_FREE = const(0)
_AWAIT_PUBREC = const(2)
_AWAIT_PUBCOMP = const(3)
_DUP = const(0x08)
_MAYBE_SENT = const(0x10)
_IN_FLIGHT = const(0x80)
_HOLE = const(0xFFFF)
_NEVER = const(0)


class Outbox:
    """Index of the messages that the store holds.

    state[slot]: 0 free, or as in states.py.
    flags[slot]: retain 0x01, QoS 0x06, DUP 0x08 (this session of the broker may have seen it), 0x10 (any broker may
    have), 0x80 (in flight on this link).
    """

    def __init__(self, store=None, max_bytes=None, policy=REJECT):
        self.store = store = store or MemoryStore()
        n = store.slots
        self.capacity = n
        self.max_bytes = max_bytes
        self.policy = policy
        self.state = bytearray(n)
        self.flags = bytearray(n)
        self.packet_id = array("H", bytes(2 * n))
        self.order = array("I", bytes(4 * n))  # counts up at every put(): the token that publish() returns
        self.sent_at = array("I", bytes(4 * n))  # ms: when it was sent, or moved on, on this link
        self._expires = array("I", bytes(4 * n))  # seconds of uptime
        self._size = array("I", bytes(4 * n))
        self.by_id = {}  # packet id: slot
        self._ring = array("H", bytes(2 * n))
        self._head = self._span = 0  # the ring's first entry, and how many entries follow it, holes included
        self._next = 0  # how many entries after the head were looked at on this link
        self.count = 0
        self.bytes = 0
        self.in_flight = 0
        self.last_order = 0
        self._rank = 0
        self.released = []  # slots that await PUBCOMP, in the order of their PUBRECs [MQTT-4.6.0-4]
        self.on_dropped = None  # called with (slot, reason) before a message that was never sent is dropped

    def put(self, topic, payload, state, flags, packet_id, expires=_NEVER, lifetime=0):
        """Stores a message and returns its slot.

        topic, payload: bytes; expires: seconds of uptime, 0 for never; lifetime: seconds until then.
        Raises OutboxFull, or StoreError when the store cannot hold it: it is not in the outbox then.
        """
        size = len(topic) + len(payload)
        max_bytes = self.max_bytes
        if max_bytes is not None and size > max_bytes:
            raise OutboxFull(max_bytes)
        while self.count == self.capacity or max_bytes is not None and self.bytes + size > max_bytes:
            if self.policy != DROP_OLDEST or not self._drop_oldest():
                raise OutboxFull(self.capacity if self.count == self.capacity else max_bytes)
        # The lowest free slot: wear of the flash grows with the number of slots in use.
        slot = self.state.find(b"\0")
        order = self.last_order = (self.last_order + 1) & 0x3FFFFFFF or 1
        self.store.put(slot, order, packet_id, state, flags, topic, payload, lifetime)  # durable first
        self._enter(slot, order, packet_id, state, flags, size, expires)
        return slot

    def _enter(self, slot, order, packet_id, state, flags, size, expires):
        n = self.capacity
        if self._span == n:
            self._close_holes()
        i = self._head + self._span
        self._ring[i if i < n else i - n] = slot
        self._span += 1
        self.state[slot] = state
        self.flags[slot] = flags
        self.packet_id[slot] = packet_id
        self.order[slot] = order
        self._size[slot] = size
        self._expires[slot] = expires
        self.by_id[packet_id] = slot
        self.count += 1
        self.bytes += size

    def restore(self, window):
        """Reads the index back from the store, at start.

        Packet ids and tokens go on after the stored ones. A message gets DUP when it may have been sent before the
        restart: only the first `window` can have been. Returns the packet id of the last message, 0 without one.
        """
        found = []
        self.store.restore(lambda *record: found.append(record))
        # Orders wrap at 2**30; what is stored lies within a span of the store's few slots, so a jump of more than
        # half the range between neighbours is the wrap.
        found.sort(key=lambda record: record[1])
        for k in range(1, len(found)):
            if found[k][1] - found[k - 1][1] > 0x1FFFFFFF:
                found = found[k:] + found[:k]
                break
        last_id = 0
        ranked = []
        for slot, order, packet_id, state, flags, size, lifetime, rank in found:
            if self.count < window:
                flags |= _DUP | _MAYBE_SENT
            self._enter(slot, order, packet_id, state, flags, size, lifetime)
            if state == _AWAIT_PUBCOMP:
                ranked.append((rank, slot))
            self.last_order = order
            last_id = packet_id
        ranked.sort()
        if ranked:
            self._rank = ranked[-1][0]
        self.released = [slot for _, slot in ranked]
        return last_id

    def unsent(self, uptime):
        """The slot of the next message to send on this link, or -1. Messages that expired unsent are dropped here."""
        n = self.capacity
        while self._next < self._span:
            i = self._head + self._next
            slot = self._ring[i if i < n else i - n]
            if slot != _HOLE and self.state[slot] != _AWAIT_PUBCOMP:
                if self._expires[slot] == _NEVER or uptime < self._expires[slot] or self.flags[slot] & _MAYBE_SENT:
                    return slot
                self._drop(slot, EXPIRED)
                continue
            self._next += 1
        return -1

    def sent(self, slot, now):
        """The message that unsent() gave is on its way: from now on it may have been sent, whatever happens."""
        self._next += 1
        self.in_flight += 1
        self.flags[slot] |= _DUP | _MAYBE_SENT | _IN_FLIGHT
        self.sent_at[slot] = now

    def oldest_in_flight(self):
        """The slot that has waited longest for an acknowledgement on this link, or -1."""
        if not self._span:
            return -1
        slot = self._ring[self._head]  # the head is never a hole
        return slot if self.flags[slot] & _IN_FLIGHT else -1

    def remove(self, slot):
        """Forgets a message: it was acknowledged, or dropped unsent."""
        self.store.tombstone(slot)
        n = self.capacity
        ring = self._ring
        i = self._head
        k = 0
        while ring[i] != slot:
            k += 1
            i = i + 1 if i + 1 < n else 0
        ring[i] = _HOLE
        if k == 0:
            while self._span and ring[i] == _HOLE:
                i = i + 1 if i + 1 < n else 0
                self._span -= 1
                if self._next:
                    self._next -= 1
            self._head = i
        if self.flags[slot] & _IN_FLIGHT:
            self.in_flight -= 1
        if self.state[slot] == _AWAIT_PUBCOMP:
            self.released.remove(slot)
        self.state[slot] = _FREE
        self.flags[slot] = 0
        del self.by_id[self.packet_id[slot]]
        self.count -= 1
        self.bytes -= self._size[slot]

    def slots_in_order(self):
        """The slots of all messages, oldest first, as a list."""
        n = self.capacity
        ring = self._ring
        head = self._head
        slots = [ring[(head + k) % n] for k in range(self._span)]
        return [slot for slot in slots if slot != _HOLE]

    def rewind(self):
        """The link is gone: everything unacknowledged goes again, in the original order."""
        self._next = self.in_flight = 0
        for slot in range(self.capacity):
            self.flags[slot] &= 0x7F

    def forget_sent(self):
        """The broker has lost the session: every message goes again as new."""
        for slot in self.released:
            self.store.change(slot, _AWAIT_PUBREC, 0)
            self.state[slot] = _AWAIT_PUBREC
        self.released = []
        for slot in range(self.capacity):
            self.flags[slot] &= ~_DUP

    def release(self, slot, now):
        """PUBREC has come: durable before PUBREL leaves, which goes out in this order after a restart too."""
        self._rank += 1
        self.store.change(slot, _AWAIT_PUBCOMP, self._rank)
        self.state[slot] = _AWAIT_PUBCOMP
        self.released.append(slot)
        self.sent_at[slot] = now

    def resumed(self, slot, now):
        """PUBREL goes again on a new link."""
        self.flags[slot] |= _IN_FLIGHT
        self.in_flight += 1
        self.sent_at[slot] = now

    def _drop_oldest(self):
        for slot in self.slots_in_order():
            if not self.flags[slot] & _MAYBE_SENT:  # never one that may have been sent
                self._drop(slot, FULL)
                return True
        return False

    def _drop(self, slot, reason):
        if self.on_dropped:
            self.on_dropped(slot, reason)
        self.remove(slot)

    def _close_holes(self):
        n = self.capacity
        ring = self._ring
        head = self._head
        kept = looked_at = 0
        for k in range(self._span):
            slot = ring[(head + k) % n]
            if slot != _HOLE:
                ring[(head + kept) % n] = slot
                kept += 1
                if k < self._next:
                    looked_at += 1
        self._span = kept
        self._next = looked_at
