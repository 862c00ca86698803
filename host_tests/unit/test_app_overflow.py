"""Readings that wait in flash beside the outbox: none is lost at a power cut, and what a full flash drops is noted."""

import gc
import json
import os

import _app_fakes as fakes
from app import application, overflow, room, telemetry
from app.gaps import Gaps
from app.telemetry import Telemetry
from umqtt_testkit.flash import PowerCutFlash
from umqtt_testkit.portable import FULL, Rng, equal, raises, skip

from umqtt_robust.errors import StoreError

HEAP = "4M"
_TOPIC = b"fleet/pump-7/telemetry"
_FOLDER = "/state/mqtt/later"


class _Client(fakes.Client):
    """A client whose outbox has 64 slots."""

    def __init__(self, pending=0):
        fakes.Client.__init__(self, 64)
        self.pending = pending


class _Sensors:
    lead_ms = 0

    def __init__(self, rng):
        self._rng = rng

    def read(self):
        metrics = {"temp_c": self._rng.below(400) / 16 - 10, "mem_free": 99000 + self._rng.below(999)}
        if not self._rng.below(6):
            metrics["sensor_failures"] = 1  # a record of other texts
        return metrics


class _Board:
    """Telemetry on the flash at `root`, as it is after a start, with a reading every 100 ms."""

    def __init__(self, root, client, rng, encoding="json", device_id="pump-7"):
        for name in ("/state", "/state/mqtt"):
            try:
                os.mkdir(root + name)
            except OSError:
                pass
        self.client = client
        self.ticks, clock = fakes.clock()
        self.log = fakes.Log()
        self.gaps = Gaps(root + "/gaps", fakes.identity().boot, self.log.report)
        self.telemetry = Telemetry(
            client, fakes.identity(device_id), clock, _Sensors(rng), 100, self.log.report, self.gaps,
            encoding=encoding, files=overflow.find(root + _FOLDER),
        )  # fmt: skip

    def step(self):
        self.telemetry.step()
        self.ticks.advance(100)

    def drain(self):
        """Let the broker take everything, without new readings."""
        self.telemetry.paused = True
        for _ in range(1000):
            self.telemetry.step()
            self.client.acknowledge()
            if not self.telemetry.waits():
                break

    def arrived(self):
        return [json.loads(payload)["seq"] for payload in self.client.payloads(_TOPIC)]


class _ShortFiles:
    """Files of 600 bytes instead of a block, so that a few readings fill several, on a flash of few blocks."""

    def __enter__(self):
        self._before = overflow.BLOCK, overflow.LEAST_FREE
        overflow.BLOCK, overflow.LEAST_FREE = 600, 4
        # In the bundle of the firmware, app.telemetry is a part of app.application.
        self._home = telemetry if hasattr(telemetry, "once") else application
        self._once = self._home.once
        self._home.once = lambda module, function, *arguments: getattr(overflow, function)(*arguments)

    def __exit__(self, kind, error, trace):
        overflow.BLOCK, overflow.LEAST_FREE = self._before
        self._home.once = self._once


def test_a_power_cut_loses_no_reading_that_waits():
    # Planted: all of a file counts as handed on with its first reading.
    def scenario(root, ledger):
        board = _Board(root, _Client(32), Rng(5, quiet=True))
        for _ in range(14):
            board.step()
            ledger["kept"] = board.telemetry.seq
        board.client.acknowledge()
        board.telemetry.paused = True
        for _ in range(3):
            publish = board.client.publish

            def noted(*arguments, **more):
                publish(*arguments, **more)
                ledger["given"] = board.arrived()

            board.client.publish = noted
            board.telemetry.step()
            board.client.acknowledge()

    def check(root, ledger):
        board = _Board(root, _Client(), Rng(6, quiet=True))
        board.drain()
        equal(board.gaps.unreadable, 0)
        later = board.arrived()
        equal(later, sorted(later))
        missing = set(range(ledger.get("kept", 0))) - set(ledger.get("given", ())) - set(later)
        assert not missing, missing

    with PowerCutFlash("esp32") as flash, _ShortFiles():
        flash.sweep(scenario, check, None if FULL else 150)


def test_readings_keep_their_order_and_every_byte():
    # Planted: a number that is equal to that of the file's first reading is taken for a missing one.
    for encoding in ("json", "cbor"):
        with PowerCutFlash("rp2", 64) as flash, _ShortFiles():
            client = _Client()
            board = _Board("/flash", client, Rng(7), encoding)
            taken = []
            telemetry.on_published.append(taken.append)
            try:
                rng = Rng(8)
                for _ in range(300):
                    board.step()
                    if not rng.below(30):
                        client.acknowledge()
                board.drain()
            finally:
                telemetry.on_published.remove(taken.append)
            found = client.payloads(_TOPIC)
            equal(len(found), len(taken))
            for i in range(len(taken)):
                equal(found[i], taken[i])
            assert sum(flash.flash.erases), "nothing waited in flash"


def test_a_record_may_end_with_a_number():
    # CBOR may: 0x31 is a part of a number. Planted: what is read ends with the last text once more.
    if not hasattr(os, "ilistdir"):
        skip("littlefs is in MicroPython only")
    with PowerCutFlash("esp32"):
        board = _Board("/flash", _Client(32), Rng(18))
        records = [b"a1", b"a2", b"a2b", b"a", b"a1b3", b"a22"]
        for record in records:
            overflow.keep(board.telemetry, record)
        found = []
        while board.telemetry.waits():
            overflow._take(board.telemetry, found.append)
        equal(found, records)


def test_a_full_flash_drops_the_oldest_readings_and_notes_them():
    # Planted: nothing is noted; the newest are dropped.
    with PowerCutFlash("esp32"), _ShortFiles():
        board = _Board("/flash", _Client(32), Rng(9))
        for _ in range(400):
            board.step()
        assert board.telemetry.dropped
        board.client.acknowledge()
        board.drain()
        found = board.arrived()
        equal(found, list(range(board.telemetry.dropped, 400)))
        board.gaps.step(board.client, 64)
        equal(board.log.records[-1][2]["dropped_seq"], [[0, board.telemetry.dropped - 1]])


def test_the_readings_of_a_dropped_file_are_noted_in_one_write_before_it_is_removed():
    # A write for each of 160 readings took longer than a watchdog waits. Planted: each reading is noted by itself; the
    # file is removed first.
    with PowerCutFlash("esp32"), _ShortFiles():
        board = _Board("/flash", _Client(32), Rng(23))
        while not board.telemetry.waits() or board.telemetry.files[2] < 3:
            board.step()
        noted = []
        write = board.gaps.write

        def counted():
            noted.append(sorted(os.listdir("/flash" + _FOLDER))[0])
            write()

        board.gaps.write = counted
        overflow._drop_oldest(board.telemetry)
        assert board.telemetry.dropped > 1
        equal(noted, ["0"])
        gaps = Gaps("/flash/gaps", "", board.log.report)
        first, last = gaps._gaps[fakes.identity().boot][0]
        equal(last - first + 1, board.telemetry.dropped)


def _fill(name):
    """Fill the flash; return the name."""
    piece = 4096
    while piece:
        try:
            with open(name, "ab") as file:
                file.write(bytes(piece))
        except OSError:
            piece //= 4
    return name


def test_a_flash_full_of_other_files_costs_the_readings_that_do_not_fit():
    # Planted: a file that could not be made counts as one that holds readings; a folder that could not be made is an
    # error.
    for has_folder in (False, True):
        with PowerCutFlash("esp32", 64), _ShortFiles():
            board = _Board("/flash", _Client(32), Rng(15))
            if has_folder:
                os.mkdir("/flash" + _FOLDER)
            for waiting in (0, 7):
                for _ in range(waiting):
                    board.step()
                before = board.telemetry.seq
                name = _fill("/flash/other")
                for _ in range(5):
                    board.step()
                os.remove(name)
                assert board.telemetry.dropped
                for _ in range(5):
                    board.step()
                equal(board.telemetry.seq, before + 10)
            board = _Board("/flash", _Client(), Rng(16))
            board.drain()
            equal(board.gaps.unreadable, 0)
            noted = [seq for first, last in board.gaps._gaps[fakes.identity().boot] for seq in range(first, last + 1)]
            equal(sorted(set(board.arrived() + noted)), list(range(27)))


def test_a_file_for_which_there_was_no_memory_is_made_for_the_next_reading():
    if not hasattr(os, "ilistdir"):
        skip("littlefs is in MicroPython only")
    with PowerCutFlash("esp32"), _ShortFiles():
        board = _Board("/flash", _Client(32), Rng(17))
        real = open

        def fails(name, mode="r"):
            if mode != "rb":
                raise MemoryError
            return real(name, mode)

        for waiting in (0, 30):
            for _ in range(waiting):
                board.step()
            overflow.open = fails
            for _ in range(12):  # one of them needs a new file
                raises(MemoryError, board.telemetry._take, 0)
            overflow.open = real
            board.step()
        board.drain()
        equal(len(board.arrived()), 32)


def test_a_failing_flash_ends_the_use_of_the_outbox_in_flash():
    with PowerCutFlash("esp32") as flash:
        board = _Board("/flash", _Client(32), Rng(10))
        board.step()
        flash.unmount()
        flash.mount(readonly=True)
        raises(StoreError, board.step)
        equal(board.telemetry.dropped, 1)


def test_a_damaged_file_costs_the_readings_behind_the_damage_and_is_reported():
    with PowerCutFlash("fat", 64), _ShortFiles():
        board = _Board("/flash", _Client(32), Rng(11))
        for _ in range(20):
            board.step()
        name = "/flash" + _FOLDER + "/0"
        with open(name, "rb") as file:
            data = file.read()
        with open(name, "wb") as file:
            file.write(data[:-3])
        board = _Board("/flash", _Client(), Rng(12))
        board.drain()
        equal(board.gaps.unreadable, 1)
        lost = set(range(20)) - set(board.arrived())
        assert len(lost) == 1, lost


def test_what_waits_goes_out_after_outbox_was_set():
    # Planted: with `outbox` set, the files are not looked at.
    if not hasattr(os, "ilistdir"):
        skip("littlefs is in MicroPython only")
    with PowerCutFlash("esp32"):
        board = _Board("/flash", _Client(32), Rng(13))
        for _ in range(50):
            board.step()
        client = _Client()
        client.slots = client.room = 3
        board = _Board("/flash", client, Rng(14))
        board.drain()
        equal(board.arrived(), list(range(50)))


class _SlowLink(_Client):
    """A client whose link takes 20 messages at each wake, and then no more; the outbox stays."""

    connected = subscribed = True
    received = left = 0
    inbound = None
    closed = False

    def step(self):
        while self.left and self.pending:
            self.left -= 1
            self.pending -= 1

    def disconnect(self):
        self.closed = True


class _Sleepy:
    """What app.sleep needs of the other parts of a board: nothing is in its way."""

    on_trial = trial = update = asked = busy = False
    boot_count, random_bits = 1, bytes(8)

    def keep(self, *arguments, **more):
        pass

    mark = off = say = step = keep


class _Asleep(Exception):
    pass


def test_a_sleeping_board_gets_on_with_what_waits_however_little_each_wake_delivers():
    # Planted: it is forgotten at each sleep how much of a file was handed on.
    from app import sleep

    if not hasattr(os, "ilistdir"):
        skip("littlefs is in MicroPython only")

    def fall_asleep(ms, keep):
        raise _Asleep

    deepsleep, sleep._deepsleep = sleep._deepsleep, fall_asleep
    try:
        with PowerCutFlash("esp32", 64), _ShortFiles():
            overflow.BLOCK = 4096
            client = _SlowLink(32)
            board = _Board("/flash", client, Rng(20))
            for _ in range(150):
                board.step()
            for wake in range(150, 170):
                client.left, client.closed = 20, False
                board = _Board("/flash", client, Rng(wake))
                board.update = board.trial = board.ntp = None
                board.boots = board.restart = board.commands = board.status = board.wifi = board.identity = _Sleepy()
                board.log.step = _Sleepy().step
                board.clock, board.settings = board.telemetry._clock, {"sleep_s": 60}
                board.telemetry.seq = wake
                sleeper = sleep.Sleeper(board)
                try:
                    while True:
                        board.telemetry.step()
                        client.step()
                        sleeper.step()
                        board.ticks.advance(50)
                except _Asleep:
                    pass
            board.client.left = 1000
            board.drain()
            equal(board.arrived(), list(range(170)))
    finally:
        sleep._deepsleep = deepsleep


def test_readings_of_an_earlier_device_id_go_on_its_topic():
    # As in the outbox: ingestion refuses a record with another id. Planted: they go on the topic of the new id.
    if not hasattr(os, "ilistdir"):
        skip("littlefs is in MicroPython only")
    before = ("pump-7", "pump-77", "p" * 30)
    for encoding in ("json", "cbor"):
        with PowerCutFlash("esp32", 64):
            for device_id in before:
                board = _Board("/flash", _Client(32), Rng(21), encoding, device_id)
                for _ in range(3):
                    board.step()
            client = _Client()
            _Board("/flash", client, Rng(22), encoding, "pump-7").drain()
            topics = [one[0].decode() for one in client.published]
            equal(topics, ["fleet/%s/telemetry" % device_id for device_id in before for _ in range(3)], encoding)


def test_at_a_boot_hundreds_of_files_take_no_more_memory_than_ten():
    # A list of them was more than the smallest heaps have at that moment: boards restarted for ever. Planted: a list.
    if not hasattr(gc, "mem_alloc"):
        skip("CPython does not tell what its heap holds")
    used = []

    class Os:
        @staticmethod
        def ilistdir(folder):
            for i in range(400):
                if i in (10, 399):
                    gc.collect()
                    used.append(gc.mem_alloc())
                yield "%d" % (1000 + i), 0x8000, 0, 4096

    overflow.os = Os
    try:
        equal(overflow.find("later"), ["later", 1000, 1400, 0])
    finally:
        overflow.os = os
    assert used[1] - used[0] < 512, used


def test_room_and_years_of_the_flash():
    # 95 blocks for readings, 38 readings a block, one a minute; wear as in docs/flash.md.
    hours, years = room.room(127, 256, 100, 60_000, None)
    equal((round(hours, 1), round(years)), (60.2, 193))
    equal(room.describe(hours, years), "room for 60.2 hours without a broker; the flash lasts 193.2 years")
    equal(round(room.room(127, 256, 100, 1000, 64)[0] * 3600), 64)
    equal(room.room(20, 32, 100, 1000, None)[0], 0)


def test_the_room_that_a_board_tells_is_there_with_each_encoding():
    # Planted: CBOR is taken to be shortened like JSON.
    if not hasattr(os, "ilistdir"):
        skip("littlefs is in MicroPython only")
    for encoding in ("json", "cbor"):
        with PowerCutFlash("esp32", 64):
            board = _Board("/flash", _Client(32), Rng(19), encoding)
            board.settings = {"outbox": None, "encoding": encoding, "sleep_s": 0}
            board.state_folder, board.clock, board.extra = "/flash/state", board.telemetry._clock, {}
            board.status = board
            board.step()
            files = board.telemetry.files
            before = room.free("/flash") - 32
            board.telemetry.interval_ms = 3_600_000
            room.tell(board)
            board.telemetry.interval_ms = 100
            in_block = board.extra["room_h"] / before
            while files[2] < 4:
                board.step()
            found = board.telemetry.seq // 3
            assert 0.9 * in_block < found < 1.3 * in_block, (found, in_block, encoding)
