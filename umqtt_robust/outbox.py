"""The outbox: application messages, in order, from publish() to the last acknowledgement.

The bodies lie in a store (store.py); here is only an index in RAM.
"""

from array import array

from ._platform import const, ticks_diff
from .base_errors import MQTTError, OutboxFull
from .parts import load

_QOS = const(0x06)
_QOS_2 = const(0x04)
_DUP = const(0x08)
_MAYBE_SENT = const(0x10)
_USED = const(0x20)
_AWAITS_PUBCOMP = const(0x40)
_IN_FLIGHT = const(0x80)


class Outbox:
    """Index of the messages that the store holds.

    slot_of[packet_id]: the slot of a message; flags[slot]: 0 when the slot is free, else 0x20 and retain 0x01, state
    (which is its QoS, and 0x40 once PUBREC came) 0x46, DUP 0x08 (this session of the broker may have seen it), 0x10
    (any broker may have), in flight on this link 0x80; sent_at[slot]: ms.
    """

    def __init__(self, store, window):
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
            load("restored").restore(self, found, window)

    def put(self, packet_id, flags, topic, payload, lifetime=0):
        """Stores a message. Raises OutboxFull or StoreError; it is not in the outbox then."""
        slot = self.flags.find(b"\0")  # the lowest: wear of the flash grows with the slots in use
        if slot < 0:
            raise OutboxFull(self.store.slots)
        self.store.put(slot, packet_id, flags, topic, payload, lifetime)  # durable first
        self.enter(slot, packet_id, flags)

    def enter(self, slot, packet_id, flags):
        """The store holds this message: it comes last."""
        self.flags[slot] = flags | _USED
        self.slot_of[packet_id] = slot
        self.queue.append(packet_id)

    def unsent(self):
        """The packet id of the next message to send on this link, or 0."""
        while self.next < len(self.queue):
            packet_id = self.queue[self.next]
            if not self.flags[self.slot_of[packet_id]] & _AWAITS_PUBCOMP:
                return packet_id
            self.next += 1
        return 0

    def sent(self, packet_id, now):
        """The message that unsent() gave is on its way: it may arrive, whatever happens. True as in resumed()."""
        self.next += 1
        slot = self.slot_of[packet_id]
        self.flags[slot] |= _MAYBE_SENT | _DUP if self.flags[slot] & _QOS else _MAYBE_SENT  # [MQTT-3.3.1-2]
        return self.resumed(packet_id, now)

    def resumed(self, packet_id, now):
        """A message moved on, on this link, and its acknowledgement is awaited from now on.

        True when it was not in flight before.
        """
        slot = self.slot_of[packet_id]
        self.sent_at[slot] = now
        if self.flags[slot] & _IN_FLIGHT:
            return False
        self.flags[slot] |= _IN_FLIGHT
        return True

    def longest_wait(self, now):
        """ms since that message moved on which has waited longest among those in flight."""
        longest = 0
        for slot in range(len(self.flags)):
            if self.flags[slot] & _IN_FLIGHT:
                longest = max(longest, ticks_diff(now, self.sent_at[slot]))
        return longest

    def remove(self, packet_id):
        """Forgets a message: it was acknowledged, or dropped unsent. True when it was in flight.

        Raises StoreError at QoS 2, where it must not go again.
        """
        slot = self.slot_of[packet_id]
        try:
            self.store.tombstone(slot)
        except MQTTError as error:
            if self.flags[slot] & _QOS_2:
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

    def rewind(self, keep):
        """A new link: what was not acknowledged goes again. keep: flags to keep, 0x77 in a new session, else 0x7F."""
        self.next = 0
        for slot in range(len(self.flags)):
            self.flags[slot] &= keep
