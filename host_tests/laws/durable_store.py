"""A store that outlives the program, with the interface of umqtt_robust/store.py, on a pretended flash."""

from cut_wire import PowerCut

from umqtt_robust.errors import StoreError


class Flash:
    """The contents that survive a restart. operations counts the writes.

    cut_at: the write with this number (from 1) ends in PowerCut, before it is done or, with `after`, right after it.
    fail_at: the write with this number fails with StoreError; so do the `failing` ones after it.
    unwritable: "everything", or the one key whose writes fail.
    """

    def __init__(self, slots=16):
        self.slots = slots
        self.messages = {}  # slot: [order of put(), packet id, flags, rank, lifetime, topic, payload]
        self.inbound = {}
        self.state = {}  # "session": the broker's name
        self.order = 0
        self.operations = 0
        self.cut_at = self.fail_at = 0
        self.after = False
        self.failing = 0
        self.unwritable = None
        self.undone = None  # the key of the write that a power cut prevented

    def open(self):
        """Return the store of a program that starts."""
        return DurableStore(self)

    def write(self, target, key, value):
        """Set target[key] to value, or remove it if value is None; completely or not at all."""
        self.operations += 1
        n = self.operations
        if self.fail_at and self.fail_at <= n <= self.fail_at + self.failing:
            raise StoreError("planned for operation %d" % n)
        if self.unwritable in ("everything", key):
            raise StoreError("planned for %s" % key)
        if n == self.cut_at and not self.after:
            self.undone = key
            raise PowerCut
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
        if n == self.cut_at:
            raise PowerCut


class DurableStore:
    """The store of a program from one start to the next, on a Flash."""

    def __init__(self, flash):
        self._flash = flash
        self._given_up = []  # slots whose tombstone() failed
        self.slots = flash.slots
        self.inbound = DurableInbound(flash)

    @property
    def session(self):
        return self._flash.state.get("session")

    @session.setter
    def session(self, name):
        self._flash.write(self._flash.state, "session", name)

    def put(self, slot, packet_id, flags, topic, payload, lifetime):
        assert slot not in self._flash.messages or slot in self._given_up, "slot %d is in use" % slot
        self._flash.order += 1
        record = [self._flash.order, packet_id, flags, 0, lifetime, topic, payload]
        self._flash.write(self._flash.messages, slot, record)

    def load(self, slot):
        return tuple(self._flash.messages[slot][5:])

    def change(self, slot, flags, rank):
        record = list(self._flash.messages[slot])
        record[2] = flags
        record[3] = rank
        self._flash.write(self._flash.messages, slot, record)

    def tombstone(self, slot):
        self._given_up.append(slot)
        self._flash.write(self._flash.messages, slot, None)
        self._given_up.remove(slot)

    def restore(self):
        slots = sorted(self._flash.messages, key=lambda slot: self._flash.messages[slot][0])
        return [(slot,) + tuple(self._flash.messages[slot][1:5]) for slot in slots]


class DurableInbound:
    def __init__(self, flash):
        self._flash = flash

    def ids(self):
        return sorted(self._flash.inbound)

    def room(self):
        return 64 - len(self._flash.inbound)

    def put(self, packet_id, flags, topic, payload):
        self._flash.write(self._flash.inbound, packet_id, (flags, topic, payload))

    def get(self, packet_id):
        return self._flash.inbound.get(packet_id)

    def tombstone(self, packet_id):
        self._flash.write(self._flash.inbound, packet_id, None)
