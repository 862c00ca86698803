"""What the chip is asked once, while the application is made: its watchdog, why it started, its number."""

import binascii

import startup

# The counter of the RP2040's watchdog has no more bits.
_LONGEST_RP2_MS = 8388
_PERIOD_MS = 2000


def start_watchdog(timeout_ms):
    """Begin to be watched. None where the board has no watchdog."""
    try:
        from machine import WDT
    except ImportError:
        return None
    try:
        startup.watchdog = WDT(timeout=timeout_ms)
    except ValueError:
        startup.watchdog = _Patient(WDT(timeout=_LONGEST_RP2_MS), timeout_ms)
    return startup.watchdog


class _Patient:
    # A look-up of a name waits for up to 14 s (ntp.py), in every boot again: longer than the chip's watchdog does. So a
    # timer feeds that one after the loop has, for as long as timeout_ms lets it.

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
    """Why the board started, as text for the status: power on, watchdog, reset, deep sleep, soft reset or unknown."""
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
    """A device id from the bytes of machine.unique_id(): lower-case hex."""
    return binascii.hexlify(unique_id).decode()
