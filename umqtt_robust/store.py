"""The messages to the broker: the outbox, and MemoryStore, which keeps them in RAM.

The outbox is an index in RAM of the messages, in order, from publish() to the last acknowledgement. Topics and payloads
are in a store, which has numbered slots and
    slots, session            the number of slots; the name of the broker whose packet ids are stored, None: of none
    put(slot, packet_id, flags, topic, payload, lifetime)
                              stores a message; lifetime: seconds, 0 for ever
    load(slot)                returns (topic, payload), valid until its tombstone(); (b"", b"") if it is damaged
    change(slot, flags, rank) stores new flags; rank: the place of its PUBREC among all; before that, the mark that
                              quarantine.py gives a message
    tombstone(slot)           forgets the message
    restore()                 returns what is stored, in the order of the put(): each (slot, packet_id, flags, rank,
                              lifetime)
    volatile                  True: a reset empties the store and its session, and leaves nothing half done; optional
    inbound                   where messages at QoS 2 wait for PUBREL: an object with the methods of
                              qos2.MemoryInbound, which replaces None
What a method writes is durable when it returns, and so is `session` when it is set. A method that cannot write raises
StoreError and leaves what was stored before as it was.
"""

from array import array

from ._platform import const, load, ticks_diff
from .base_errors import MQTTError, OutboxFull
from .packets import DUP, QOS_2
from .states import AWAIT_PUBCOMP, STATE

# Flags of a message, beside those of its PUBLISH and the bits of its state (states.py).
MAYBE_SENT = const(0x10)  # some broker may have it; DUP: the broker's present session may have it
USED = const(0x20)  # so that the flags of a slot in use are never 0
IN_FLIGHT = const(0x80)  # sent on this link
# Marks of a message, see quarantine.py: that it was set aside, and that it is for good.
STRUCK = const(4)
SET_ASIDE = const(255)


class Outbox:
    """Index of the messages that the store holds.

    slot_of[packet_id]: the slot of a message; flags[slot]: 0 if the slot is free; sent_at[slot]: ms. report(error) is
    set by the session, and called when the store cannot forget a message.
    """

    report = print
    marks = ()  # (packet id, mark) of the messages that quarantine.py has marked before a reset

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
        """Stores a message. Raises OutboxFull, StoreError or MemoryError; then the message is not in the outbox."""
        slot = self.flags.find(b"\0")  # the lowest: wear of the flash grows with the slots in use
        if slot < 0:
            raise OutboxFull(self.store.slots)
        n = len(self.queue)
        try:
            self.flags[slot] = flags | USED  # first, since there may be no memory for these
            self.slot_of[packet_id] = slot
            self.queue.append(packet_id)
            self.store.put(slot, packet_id, flags, topic, payload, lifetime)
        except BaseException:
            self.flags[slot] = 0
            self.slot_of.pop(packet_id, None)
            del self.queue[n:]
            raise

    def next_unsent(self):
        """Returns the packet id of the next message to send on this link, or 0."""
        while self.next < len(self.queue):
            packet_id = self.queue[self.next]
            if self.flags[self.slot_of[packet_id]] & STATE != AWAIT_PUBCOMP:
                return packet_id
            self.next += 1
        return 0

    def mark_in_flight(self, packet_id, now, more=0):
        """Starts the acknowledgement timer of a message. Returns True if it newly counts as in flight.

        more: further flags that it has from now on.
        """
        slot = self.slot_of[packet_id]
        flags = self.flags[slot]
        self.sent_at[slot] = now
        self.flags[slot] = flags | more | IN_FLIGHT
        return not flags & IN_FLIGHT

    def longest_wait(self, now):
        """Returns for how many ms the oldest message in flight has waited for an acknowledgement."""
        longest = 0
        for slot in range(len(self.flags)):
            if self.flags[slot] & IN_FLIGHT:
                longest = max(longest, ticks_diff(now, self.sent_at[slot]))
        return longest

    def remove(self, packet_id):
        """Forgets a message that was acknowledged, or dropped unsent. Returns True if it was in flight.

        Raises StoreError at QoS 2, where the message must not be sent again.
        """
        slot = self.slot_of[packet_id]
        flags = self.flags[slot]
        try:
            self.store.tombstone(slot)
        except MQTTError as error:
            if flags & QOS_2:
                raise
            self.report(error)  # it is sent again after a reset, unless its slot is used before
        del self.slot_of[packet_id]
        queue = self.queue
        i = queue.index(packet_id)
        queue.pop(i)
        if i < self.next:
            self.next -= 1
        if packet_id in self.released:
            self.released.remove(packet_id)
        self.flags[slot] = 0
        return flags & IN_FLIGHT > 0

    def rewind(self, new_session):
        """Puts all messages back in line for a new link. new_session: none was sent to this broker."""
        self.next = 0
        for slot in range(len(self.flags)):
            self.flags[slot] &= ~(IN_FLIGHT | DUP) if new_session else ~IN_FLIGHT


class MemoryStore:
    """Keeps at most `slots` messages in RAM. They are lost at a reset."""

    session = inbound = None
    volatile = True

    def __init__(self, slots=32):
        self.slots = slots
        # [topic, payload] of each slot that was ever used. The lists are used again: a tuple for each message would
        # become garbage, and every allocation of the interpreter would search longer.
        self._bodies = [None] * slots

    def restore(self):
        return ()

    def put(self, slot, packet_id, flags, topic, payload, lifetime):
        body = self._bodies[slot]
        if body is None:
            body = self._bodies[slot] = [None, None]
        body[0] = topic
        body[1] = payload

    def load(self, slot):
        return self._bodies[slot]

    def change(self, slot, flags, rank):
        pass

    def tombstone(self, slot):
        body = self._bodies[slot]
        body[0] = body[1] = None
