"""Late storing: writes a message to flash only if its acknowledgement is late. Less wear, but a power cut loses some.

    client = Client("pump-7", "mqtt://broker.example", clean_session=False, store=FlashStore("/mqtt"))
    client.part("late").after_ms = 5000

While the link is up, a message at QoS 1 stays in RAM. It is written to flash after after_ms, when `window` newer
messages wait, or when the link goes down. As long as acknowledgements come in time, nothing is written.

A power cut loses messages that were published in the last after_ms (plus the time by which tick() is called late) and
not acknowledged. Without this module it loses none. At QoS 2 publish() raises InvalidArgument, because exactly-once
delivery needs a packet id that survives a power cut.
"""

from ._platform import NEVER, ticks_diff
from .errors import InvalidArgument, StoreError
from .packets import QOS_2, UP


class LateStore:
    """A store in front of the outbox's own store.

    after_ms: how long a message stays in RAM while the link is up. failures: how often messages could not be stored;
    they stay in RAM then, and are tried again.
    """

    after_ms = 5000

    def __init__(self, session):
        self._session = session
        self._store = store = session.outbox.store
        session.outbox.store = self
        self.inbound = store.inbound
        self._waiting = {}  # slot: (ms when it was put, arguments of put())
        self._order = []  # slots, the oldest message first
        self._tried_at = None
        self.failures = 0
        session.timers.append(self.due)

    # Methods of a store

    def __getattr__(self, name):  # slots, more, last_id, restore()
        return getattr(self._store, name)

    @property
    def session(self):
        return self._store.session

    @session.setter
    def session(self, name):
        self._store.session = name

    def put(self, slot, packet_id, flags, topic, payload, lifetime):
        session = self._session
        if flags & QOS_2:
            raise InvalidArgument("late storing is for QoS 1")
        # In the order of publish(): older messages are stored first.
        while self._order and (slot is None or session.state != UP or len(self._order) >= session.window):
            self._store_first()
        if session.state == UP and slot is not None:
            self._waiting[slot] = session.now, (packet_id, flags, topic, payload, lifetime)
            self._order.append(slot)
        else:
            self._store.put(slot, packet_id, flags, topic, payload, lifetime)

    def load(self, slot):
        if slot in self._waiting:
            return self._waiting[slot][1][2:4]
        return self._store.load(slot)

    def change(self, slot, flags, rank):
        # At QoS 2, from before this start; or a mark of quarantine.py.
        while slot in self._waiting:
            self._store_first()
        self._store.change(slot, flags, rank)

    def tombstone(self, slot):
        if slot in self._waiting:
            self._drop(self._order.index(slot))
        else:
            self._store.tombstone(slot)

    def _store_first(self):
        slot = self._order[0]
        self._store.put(slot, *self._waiting[slot][1])
        self._drop(0)

    def _drop(self, i):
        del self._waiting[self._order.pop(i)]

    # Methods of a part

    def forget(self, session):
        """Stores all messages that wait, because the link is gone."""
        self._store_older(0)

    def pump(self):
        self._store_older(self.after_ms)
        return True

    def due(self):
        """Returns the ms until pump() has something to store."""
        if not self._order:
            return NEVER
        return max(1, self.after_ms - ticks_diff(self._session.now, self._waiting[self._order[0]][0]))

    def _store_older(self, age):
        now = self._session.now
        if age and self._tried_at is not None and ticks_diff(now, self._tried_at) < age:
            return
        self._tried_at = None
        try:
            while self._order and (not age or ticks_diff(now, self._waiting[self._order[0]][0]) >= age):
                self._store_first()
        except StoreError as error:
            self._tried_at = now
            self.failures += 1
            self._session.report(error)


part = LateStore  # what Session.part() makes
