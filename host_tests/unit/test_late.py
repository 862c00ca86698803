"""Late storing: which messages reach the store, when and in which order, and the effect of a failing store."""

from umqtt_testkit.portable import equal, raises

from umqtt_robust.errors import InvalidArgument, StoreError
from umqtt_robust.late import LateStore
from umqtt_robust.packets import CLOSED, UP
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import MemoryStore, Outbox

HEAP = "256K"


class Store(MemoryStore):
    """A store that records its calls and fails while `broken`."""

    def __init__(self):
        MemoryStore.__init__(self, 8)
        self.log = []
        self.broken = False

    def put(self, slot, packet_id, flags, topic, payload, lifetime):
        if self.broken:
            raise StoreError("full")
        MemoryStore.put(self, slot, packet_id, flags, topic, payload, lifetime)
        self.log.append((packet_id, flags, lifetime))

    def tombstone(self, slot):
        MemoryStore.tombstone(self, slot)
        self.log.append("tombstone")


class Session:
    window = 3

    def __init__(self):
        self.store = Store()
        self.outbox = Outbox(self.store, self.window)
        self.state = UP
        self.now = 0
        self.timers = []
        self.errors = []
        self.report = self.errors.append
        self.late = LateStore(self)

    def put(self, packet_id, lifetime=0):
        self.outbox.put(packet_id, 2, b"t", b"%d" % packet_id, lifetime)

    def stored(self):
        return [entry[0] for entry in self.store.log if entry != "tombstone"]

    def body(self, packet_id):
        return tuple(self.outbox.store.load(self.outbox.slot_of[packet_id]))


def test_an_acknowledged_message_never_reaches_the_store():
    session = Session()
    for packet_id in (1, 2, 3):
        session.put(packet_id)
        equal(session.body(packet_id), (b"t", b"%d" % packet_id))
    for packet_id in (2, 1, 3):
        session.outbox.remove(packet_id)
    session.late.forget(False)
    equal(session.store.log, [])


def test_a_message_is_stored_when_it_is_after_ms_old_and_not_before():
    for start in (0, (1 << 30) - 3000):  # the clock wraps
        session = Session()
        session.now = start
        session.put(1, lifetime=60)
        session.now = (start + 3000) & 0x3FFFFFFF
        session.put(2)
        session.now = (start + 4999) & 0x3FFFFFFF
        session.late.pump()
        equal(session.store.log, [])
        session.now = (start + 5000) & 0x3FFFFFFF
        session.late.pump()
        equal(session.store.log, [(1, 2, 60)])
        equal(session.body(1), (b"t", b"1"))
        session.outbox.remove(1)
        equal(session.store.log, [(1, 2, 60), "tombstone"])


def test_everything_is_stored_in_order_when_the_link_goes_down_and_at_once_while_there_is_none():
    session = Session()
    session.put(1)
    session.put(2)
    session.state = CLOSED
    session.late.forget(False)
    equal(session.stored(), [1, 2])
    session.put(3)
    equal(session.stored(), [1, 2, 3])


def test_no_more_than_the_window_waits_in_ram():
    session = Session()
    for packet_id in range(1, 6):
        session.put(packet_id)
    equal(session.stored(), [1, 2])


def test_qos_2_is_refused():
    session = Session()
    raises(InvalidArgument, session.outbox.put, 1, 4, b"t", b"")
    equal(packet_ids(session.outbox), [])


def test_what_cannot_be_stored_stays_in_ram_is_reported_and_tried_again():
    session = Session()
    session.put(1)
    session.store.broken = True
    session.late.forget(False)
    equal((session.late.failures, len(session.errors)), (1, 1))
    equal(session.body(1), (b"t", b"1"))
    session.state = CLOSED
    raises(StoreError, session.put, 2)  # older messages must be stored first
    equal(packet_ids(session.outbox), [1])
    session.state = UP
    session.now = 2000
    session.late.pump()
    equal(session.late.failures, 1)  # it does not retry at every tick
    session.store.broken = False
    session.now = 6000
    session.late.pump()
    equal(session.stored(), [1])


def test_a_message_whose_flags_change_is_stored_first_with_all_before_it():
    """Planted: change() of a message in RAM goes to a slot of the store that holds no message."""
    session = Session()
    for packet_id in (1, 2, 3):
        session.put(packet_id)
    changed = []
    session.store.change = lambda slot, flags, rank: changed.append((slot, flags, rank, session.stored()))
    slot = session.outbox.slot_of[2]
    session.late.change(slot, 2, 1)
    equal(changed, [(slot, 2, 1, [1, 2])])
    session.late.pump()
    session.outbox.remove(2)
    session.late.forget(False)
    equal(session.stored(), [1, 2, 3])
