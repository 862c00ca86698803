"""The chip is asked at the start why it started, as far as each port can tell, and for its watchdog."""

import sys

import startup
from app.hardware import reset_cause, start_watchdog
from umqtt_testkit.portable import equal


class Esp32:
    PWRON_RESET, HARD_RESET, WDT_RESET, DEEPSLEEP_RESET, SOFT_RESET = 1, 2, 3, 4, 5

    def __init__(self, cause):
        self.cause = cause
        self.timeouts = []
        self.now = self.fed = self.fed_at = 0

    def reset_cause(self):
        return self.cause

    def WDT(self, timeout):
        self.timeouts.append(timeout)
        return self


class Rp2(Esp32):
    # There, a reset by command is one by the watchdog, and the other causes do not exist.
    PWRON_RESET, WDT_RESET = 1, 3
    HARD_RESET = DEEPSLEEP_RESET = SOFT_RESET = None

    def WDT(self, timeout):
        if timeout > 8388:
            raise ValueError("timeout exceeds 8388")
        return Esp32.WDT(self, timeout)

    def Timer(self, number):
        equal(number, -1)
        return self

    def init(self, period, callback):
        self.period = period
        self.callback = callback

    def feed(self):
        self.fed_at = self.now
        self.fed += 1


class _Machine:
    """Replaces the module machine within a `with` block; None: there is none."""

    def __init__(self, machine):
        self._machine = machine

    def __enter__(self):
        self._before = sys.modules.get("machine")
        sys.modules["machine"] = self._machine
        return self._machine

    def __exit__(self, *_):
        startup.watchdog = None
        if self._before:
            sys.modules["machine"] = self._before
        else:
            del sys.modules["machine"]


def test_the_status_tells_every_cause_of_a_reset_that_the_port_tells():
    for cause, text in ((1, "pwron"), (2, "hard"), (3, "wdt"), (4, "deepsleep"), (5, "soft"), (9, "unknown")):
        with _Machine(Esp32(cause)):
            equal(reset_cause(), text)
    for cause, text in ((1, "pwron"), (3, "wdt"), (2, "unknown")):
        with _Machine(Rp2(cause)):
            equal(reset_cause(), text)


def test_without_such_a_function_the_cause_is_unknown():
    class Bare:
        pass

    with _Machine(Bare()):
        equal(reset_cause(), "unknown")


def bites_after(machine):
    """Return after how many ms the watchdog of an Rp2 bites if the loop stops now."""
    since = machine.now
    while machine.now - machine.fed_at < 8388:
        machine.now += machine.period
        if machine.now - machine.fed_at < 8388:
            machine.callback(machine)
    return machine.fed_at + 8388 - since


def test_a_watchdog_is_as_long_as_asked_also_where_the_chip_s_own_is_shorter():
    with _Machine(Esp32(1)) as machine:
        assert start_watchdog(30_000) is startup.watchdog is machine
        equal(machine.timeouts, [30_000])
    with _Machine(Rp2(1)) as machine:
        assert start_watchdog(5_000) is startup.watchdog is machine
        equal(machine.timeouts, [5_000])
    for timeout_ms in (9_000, 30_000, 60_000):
        for passes in (0, 3):
            with _Machine(Rp2(1)) as machine:
                dog = start_watchdog(timeout_ms)
                equal(machine.timeouts, [8388])
                for _ in range(passes):
                    machine.now += 7_000
                    dog.feed()
                assert timeout_ms - 2_000 < bites_after(machine) <= timeout_ms, timeout_ms


def test_a_board_without_a_watchdog_runs_without_one():
    class Bare:
        pass

    with _Machine(Bare()):
        equal(start_watchdog(30_000), None)
        equal(startup.watchdog, None)
