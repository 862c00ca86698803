"""The messages to the broker: the outbox, and MemoryStore, which keeps them in RAM.

The outbox is an index in RAM of the messages, in order, from publish() to the last acknowledgement. Topics and payloads
are in a store, which has numbered slots and
    slots, session            the number of slots; the name of the broker whose packet ids are stored, None: of none
    put(slot, packet_id, flags, topic, payload, lifetime)
                              stores a message; lifetime: seconds, 0 for ever
    load(slot)                returns (topic, payload), valid until its tombstone(); (b"", b"") if it is damaged
    change(slot, flags, rank) stores new flags; rank, up to 31 bits: the place of its PUBREC among all; before that, the
                              mark that quarantine.py gives a message
    tombstone(slot)           forgets the message
    restore()                 returns what is stored, in the order of the put(): each (slot, packet_id, flags, rank,
                              lifetime)
    index, more, last_id      optional, if restore() may return only the oldest messages: at most `index` slots are in
                              use at a time, and `more` further messages are stored. restore(True) returns the next
                              ones, for the free slots; put(None, ...) stores a message behind all others. last_id: the
                              packet id of the newest one
    volatile                  True: a reset empties the store and its session, and leaves nothing half done; optional
    inbound                   where messages at QoS 2 wait for PUBREL: an object with the methods of
                              qos2.MemoryInbound, which replaces None
What a method writes is durable when it returns, and so is `session` when it is set. A method that cannot write raises
StoreError and leaves what was stored before as it was.
"""

from array import array

from ._platform import const, load, ticks_diff
from .base_errors import MQTTError, OutboxFull
from .packets import AWAIT_PUBCOMP, DUP, QOS_2, STATE

# Flags of a message, beside those of its PUBLISH and the bits of its state (packets.py).
MAYBE_SENT = const(0x10)  # some broker may have it; DUP: the broker's present session may have it
USED = const(0x20)  # so that the flags of a slot in use are never 0
IN_FLIGHT = const(0x80)  # sent on this link
# Marks of a message, see quarantine.py: that it was set aside, and that it is for good.
STRIKES_AT = const(28)  # above the place of its PUBREC: the mark of a message that awaits PUBCOMP
STRUCK = const(4)
SET_ASIDE = const(255)


class Outbox:
    """Index of the messages that the store holds, or, if those are too many, of the oldest ones.

    slot_of[packet_id]: the slot of a message; flags[slot]: 0 if the slot is free; sent_at[slot]: ms; ids[slot]: its
    packet id; next[slot], before[slot]: its neighbours in the order of publish(); `end` is the place before the first
    and behind the last. head: the slot to look at next on this link, or `end`. more: how many messages the store has
    beyond those; next_unsent() enters them when the others are sent. aside: how many quarantine.py has taken out of the
    order; they keep their slots. report(error) is set by the session, and called when the store cannot forget a
    message. size: counts the bytes of the messages in the index, for max_bytes; or None.
    """

    report = print
    marks = ()  # (packet id, mark) of the messages that quarantine.py has marked before a reset
    size = None

    def __init__(self, store, window):
        """window: how many messages may have been in flight before a restart. Raises StoreError."""
        self.store = store
        found = store.restore()
        self.more = getattr(store, "more", 0)
        self.end = n = getattr(store, "index", store.slots)
        self.flags = bytearray(n)
        self.sent_at = array("I", bytes(4 * n))
        self.ids = array("H", bytes(2 * n))
        self.next = array("H", bytes(2 * n + 2))
        self.before = array("H", bytes(2 * n + 2))
        self.next[n] = self.before[n] = n
        self.slot_of = {}
        self.released = []  # packet ids that await PUBCOMP, in the order of their PUBRECs
        self.lifetimes = None  # seconds by packet id, of messages that were restored
        self.head = n
        self.aside = 0
        self.rank = 0  # of the last PUBREC
        self.broker = store.session  # its name, also where the store could not write it
        if found:
            load("resume").restore(self, found, window)

    def append(self, packet_id, slot):
        """Enters a message whose flags are set as the last one of the index."""
        self.ids[slot] = packet_id
        self.insert(slot, self.end)

    def insert(self, slot, after):
        """Puts the message in `slot` in front of the one in `after`; if that is the next to send, this one is now."""
        before = self.before[after]
        self.before[slot] = before
        self.next[slot] = after
        self.next[before] = self.before[after] = slot
        if self.head == after:
            self.head = slot

    def take_out(self, slot):
        """Takes the message in `slot` out of the order. It stays in the index."""
        before = self.before[slot]
        after = self.next[slot]
        self.next[before] = after
        self.before[after] = before
        if self.head == slot:
            self.head = after

    def put(self, packet_id, flags, topic, payload, lifetime=0):
        """Stores a message. Raises OutboxFull, StoreError or MemoryError; then the message is not in the outbox."""
        slot = self.flags.find(b"\0")
        if len(self.slot_of) + self.more >= self.store.slots:
            raise OutboxFull(self.store.slots)
        if slot < 0 or self.more:
            self.store.put(None, packet_id, flags, topic, payload, lifetime)
            self.more += 1
            return
        try:
            self.flags[slot] = flags | USED  # first, since there may be no memory for these
            self.slot_of[packet_id] = slot
            self.store.put(slot, packet_id, flags, topic, payload, lifetime)
        except BaseException:
            self.flags[slot] = 0
            self.slot_of.pop(packet_id, None)
            raise
        self.append(packet_id, slot)
        if self.size:
            self.size.add(slot, topic, payload)

    def next_unsent(self):
        """Returns the packet id of the next message to send on this link, or 0. Raises StoreError."""
        for _ in range(2):
            while self.head != self.end:
                if self.flags[self.head] & STATE != AWAIT_PUBCOMP:
                    return self.ids[self.head]
                self.head = self.next[self.head]
            if not self.more or 2 * (len(self.slot_of) - self.aside) > self.end:
                break
            load("resume").restore(self)
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

    def in_flight(self):
        """Returns the slots of all messages that can be in flight."""
        found = []
        for packet_id in self.released:
            found.append(self.slot_of[packet_id])  # not a comprehension, which is a function of its own
        slot = self.next[self.end]
        while slot != self.head:
            found.append(slot)
            slot = self.next[slot]
        return found

    def longest_wait(self, now):
        """Returns for how many ms the oldest message in flight has waited for an acknowledgement."""
        longest = 0
        for slot in self.in_flight():
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
        if self.size:
            self.size.remove(slot)
        self.take_out(slot)
        if packet_id in self.released:
            self.released.remove(packet_id)
        self.flags[slot] = 0
        return flags & IN_FLIGHT > 0

    def rewind(self, new_session):
        """Puts all messages back in line for a new link. new_session: none was sent to this broker."""
        for slot in range(self.end) if new_session else self.in_flight():
            self.flags[slot] &= ~(IN_FLIGHT | DUP) if new_session else ~IN_FLIGHT
        self.head = self.next[self.end]


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
