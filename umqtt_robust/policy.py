"""The policies of a full outbox, its limit in bytes, and messages that expire."""

from ._platform import NEVER, ticks_diff
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


class Policy:
    """Limits how much the outbox of one session may hold, and for how long."""

    def __init__(self, session):
        self._session = session
        self._uptime = self._ms = 0  # seconds, and the rest in ms
        self._then = session.now
        self._making_room = False
        self._deadline = {}  # packet id: seconds of uptime
        self._size = {}  # packet id: bytes
        if session.outbox.lifetimes:
            self._deadline.update(session.outbox.lifetimes)
        session.timers.append(self.tick)

    def forget(self, session):
        """Does nothing: a new link changes nothing here."""

    def tick(self):
        """Counts the seconds, with or without a link. A gap of 2**29 ms (6.2 days) or more counts as 2**29 ms.

        Returns NEVER: it needs no further calls, besides those when the client runs anyway.
        """
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
        if self._making_room:  # on_dropped publishes: what makes room for another message takes none
            raise OutboxFull(outbox.store.slots)
        self.tick()
        self.pump()
        limit = session.max_bytes
        size = len(topic) + len(payload)
        if limit and size > limit:
            raise OutboxFull(limit)
        while len(outbox.slot_of) == outbox.store.slots or limit and self._bytes() + size > limit:
            quarantine = session.parts.get("quarantine")
            drops = session.policy == DROP_OLDEST
            if not (quarantine and quarantine.make_room(drops) or drops and self._drop_oldest()):
                raise OutboxFull(outbox.store.slots if len(outbox.slot_of) == outbox.store.slots else limit)
        if limit:  # without a limit nothing would remove the entry again
            self._size[packet_id] = size
        self._deadline.pop(packet_id, None)
        if expires_in is None:
            return 0
        lifetime = (expires_in + 999) // 1000
        self._deadline[packet_id] = self._uptime + lifetime + 1  # whole seconds, and never early
        return lifetime

    def pump(self):
        """Drops the messages that have expired and cannot have been sent. Returns True: nothing waits to be sent."""
        session = self._session
        outbox = session.outbox
        for packet_id in list(self._deadline):
            session.idle = False
            if packet_id not in outbox.slot_of:
                del self._deadline[packet_id]
            elif self._uptime >= self._deadline[packet_id]:
                del self._deadline[packet_id]
                if not outbox.flags[outbox.slot_of[packet_id]] & MAYBE_SENT:
                    self.drop(packet_id, EXPIRED)
        return True

    def _bytes(self):
        outbox = self._session.outbox
        total = 0
        for packet_id in outbox.slot_of:
            if packet_id not in self._size:
                topic, payload = outbox.store.load(outbox.slot_of[packet_id])
                self._size[packet_id] = len(topic) + len(payload)
            total += self._size[packet_id]
        for packet_id in list(self._size):
            if packet_id not in outbox.slot_of:
                del self._size[packet_id]
        return total

    def _drop_oldest(self):
        outbox = self._session.outbox
        for packet_id in outbox.queue:
            if not outbox.flags[outbox.slot_of[packet_id]] & MAYBE_SENT:  # never one that may have been sent
                self.drop(packet_id, FULL)
                return True
        return False

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
