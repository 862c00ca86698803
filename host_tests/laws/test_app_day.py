"""A day of a board in virtual time, with outages, reconnects and commands, grows no heap and starves no watchdog.

`make test` runs the first nine hours, with three outages of each kind; UMQTT_FULL_SWEEPS=1 runs all 24
(`make prove-firmware`).
"""

import gc
import json
import os
import sys
import time

from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import Clock, Rng, equal, skip
from world import FULL, Broker, Wire

HEAP = "8M"
TIMEOUT_S = 600

_HOURS = 24 if FULL else 9
_HOUR_MS = 3_600_000
_INTERVAL_MS = 10_000
_WATCHDOG_MS = 8_000
# Garbage collection is conservative: a stale word on the stack can retain a few blocks, some 600 bytes. A leak of one
# byte per reading would be 1.6 KB in half of nine hours, 4 KB in half a day.
_SLACK_BYTES = 1024
_ID = "day"


class Dog:
    """The watchdog, and those parts of the module machine that the application uses."""

    PWRON_RESET, HARD_RESET, WDT_RESET, DEEPSLEEP_RESET, SOFT_RESET = 1, 2, 3, 4, 5
    clock = None

    def __init__(self):
        self.longest = 0
        self.times = 0
        self._fed_at = self.clock.ticks_ms()

    def feed(self):
        now = self.clock.ticks_ms()
        self.longest = max(self.longest, self.clock.ticks_diff(now, self._fed_at))
        self._fed_at = now
        self.times += 1


class Day:
    """The application on a virtual flash, with a virtual network; run() advances the time."""

    def __init__(self, settings):
        # Continues the real clock, which the application read before everything was replaced.
        self.clock = clock = Clock(time.ticks_ms() & 0x3FFFFFFF)
        self.broker = Broker()
        self.wire = None
        self.readings = 0
        self.seqs = None  # or the list of what has arrived, which takes heap
        self.replies = []
        Dog.clock = clock
        self.dog = Dog()
        self.modules = {name: sys.modules.get(name) for name in ("machine", "umqtt_robust.transport")}
        sys.modules["machine"] = Machine(self.dog)
        import boot_choice
        import startup

        startup.now = boot_choice.read_boots(ROOT, 1)
        boot_choice.begin(startup.now)
        with open(ROOT + "/settings.json", "w") as file:
            always = {"device_id": _ID, "brokers": ["mqtt://b"], "ntp_host": "", "watchdog_ms": _WATCHDOG_MS}
            always.update(settings)
            json.dump(always, file)
        import umqtt_robust.transport

        self._tcp = umqtt_robust.transport.TCP
        umqtt_robust.transport.TCP = self._connect
        from app import build_board, build_client, build_radio, build_readings
        from app.settings_files import load

        build_board.time = VirtualTime(clock)
        settings, secrets = load(ROOT)
        self.board = board = build_board.begin(ROOT, settings)
        build_client.add_client(board, secrets)
        build_radio.add_parts(board, secrets)
        build_readings.add_readings(board)
        umqtt_robust.transport.TCP = self._tcp
        board.client.ticks = clock.ticks_ms
        board.client.random = lambda n: n // 2
        from app.application import Application

        self.application = Application(board, clock.sleep_ms)
        parts = ("build_board", "build_client", "build_radio", "build_readings")
        for name in parts + ("settings", "settings_files"):  # noqa: RUF005 - MicroPython
            sys.modules.pop("app." + name, None)

    def close(self):
        for name in self.modules:
            if self.modules[name]:
                sys.modules[name] = self.modules[name]
            else:
                sys.modules.pop(name, None)

    def _connect(self, host, port):
        if self.broker.down:
            raise OSError(111)
        self.wire = Wire(self.broker)
        return self.wire

    def run(self, ms, pass_ms=1):
        passes = 0
        while ms > 0:
            wait = self.application.step()
            wait = min(wait, self.board.client.tick())
            while self.wire and self.wire.alive and self.wire.down:
                self.board.client.tick()
            self._forget()
            wait = max(pass_ms, wait)
            self.clock.advance(wait)
            ms -= wait
            passes += 1
        return passes

    def _forget(self):
        # The broker's record would count as a leak of the board.
        broker = self.broker
        for topic, payload in broker.taken:
            if topic.endswith(b"/telemetry"):
                self.readings += 1
                if self.seqs is not None:
                    self.seqs.append(json.loads(payload)["seq"])
            elif topic.endswith(b"/reply"):
                self.replies.append(json.loads(payload)["ok"])
        broker.taken.clear()
        broker.seen.clear()
        broker.connects.clear()
        if self.wire:
            self.wire.recorded.clear()

    def command(self, number, name, **args):
        payload = json.dumps({"id": "c%d" % number, "cmd": name, "args": args}).encode()
        assert self.broker.send(_ID.encode(), b"fleet/day/cmd", payload, 2), "no subscription"

    def outage(self, ms):
        self.broker.down = True
        if self.wire:
            self.wire.break_now()
        self.run(ms)
        self.broker.down = False


class Machine:
    """A stand-in for the module machine."""

    PWRON_RESET, HARD_RESET, WDT_RESET, DEEPSLEEP_RESET, SOFT_RESET = 1, 2, 3, 4, 5

    def __init__(self, dog):
        self._dog = dog

    def WDT(self, timeout):
        equal(timeout, _WATCHDOG_MS)
        return self._dog

    def reset_cause(self):
        return self.PWRON_RESET


class VirtualTime:
    """A stand-in for the module time."""

    def __init__(self, clock):
        self.ticks_ms, self.ticks_diff, self.sleep_ms = clock.ticks_ms, clock.ticks_diff, clock.sleep_ms

    def time_ns(self):
        return 0

    def gmtime(self, *seconds):
        return time.gmtime(*seconds)


def _allocated():
    gc.collect()
    return gc.mem_alloc()


def test_a_day_of_outages_and_commands_neither_grows_the_heap_nor_misses_the_watchdog():
    # Planted: a few bytes stay in RAM for every reading.
    if not hasattr(gc, "mem_alloc"):
        skip("the heap of MicroPython is what is measured")
    from startup import STEADY

    with PowerCutFlash("esp32", 96):
        day = Day({"interval_ms": _INTERVAL_MS, "outbox": 24})
        try:
            heap = []
            number = 0
            for line in range(40):  # fill the log's ring now: outages alone would take half a day
                day.board.log.report("info", "%d %s" % (line, "x" * 60))
            for hour in range(_HOURS):
                day.run(_HOUR_MS - 900_000)
                for name, args in (
                    ("ping", {}),
                    ("get", {"key": "interval_ms"}),
                    ("read", {"path": "/state"}),
                    ("set", {"key": "log_level", "value": "warning"}),
                    ("crash", {}),
                ):
                    number += 1
                    day.command(number, name, **args)
                    day.run(60_000)
                if hour % 3 == 0:
                    day.outage(600_000)  # longer than the outbox lasts: the oldest readings are dropped and reported
                elif hour % 3 == 1:
                    day.wire.break_now()
                    day.run(600_000)
                else:
                    day.wire.mute = True  # the link takes bytes and delivers none
                    day.run(600_000)
                heap.append(_allocated())
                equal(day.broker.faults, [])
            day.run(60_000)
            print("heap in use at the end of each hour", heap, "fed", day.dog.times, "longest ms", day.dog.longest)
            equal((len(day.replies), False in day.replies), (number, False))
            assert day.dog.longest < _WATCHDOG_MS // 2, day.dog.longest
            # The first half needs everything for the first time: lists and dicts reach their full size.
            second_half = heap[_HOURS // 2 :]
            assert max(second_half) - min(second_half) <= _SLACK_BYTES, heap
            assert max(heap) - heap[0] <= 5 * _SLACK_BYTES, heap
            dropped = _HOURS // 3 * (60 - 24)
            wanted = _HOURS * 360
            assert wanted - dropped - 60 < day.readings <= wanted + 400, day.readings
            equal(day.board.boots.state(), STEADY)
        finally:
            day.close()


# Blocks of the file system that the firmware fills, at most (umqtt size --board).
_PROGRAM_BLOCKS = 85


class Sensors:
    """A stand-in for the sensors of a README: their values are as long as real ones."""

    def __init__(self):
        self._rng = Rng(49)

    def read(self):
        def noise(n):
            return self._rng.below(n)

        return {"temp_c": (2000 + noise(99)) / 100, "humidity_pct": (400 + noise(99)) / 10, "rssi": -50 - noise(30),
                "pressure_hpa": (100000 + noise(999)) / 100, "wire_temp_c": 20 + noise(99) / 16,
                "room_temp_c": (200 + noise(99)) / 10, "room_humidity_pct": (400 + noise(99)) / 10,
                "chip_c": (300 + noise(9)) / 10, "mem_free": 100000 + 32 * noise(99)}  # fmt: skip


def _outage(board, hours):
    # Planted: the outbox alone keeps readings; all of a file counts as handed on with its first reading.
    if not hasattr(gc, "mem_alloc"):
        skip("littlefs is in MicroPython only")
    with open(__file__.rsplit("/", 3)[0] + "/boards/%s/board.json" % board) as file:
        littlefs = json.load(file)["littlefs"]
    from app import overflow, telemetry

    # Compiled once: boards load compiled modules.
    telemetry.once = lambda module, function, *arguments: getattr(overflow, function)(*arguments)
    geometry = "rp2" if littlefs["program_size"] == 256 else "esp32"
    with PowerCutFlash(geometry, littlefs["block_count"] - _PROGRAM_BLOCKS):
        day = Day({})
        try:
            day.seqs = []
            day.flash_blocks = os.statvfs(ROOT)[3]
            day.board.sensors.add("readme", Sensors())
            day.broker.down = True
            day.run(hours * _HOUR_MS, 10_000)  # ten times as fast as the main loop
            taken = day.board.telemetry.seq
            assert taken >= hours * 60, taken
            files = day.board.telemetry.files
            print(board, taken, "readings in", files[2] - files[1], "files")
            room_h = day.board.status.extra["room_h"]
            assert room_h > 24, room_h
            # What was promised: no file holds fewer readings.
            promised = room_h * 60 / (day.flash_blocks - 32)
            assert (files[2] - files[1] - 1) * promised < taken, (files, promised)
            day.run(1000)
            day.dog.longest = 0
            day.broker.down = False
            day.run(600_000)
            equal((day.seqs[:taken], day.board.telemetry.dropped), (list(range(taken)), 0))
            equal(day.broker.faults, [])
            assert day.dog.longest < _WATCHDOG_MS // 2, day.dog.longest
        finally:
            day.close()


def test_with_default_settings_the_smallest_flash_has_room_for_a_day_without_a_broker():
    _outage("RPI_PICO_W", 24 if FULL else 6)


def test_each_board_with_default_settings_loses_nothing_in_a_day_without_a_broker():
    if not FULL:
        skip("a sweep of `make prove-firmware`")
    for board in ("RPI_PICO2_W", "ESP32_GENERIC", "ESP32_GENERIC_C3", "ESP32_GENERIC_C6", "ESP32_GENERIC_S3"):
        _outage(board, 24)
