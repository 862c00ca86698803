"""Limits of an outbox beside the number of its messages: their bytes, and how long each of them may wait."""

from array import array

from ._platform import NEVER, const, ticks_diff
from .policy import EXPIRED
from .store import MAYBE_SENT

_MOST_GONE = const(64)  # entries of messages that are gone, in the list of deadlines


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


class Limits:
    """Counts the bytes in the outbox of one session, and drops the messages that have expired."""

    def __init__(self, session):
        self._session = session
        self._uptime = self._ms = 0  # seconds, and the rest in ms
        self._then = session.now
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

    def start(self, packet_id, expires_in):
        """Starts the time of a message that is stored next. Returns its lifetime in seconds."""
        lifetime = (expires_in + 999) // 1000
        outbox = self._session.outbox
        if not outbox.more and len(outbox.slot_of) < outbox.end:  # else the time begins when it comes into the index
            self._expire(packet_id, lifetime)
        return lifetime

    def discard(self, packet_id):
        """Forgets the deadline of an earlier message with that packet id."""
        self._deadline.pop(packet_id, None)

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
                    session.part("policy").drop(packet_id, EXPIRED)
        return True

    def bytes(self):
        """Returns the bytes of topic names and payloads in the index."""
        outbox = self._session.outbox
        if not outbox.size:
            outbox.size = Sizes(outbox.end)
            for packet_id in outbox.slot_of:
                slot = outbox.slot_of[packet_id]
                outbox.size.add(slot, *outbox.store.load(slot))
        return outbox.size.total

    def lifetime(self, packet_id):
        """Returns the seconds until a message expires, at least 1, or None if it does not expire."""
        deadline = self._deadline.get(packet_id)
        return deadline and max(1, deadline - self._uptime - 1)


part = Limits  # what Session.part() makes
