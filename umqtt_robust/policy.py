"""The policies of a full outbox; limits.py adds its limit in bytes, and messages that expire."""

from ._platform import load
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
    """Makes room in the outbox of one session."""

    def __init__(self, session):
        self._session = session
        self._making_room = False

    def forget(self, session):
        """Does nothing: a new link changes nothing here."""

    def pump(self):
        """Returns True: nothing waits to be sent."""
        if self._session.outbox.lifetimes:  # of messages that come from the store
            self._session.part("limits")
        return True

    def make_room(self, packet_id, topic, payload, expires_in):
        """Makes room for a message before it is stored. Returns its lifetime in seconds, 0 for ever.

        Raises OutboxFull.
        """
        session = self._session
        outbox = session.outbox
        slots = outbox.store.slots
        if self._making_room:  # on_dropped publishes: what makes room for another message takes none
            raise OutboxFull(slots)
        limit = session.max_bytes
        limits = session.part("limits") if limit or expires_in is not None else session.parts.get("limits")
        if limits:
            limits.tick()
            limits.pump()
        size = len(topic) + len(payload)
        if limit and size > limit:
            raise OutboxFull(limit)
        while len(outbox.slot_of) + outbox.more >= slots or limit and limits.bytes() + size > limit:
            quarantine = session.parts.get("quarantine")
            drops = session.policy == DROP_OLDEST
            if not (quarantine and quarantine.make_room(drops) or drops and self._drop_oldest()):
                raise OutboxFull(slots if len(outbox.slot_of) + outbox.more >= slots else limit)
        if limits:
            limits.discard(packet_id)
        return 0 if expires_in is None else limits.start(packet_id, expires_in)

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

    def drop(self, packet_id, reason):
        """Drops a message, counts and reports it. reason: FULL, EXPIRED, UNREADABLE, TOO_LARGE or REFUSED.

        Raises StoreError if the store cannot forget it: then it is neither dropped nor counted.
        """
        session = self._session
        outbox = session.outbox
        callback = session.on_dropped
        if callback:
            topic, payload = outbox.store.load(outbox.slot_of[packet_id])
        session.remove(packet_id)
        session.discarded += 1
        if callback:
            self._making_room = reason == FULL
            try:
                callback(packet_id, topic.split(b"\0")[0], payload, reason)
            except OutboxFull as error:
                session.report(error)
            finally:
                self._making_room = False


part = Policy  # what Session.part() makes
