"""A day of a board in virtual time, with outages, reconnects and commands, grows no heap and starves no watchdog.

`make test` runs the first nine hours, with three outages of each kind; UMQTT_FULL_SWEEPS=1 runs all 24
(`make prove-firmware`).
"""

import gc
import json
import sys
import time

from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import Clock, equal, skip
from world import FULL, Broker, Wire

HEAP = "1M"
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

    def __init__(self):
        # Continues the real clock, which the application read before everything was replaced.
        self.clock = clock = Clock(time.ticks_ms() & 0x3FFFFFFF)
        self.broker = Broker()
        self.wire = None
        self.readings = 0
        self.replies = []
        Dog.clock = clock
        self.dog = Dog()
        self.modules = {name: sys.modules.get(name) for name in ("machine", "umqtt_robust.transport")}
        sys.modules["machine"] = Machine(self.dog)
        import startup

        startup.now = startup.Startup(ROOT, 1)
        startup.now.begin()
        with open(ROOT + "/settings.json", "w") as file:
            json.dump({"device_id": _ID, "brokers": ["mqtt://b"], "interval_ms": _INTERVAL_MS, "ntp_host": "",
                       "watchdog_ms": _WATCHDOG_MS, "outbox": 24}, file)  # fmt: skip
        import umqtt_robust.transport

        self._tcp = umqtt_robust.transport.TCP
        umqtt_robust.transport.TCP = self._connect
        from app import assembly, assembly_client, assembly_parts, assembly_readings
        from app.settings_files import load

        assembly.time = VirtualTime(clock)
        settings, secrets = load(ROOT)
        self.board = board = assembly.begin(ROOT, settings)
        assembly_client.add_client(board, secrets)
        assembly_parts.add_parts(board, secrets)
        assembly_readings.add_readings(board)
        umqtt_robust.transport.TCP = self._tcp
        board.client.ticks = clock.ticks_ms
        board.client.random = lambda n: n // 2
        from app.application import Application

        self.application = Application(board, clock.sleep_ms)
        parts = ("assembly", "assembly_client", "assembly_parts", "assembly_readings")
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

    def run(self, ms):
        passes = 0
        while ms > 0:
            wait = self.application.step()
            wait = min(wait, self.board.client.tick())
            while self.wire and self.wire.alive and self.wire.down:
                self.board.client.tick()
            self._forget()
            wait = max(1, wait)
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
        day = Day()
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
