"""Starts the watchdog, and reads the reset cause and the chip's id: once, while the application is built."""

import binascii

import startup

# The longest timeout of the RP2040's watchdog, limited by the bits of its counter.
_LONGEST_RP2_MS = 8388
_PERIOD_MS = 2000


def start_watchdog(timeout_ms):
    """Start the watchdog and return it, or None if the board has none."""
    try:
        from machine import WDT
    except ImportError:
        return None
    try:
        startup.watchdog = WDT(timeout=timeout_ms)
    except ValueError:
        startup.watchdog = _ExtendedWatchdog(WDT(timeout=_LONGEST_RP2_MS), timeout_ms)
    return startup.watchdog


class _ExtendedWatchdog:
    # A name look-up can block for up to 14 s (ntp.py) in every boot: longer than the chip's watchdog waits. So after
    # each feed() a timer keeps feeding the chip's watchdog, until timeout_ms is nearly over.

    def __init__(self, dog, timeout_ms):
        from machine import Timer

        self._dog = dog
        self._most = max(0, timeout_ms - _LONGEST_RP2_MS) // _PERIOD_MS
        self._left = self._most
        self._timer = Timer(-1)
        self._timer.init(period=_PERIOD_MS, callback=self._tick)

    def feed(self):
        self._left = self._most
        self._dog.feed()

    def _tick(self, timer):
        if self._left:
            self._left -= 1
            self._dog.feed()


def reset_cause():
    """Return why the board started, as text for the status: pwron, wdt, hard, deepsleep, soft or unknown."""
    try:
        import machine

        cause = machine.reset_cause()
    except (ImportError, AttributeError):
        return "unknown"
    for name in ("PWRON", "WDT", "HARD", "DEEPSLEEP", "SOFT"):
        if getattr(machine, name + "_RESET", None) == cause:
            return name.lower()
    return "unknown"


def hardware_id(unique_id):
    """Return a device id made from the bytes of machine.unique_id(): lower-case hex."""
    return binascii.hexlify(unique_id).decode()
