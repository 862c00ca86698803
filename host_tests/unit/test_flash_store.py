"""FlashStore alone, in a folder: what it keeps, and how it treats damaged or foreign files."""

import os

from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import Rng, equal, new_path, raises

from umqtt_robust import flash
from umqtt_robust.errors import StoreError
from umqtt_robust.flash import FlashStore
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import Outbox

HEAP = "1M"


def opened(path, slots=8, chunk=120):
    store = FlashStore(path, slots, chunk)
    return store, list(store.restore())


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def made_folder():
    # On the host's own file system, which empties a file when it is opened for writing.
    path = new_path("flash-store")
    os.mkdir(path)
    return path


def test_what_was_stored_is_restored_in_the_order_of_put():
    path = made_folder()
    store, found = opened(path)
    equal(list(found), [])
    store.put(5, 7, 2, b"topic", b"one", 0)
    store.put(0, 65535, 4, b"t", b"", 3600)
    store.put(3, 1, 3, b"", b"three", 0)
    store.tombstone(0)
    store.put(0, 2, 0, b"again", b"four", 1)
    store, found = opened(path)
    equal(found, [(5, 7, 2, 0, 0), (3, 1, 3, 0, 0), (0, 2, 0, 0, 1)])
    equal(store.load(5), (b"topic", b"one"))
    equal(store.load(3), (b"", b"three"))
    equal(store.load(0), (b"again", b"four"))
    equal(store.torn, 0)


def test_messages_of_every_size_come_back_whole():
    path = made_folder()
    rng = Rng(5)
    store, _ = opened(path)
    for size in list(range(90, 120)) + list(range(200, 240)) + [1000, 1043, 1044, 1045, 5000, 70000]:
        payload = rng.bytes(min(size, 5000)) + b"x" * max(0, size - 5000)
        store.put(size % 8, 9, 2, b"topic", payload, size % 2)
        equal(store.load(size % 8), (b"topic", payload), size)
        reopened, found = opened(path)
        assert (size % 8, 9, 2, 0, size % 2) in found, size
        equal(reopened.load(size % 8), (b"topic", payload), size)
        store.tombstone(size % 8)


def test_a_change_counts_for_its_own_message_only():
    path = made_folder()
    store, _ = opened(path)
    store.put(1, 5, 4, b"t", b"one", 0)
    store.put(2, 6, 4, b"t", b"two", 0)
    store.change(1, 0x44, 3)
    equal(opened(path)[1], [(1, 5, 0x44, 3, 0), (2, 6, 4, 0, 0)])
    store.change(1, 4, 0)
    store.change(2, 0x44, 9)
    equal(opened(path)[1], [(1, 5, 4, 0, 0), (2, 6, 0x44, 9, 0)])
    store.tombstone(1)
    store.tombstone(2)
    # Restart with nothing left but the old changes; there are many messages, so a reused order number would show.
    for _ in range(3):
        store, found = opened(path)
        equal(list(found), [])
        for number in range(1, 6):
            store.put(2, number, 4, b"t", b"new", 0)
            equal(opened(path)[1], [(2, number, 4, 0, 0)])
        store.tombstone(2)


def test_the_session_is_durable():
    path = made_folder()
    store, _ = opened(path)
    equal(store.session, None)
    store.session = "broker:1883"
    equal(opened(path)[0].session, "broker:1883")
    store.session = None
    equal(opened(path)[0].session, None)
    write(path + "/session", b"torn")
    equal(opened(path)[0].session, None)


def test_inbound_messages_stay_until_they_are_handled():
    path = made_folder()
    store, _ = opened(path)
    store.inbound.put(700, 4, b"cmd", b"reboot")
    store.inbound.put(65535, 4 | 0x80, b"", b"")
    store.put(0, 700, 2, b"out", b"of the same id", 0)
    store, found = opened(path)
    equal(found, [(0, 700, 2, 0, 0)])
    equal(sorted(store.inbound.ids()), [700, 65535])
    equal(store.inbound.get(700), (4, b"cmd", b"reboot"))
    equal(store.inbound.get(65535), (0x84, b"", b""))
    equal(store.inbound.get(1), None)
    store.inbound.tombstone(700)
    store, _ = opened(path)
    equal(store.inbound.ids(), [65535])
    for packet_id in range(1, 8):
        store.inbound.put(packet_id, 4, b"cmd", b"")
    raises(StoreError, store.inbound.put, 99, 4, b"cmd", b"")
    equal(len(opened(path)[0].inbound.ids()), 8)


def test_every_damaged_byte_is_noticed_and_counted_and_the_others_survive():
    path = made_folder()
    store, _ = opened(path, chunk=60)
    store.put(1, 11, 2, b"topic", b"p" * 80, 60)
    store.put(2, 12, 2, b"topic", b"fine", 0)
    for name in ("/1/1", "/1/1.1"):
        good = read(path + name)
        for i in range(len(good)):
            for bad in (good[:i] + bytes((good[i] ^ 1,)) + good[i + 1 :], good[:i]):
                write(path + name, bad)
                again, found = opened(path, chunk=60)
                free = name == "/1/1" and len(bad) == 1  # a tombstone
                equal((found, again.torn), ([(2, 12, 2, 0, 0)], 0 if free else 1), (name, i))
                if not free:
                    equal(again.load(1), (b"", b""))
        write(path + name, good)
    os.remove(path + "/1/1.1")
    again, found = opened(path, chunk=60)
    equal((found, again.torn), ([(2, 12, 2, 0, 0)], 1))


def test_a_damaged_inbound_message_is_left_out_and_counted():
    path = made_folder()
    store, _ = opened(path)
    store.inbound.put(1, 4, b"cmd", b"one")
    store.inbound.put(2, 4, b"cmd", b"two")
    write(path + "/0/i0", read(path + "/0/i0")[:-1])
    store, _ = opened(path)
    equal((store.inbound.ids(), store.torn), ([2], 1))


def test_an_unknown_format_is_refused_and_left_as_it_is():
    path = made_folder()
    store, _ = opened(path)
    store.put(1, 11, 2, b"topic", b"payload", 0)
    for kind, size in ((0, 26), (3, 26), (255, 26), (3, 1)):
        store._write(store._name(2), bytes((kind,)) + (b"of the future" * 2)[:size])
        before = read(path + "/2/2")
        error = raises(StoreError, opened, path)
        assert "/2/2" in str(error) and f"format {kind}:" in str(error), error
        equal(read(path + "/2/2"), before)
    os.remove(path + "/2/2")
    equal(opened(path)[1], [(1, 11, 2, 0, 0)])


def test_folders_are_made_when_they_are_needed_and_where_that_is_impossible_it_raises():
    real = flash.mkdir

    def refused(name):
        raise OSError(2)

    path = made_folder()
    store, _ = opened(path + "/a/b/mqtt")
    equal(os.listdir(path), [])
    store.put(7, 1, 2, b"topic", b"payload", 0)
    equal(os.listdir(path + "/a/b/mqtt"), ["7"])
    write(path + "/file", b"")
    raises(StoreError, opened, path + "/file/mqtt")
    flash.mkdir = refused
    try:
        raises(StoreError, opened(path + "/x/y")[0].put, 0, 1, 2, b"topic", b"", 0)
    finally:
        flash.mkdir = real


class Failing:
    """A replacement of open(): the file system is full after `room` bytes, or read-only."""

    def __init__(self, real, room):
        self.real = real
        self.room = room

    def __call__(self, name, mode):
        if mode == "wb" and self.room < 0:
            raise OSError(30)  # EROFS
        return File(self, self.real(name, mode))


class File:
    def __init__(self, disk, file):
        self.disk = disk
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def read(self):
        return self.file.read()

    def write(self, data):
        data = bytes(data)[: self.disk.room]
        self.disk.room -= len(data)
        if not data:
            raise OSError(28)  # ENOSPC
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def test_a_full_littlefs_raises_and_what_was_stored_stays():
    for geometry in ("esp32", "rp2"):
        with PowerCutFlash(geometry, 12) as device:
            store, _ = opened(ROOT + "/mqtt", 16)
            store.put(0, 1, 2, b"topic", b"kept", 0)
            # The rest of the flash is filled by a foreign file.
            with open(ROOT + "/other", "wb") as file:
                try:
                    while True:
                        file.write(b"x" * 1024)
                        file.flush()
                except OSError:
                    pass
            raises(StoreError, store.put, 1, 2, 2, b"topic", b"new folder", 0)
            raises(StoreError, store.put, 8, 3, 2, b"topic", b"p" * 9000, 0)
            device.unmount()
            device.mount()
            store, found = opened(ROOT + "/mqtt")
            equal(found, [(0, 1, 2, 0, 0)])
            equal(store.load(0), (b"topic", b"kept"))
            os.remove(ROOT + "/other")
            store.put(1, 2, 2, b"topic", b"new folder", 0)
            equal(len(opened(ROOT + "/mqtt")[1]), 2)


def test_a_read_only_littlefs_raises_and_what_was_stored_stays():
    with PowerCutFlash() as device:
        store, _ = opened(ROOT + "/mqtt")
        store.put(0, 1, 2, b"topic", b"kept", 0)
        device.unmount()
        device.mount(readonly=True)
        store, found = opened(ROOT + "/mqtt")
        equal(found, [(0, 1, 2, 0, 0)])
        raises(StoreError, store.put, 1, 2, 2, b"topic", b"no", 0)
        raises(StoreError, store.tombstone, 0)
        equal(store.load(0), (b"topic", b"kept"))
        device.unmount()
        device.mount()
        equal(opened(ROOT + "/mqtt")[1], [(0, 1, 2, 0, 0)])


def test_a_full_or_read_only_file_system_raises_and_what_was_stored_stays():
    real = flash.__dict__.get("open", open)

    def refuse(error):
        raise error

    path = made_folder()
    for room in range(-1, 140, 7):
        store, _ = opened(path)
        outbox = Outbox(store, 8)
        outbox.report = refuse
        outbox.put(1, 2, b"topic", b"kept", 0)
        flash.open = Failing(real, room)
        try:
            raises(StoreError, outbox.put, 2, 2, b"topic", b"p" * 200, 60)
            equal(packet_ids(outbox), [1], room)
            if room < 0:
                raises(StoreError, outbox.remove, 1)
                equal(packet_ids(outbox), [1], room)
                equal(store.load(0), (b"topic", b"kept"))
        finally:
            flash.open = real
        outbox.put(2, 2, b"topic", b"there is room again", 0)
        outbox = Outbox(opened(path)[0], 8)
        equal(packet_ids(outbox), [1, 2], room)
        for packet_id in packet_ids(outbox):
            outbox.remove(packet_id)
