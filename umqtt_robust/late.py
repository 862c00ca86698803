"""Late storing: a message reaches the flash only when its acknowledgement does not come soon. Less wear, a known loss.

    client = Client("pump-7", "mqtt://broker.example", clean_session=False, store=FlashStore("/mqtt"))
    client.part("late").after_ms = 5000

While the link is up a message at QoS 1 stays in RAM for after_ms, or until `window` others came after it; it is stored
after that, and when the link goes down. A live link wears out nothing.

What is lost when the power fails: messages that were published in the last after_ms (and the time by which tick()
is called late) and not acknowledged. Without this module: none. At QoS 2 publish() raises InvalidArgument, since a
packet id that is forgotten could not promise exactly once.
"""

from ._platform import NEVER, ticks_diff
from .errors import InvalidArgument, StoreError
from .packets import QOS_2
from .states import UP


class LateStore:
    """A store that stands before the one of the outbox.

    failures: how often what waits could not be stored; it stays in RAM then, and is tried again.
    """

    after_ms = 5000

    def __init__(self, session):
        self._session = session
        self._store = store = session.outbox.store
        session.outbox.store = self
        self.slots = store.slots
        self.inbound = store.inbound
        self._waiting = {}  # slot: (when, arguments of put())
        self._order = []  # slots, the oldest message first
        self._tried_at = None
        self.failures = 0
        session.timers.append(self.due)

    # What a store has

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
        # In the order of publish(): what is older goes first.
        while self._order and (session.state != UP or len(self._order) >= session.window):
            self._store_first()
        if session.state == UP:
            self._waiting[slot] = session.now, (packet_id, flags, topic, payload, lifetime)
            self._order.append(slot)
        else:
            self._store.put(slot, packet_id, flags, topic, payload, lifetime)

    def load(self, slot):
        if slot in self._waiting:
            return self._waiting[slot][1][2:4]
        return self._store.load(slot)

    def change(self, slot, flags, rank):
        self._store.change(slot, flags, rank)  # of a message from before this start

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

    # What a part has

    def forget(self, session):
        """The link is gone."""
        self._store_older(0)

    def pump(self):
        self._store_older(self.after_ms)
        return True

    def due(self):
        """ms until pump() has something to store."""
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
