"""The policies of a full outbox, its limit in bytes, and messages that expire."""

from array import array

from ._platform import NEVER, const, load, ticks_diff
from .base_errors import OutboxFull
from .store import MAYBE_SENT

# Client(policy=...)
REJECT = 0  # publish() raises OutboxFull
DROP_OLDEST = 1  # the oldest message that cannot have been sent yet makes room
DROP_NEWEST = 2  # the new message is dropped

# Why a message was dropped: the last argument of Client.on_dropped.
FULL = 0
EXPIRED = 1
UNREADABLE = 2  # the store found it damaged; topic and payload are empty
TOO_LARGE = 3  # the broker takes no packet as large; MQTT 5
REFUSED = 4  # the broker refused it; MQTT 5
QUARANTINED = 5  # the broker ended each link at it: it is kept, but not sent; see quarantine.py

_MOST_GONE = const(64)  # entries of messages that are gone, in the list of deadlines


def packet_ids(outbox):
    """Returns the packet ids of the messages in the outbox's index, in the order of publish()."""
    found = []
    slot = outbox.next[outbox.end]
    while slot != outbox.end:
        found.append(outbox.ids[slot])
        slot = outbox.next[slot]
    return found


class Sizes:
    """Counts the bytes of topics and payloads in an outbox. total: their sum."""

    def __init__(self, slots):
        self._sizes = array("I", bytes(4 * slots))
        self.total = 0

    def add(self, slot, topic, payload):
        self._sizes[slot] = n = len(topic) + len(payload)
        self.total += n

    def remove(self, slot):
        self.total -= self._sizes[slot]


class Policy:
    """Limits how much the outbox of one session may hold, and for how long."""

    def __init__(self, session):
        self._session = session
        self._uptime = self._ms = 0  # seconds, and the rest in ms
        self._then = session.now
        self._making_room = False
        self._deadline = {}  # packet id: seconds of uptime
        # All deadlines in order, and their packet ids. Entries of messages that are gone stay for a while.
        self._deadlines = []
        self._ids = []
        session.timers.append(self.tick)
        self._enter_restored()

    def _enter_restored(self):
        # The lifetime of a message that comes from the store begins again.
        restored = self._session.outbox.lifetimes
        if restored:
            self._session.outbox.lifetimes = None
            for packet_id in restored:
                self._expire(packet_id, restored[packet_id])

    def forget(self, session):
        """Does nothing: a new link changes nothing here."""

    def tick(self):
        """Counts the seconds, with or without a link. A gap of 2**29 ms (6.2 days) or more counts as 2**29 ms.

        Returns NEVER: it needs no further calls, besides those when the client runs anyway.
        """
        self._enter_restored()
        elapsed = ticks_diff(self._session.now, self._then)
        self._then = self._session.now
        self._ms += elapsed if elapsed >= 0 else NEVER
        if self._ms >= 1000:
            self._uptime += self._ms // 1000
            self._ms %= 1000
            self.pump()
        return NEVER

    def make_room(self, packet_id, topic, payload, expires_in):
        """Makes room for a message before it is stored. Returns its lifetime in seconds, 0 for ever.

        Raises OutboxFull.
        """
        session = self._session
        outbox = session.outbox
        slots = outbox.store.slots
        if self._making_room:  # on_dropped publishes: what makes room for another message takes none
            raise OutboxFull(slots)
        self.tick()
        self.pump()
        limit = session.max_bytes
        size = len(topic) + len(payload)
        if limit and size > limit:
            raise OutboxFull(limit)
        while len(outbox.slot_of) + outbox.more >= slots or limit and self._bytes() + size > limit:
            quarantine = session.parts.get("quarantine")
            drops = session.policy == DROP_OLDEST
            if not (quarantine and quarantine.make_room(drops) or drops and self._drop_oldest()):
                raise OutboxFull(slots if len(outbox.slot_of) + outbox.more >= slots else limit)
        self._deadline.pop(packet_id, None)
        if expires_in is None:
            return 0
        lifetime = (expires_in + 999) // 1000
        if not outbox.more and len(outbox.slot_of) < outbox.end:  # else the time begins when it comes into the index
            self._expire(packet_id, lifetime)
        return lifetime

    def _expire(self, packet_id, lifetime):
        deadlines = self._deadlines
        deadline = self._uptime + lifetime + 1  # whole seconds, and never early
        i = len(deadlines)
        if i and deadlines[-1] > deadline:
            low = 0
            while low < i:
                middle = (low + i) // 2
                if deadlines[middle] > deadline:
                    i = middle
                else:
                    low = middle + 1
        deadlines.insert(i, deadline)
        self._ids.insert(i, packet_id)
        self._deadline[packet_id] = deadline
        if len(deadlines) > 2 * len(self._session.outbox.slot_of) + _MOST_GONE:
            self._tidy()

    def _tidy(self):
        # Removes the entries of messages that are gone. Seldom enough: it takes as long as all of them are many.
        ids, deadlines, self._ids, self._deadlines = self._ids, self._deadlines, [], []
        known, self._deadline = self._deadline, {}
        slot_of = self._session.outbox.slot_of
        newest = ids[-1]  # it is not stored yet
        for i in range(len(ids)):
            packet_id = ids[i]
            if (packet_id in slot_of or packet_id == newest) and known.get(packet_id) == deadlines[i]:
                self._ids.append(packet_id)
                self._deadlines.append(deadlines[i])
                self._deadline[packet_id] = deadlines[i]

    def pump(self):
        """Drops the messages that have expired and cannot have been sent. Returns True: nothing waits to be sent."""
        session = self._session
        outbox = session.outbox
        if self._deadline:
            session.idle = False
        while self._deadlines and self._deadlines[0] <= self._uptime:
            self._deadlines.pop(0)
            packet_id = self._ids.pop(0)
            if self._deadline.get(packet_id, NEVER) <= self._uptime:  # else the id was used again
                del self._deadline[packet_id]
                slot = outbox.slot_of.get(packet_id)
                if slot is not None and not outbox.flags[slot] & MAYBE_SENT:
                    self.drop(packet_id, EXPIRED)
        return True

    def _bytes(self):
        # Returns the bytes of topic names and payloads in the index.
        outbox = self._session.outbox
        if not outbox.size:
            outbox.size = Sizes(outbox.end)
            for packet_id in outbox.slot_of:
                slot = outbox.slot_of[packet_id]
                outbox.size.add(slot, *outbox.store.load(slot))
        return outbox.size.total

    def _drop_oldest(self):
        outbox = self._session.outbox
        while True:
            slot = outbox.next[outbox.end]
            while slot != outbox.end:
                if not outbox.flags[slot] & MAYBE_SENT:  # never one that may have been sent
                    self.drop(outbox.ids[slot], FULL)
                    return True
                slot = outbox.next[slot]
            if not outbox.more or len(outbox.slot_of) == outbox.end:
                return False
            load("resume").restore(outbox)

    def drop_unsendable(self, packet_id):
        """Drops a message that the store cannot read any more, or that is larger than the broker accepts."""
        outbox = self._session.outbox
        self.drop(packet_id, TOO_LARGE if outbox.store.load(outbox.slot_of[packet_id])[0] else UNREADABLE)

    def lifetime(self, packet_id):
        """Returns the seconds until a message expires, at least 1, or None if it does not expire."""
        deadline = self._deadline.get(packet_id)
        return deadline and max(1, deadline - self._uptime - 1)

    def drop(self, packet_id, reason):
        """Drops a message, counts and reports it. reason: FULL, EXPIRED, UNREADABLE, TOO_LARGE or REFUSED."""
        session = self._session
        outbox = session.outbox
        session.discarded += 1
        callback = session.on_dropped
        if callback:
            topic, payload = outbox.store.load(outbox.slot_of[packet_id])
        session.remove(packet_id)
        if callback:
            self._making_room = reason == FULL
            try:
                callback(packet_id, topic.split(b"\0")[0], payload, reason)
            except OutboxFull as error:
                session.report(error)
            finally:
                self._making_room = False


part = Policy  # what Session.part() makes
