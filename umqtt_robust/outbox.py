"""The outbox: messages to the broker, in order, from publish() to the last acknowledgement.

Topics and payloads lie in a store (store.py); here is only an index in RAM.
"""

from array import array

from ._platform import const, load, ticks_diff
from .base_errors import MQTTError, OutboxFull
from .packets import DUP, QOS, QOS_2
from .states import AWAIT_PUBCOMP, STATE

# Flags of a message, beside those of its PUBLISH and the bits of its state (states.py).
MAYBE_SENT = const(0x10)  # some broker may have it; DUP: this session of the broker may
_USED = const(0x20)  # so that the flags of a slot in use are never 0
_IN_FLIGHT = const(0x80)  # sent on this link


class Outbox:
    """Index of the messages that the store holds.

    slot_of[packet_id]: the slot of a message; flags[slot]: 0 when the slot is free; sent_at[slot]: ms.
    """

    def __init__(self, store, window):
        """window: how many messages may have been in flight before a restart. Raises StoreError."""
        self.store = store
        self.flags = bytearray(store.slots)
        self.sent_at = array("I", bytes(4 * store.slots))
        self.slot_of = {}
        self.queue = []  # packet ids in the order of publish()
        self.released = []  # packet ids that await PUBCOMP, in the order of their PUBRECs
        self.lifetimes = None  # seconds by packet id, of messages that were restored
        self.next = self.rank = 0  # how many of `queue` were looked at on this link; of the last PUBREC
        found = store.restore()
        self.broker = store.session  # its name, also where the store could not write it
        if found:
            load("resume").restore(self, found, window)

    def put(self, packet_id, flags, topic, payload, lifetime=0):
        """Stores a message. Raises OutboxFull, StoreError or MemoryError; it is not in the outbox then."""
        slot = self.flags.find(b"\0")  # the lowest: wear of the flash grows with the slots in use
        if slot < 0:
            raise OutboxFull(self.store.slots)
        n = len(self.queue)
        try:
            self.enter(slot, packet_id, flags)  # first, since it may find no memory
            self.store.put(slot, packet_id, flags, topic, payload, lifetime)
        except BaseException:
            self.flags[slot] = 0
            self.slot_of.pop(packet_id, None)
            del self.queue[n:]
            raise

    def enter(self, slot, packet_id, flags):
        """Appends a message that the store holds."""
        self.flags[slot] = flags | _USED
        self.slot_of[packet_id] = slot
        self.queue.append(packet_id)

    def next_unsent(self):
        """The packet id of the next message to send on this link, or 0."""
        while self.next < len(self.queue):
            packet_id = self.queue[self.next]
            if self.flags[self.slot_of[packet_id]] & STATE != AWAIT_PUBCOMP:
                return packet_id
            self.next += 1
        return 0

    def mark_sent(self, packet_id, now):
        """The message of next_unsent() was sent, and may arrive. Returns True if it newly counts as in flight."""
        self.next += 1
        slot = self.slot_of[packet_id]
        self.flags[slot] |= MAYBE_SENT | DUP if self.flags[slot] & QOS else MAYBE_SENT  # [MQTT-3.3.1-2]
        return self.mark_in_flight(packet_id, now)

    def mark_in_flight(self, packet_id, now):
        """Starts the acknowledgement timer of a message. Returns True if it newly counts as in flight."""
        slot = self.slot_of[packet_id]
        self.sent_at[slot] = now
        if self.flags[slot] & _IN_FLIGHT:
            return False
        self.flags[slot] |= _IN_FLIGHT
        return True

    def longest_wait(self, now):
        """ms for which the oldest of the messages in flight has waited for an acknowledgement."""
        longest = 0
        for slot in range(len(self.flags)):
            if self.flags[slot] & _IN_FLIGHT:
                longest = max(longest, ticks_diff(now, self.sent_at[slot]))
        return longest

    def remove(self, packet_id):
        """Forgets a message: it was acknowledged, or dropped unsent. Returns True if it was in flight.

        Raises StoreError at QoS 2, where it must not go again.
        """
        slot = self.slot_of[packet_id]
        try:
            self.store.tombstone(slot)
        except MQTTError as error:
            if self.flags[slot] & QOS_2:
                raise
            self.report(error)  # it goes again after a reset, unless its slot is used before
        del self.slot_of[packet_id]
        i = self.queue.index(packet_id)
        self.queue.pop(i)
        if i < self.next:
            self.next -= 1
        if packet_id in self.released:
            self.released.remove(packet_id)
        in_flight = self.flags[slot] & _IN_FLIGHT > 0
        self.flags[slot] = 0
        return in_flight

    def report(self, error):
        """A store that cannot forget a message; the session replaces this."""
        raise error

    def rewind(self, new_session):
        """Puts all messages back in line for a new link; in a new session none was sent to this broker."""
        self.next = 0
        for slot in range(len(self.flags)):
            self.flags[slot] &= ~(_IN_FLIGHT | DUP) if new_session else ~_IN_FLIGHT
