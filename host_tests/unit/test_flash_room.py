"""Flash used by large messages is free again when they are acknowledged, wherever the power is cut."""

import os

from umqtt_testkit.portable import equal, new_path

from umqtt_robust.errors import StoreError
from umqtt_robust.flash import FlashStore

HEAP = "1M"
CHUNK = 120
SLOTS = 4
SIZE = 20000


class PowerCut(Exception):
    pass


class Cut(FlashStore):
    """A store whose power fails before the file operation with the number `at`."""

    at = -1

    def __init__(self, path):
        FlashStore.__init__(self, path, SLOTS, CHUNK)
        self.restore()
        self.inbound._box._write_raw = self._write_raw

    def _write_raw(self, name, *parts):
        if not self.at:
            raise PowerCut
        self.at -= 1
        FlashStore._write_raw(self, name, *parts)


class Full(Cut):
    """A store whose flash is full for one operation."""

    def _write_raw(self, name, *parts):
        if not self.at:
            self.at = -1
            FlashStore._write_raw(self, name, *parts)
            raise StoreError("full")
        self.at -= 1
        FlashStore._write_raw(self, name, *parts)


def folder():
    path = new_path("flash-room")
    os.mkdir(path)
    return path


def files(path):
    """Return (path, size) of all files below."""
    found = []
    for name in os.listdir(path):
        name = path + "/" + name
        if os.stat(name)[0] & 0x4000:
            found += files(name)
        else:
            found.append((name, os.stat(name)[6]))
    return found


def fill(store):
    for slot in range(SLOTS):
        store.put(slot, slot + 1, 2, b"t", bytes(SIZE if slot % 2 else 300))
        store.inbound.put(slot + 1, 4, b"t", bytes(SIZE))


def work(store):
    """Store and acknowledge messages, large and small, both ways; return the number of file operations."""
    operations = 1000
    store.at = min(store.at, operations) if store.at >= 0 else operations
    fill(store)
    for slot in range(SLOTS):
        store.tombstone(slot)
        store.inbound.tombstone(slot + 1)
    return operations - store.at


def check(path, about):
    large = [name for name, size in files(path) if size > CHUNK]
    equal(large, [], about)


def test_all_of_it_is_free_when_everything_is_acknowledged():
    # Planted: a tombstone leaves its message's chunk in flash.
    path = folder()
    store = Cut(path)
    work(store)
    check(path, "acknowledged")


def test_whatever_operation_the_power_is_cut_at():
    # Planted: restore() does not look for chunks whose slot is free.
    path = folder()
    operations = work(Cut(path))
    assert operations > 20
    for at in range(operations):
        path = folder()
        store = Cut(path)
        store.at = at
        try:
            work(store)
        except PowerCut:
            pass
        store = FlashStore(path, SLOTS, CHUNK)
        left = [found[0] for found in store.restore()]
        kept = [name for name, size in files(path) if size > CHUNK]
        equal(len(kept), len([slot for slot in left if slot % 2]) + len(store.inbound.ids()), str(at))
        for slot in left:
            store.tombstone(slot)
        for packet_id in store.inbound.ids():
            store.inbound.tombstone(packet_id)
        check(path, str(at))


def test_a_message_that_does_not_fit_leaves_nothing():
    # Planted: a failed put() leaves the chunk that it has written.
    for at in range(100):
        path = folder()
        store = Full(path)
        store.at = at
        try:
            fill(store)
            return
        except StoreError:
            live = [slot for slot in range(SLOTS) if slot % 2 and store.message(slot)]
            kept = [name for name, size in files(path) if size > CHUNK]
            equal(len(kept), len(live) + len(store.inbound.ids()), str(at))
    raise AssertionError("no end")
