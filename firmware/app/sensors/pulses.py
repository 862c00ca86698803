"""The count of a meter's pulses, for water, gas or electricity, which survives resets:

    {"module": "pulses", "pin": 4}                                                  pulses
    {"module": "pulses", "pin": 4, "metric": "water_m3", "per_pulse": 0.001}        water_m3

first: what the meter showed at pulse 0, in the unit of the metric (0). bounce_ms: an edge that follows another one
sooner is a bounce (20). Each falling edge counts. The count is written to /state/pulses-PIN before it is sent, so it
never falls; a power cut loses the pulses since the last reading. A board in deep sleep does not count.
"""

import time

from machine import Pin


class Sensor:
    folder = "/state"

    def __init__(self, pin, metric="pulses", per_pulse=1, first=0, bounce_ms=20):
        self._file = "%s/pulses-%s" % (self.folder, pin)
        self._count = self._kept = _read(self._file)
        self.metrics = {metric: (0, 1e12)}
        self._metric, self._per_pulse, self._first = metric, per_pulse, first
        self._bounce_ms = bounce_ms
        self._last_ms = time.ticks_add(time.ticks_ms(), -bounce_ms)
        self._pin = Pin(pin, Pin.IN, Pin.PULL_UP)
        self._pin.irq(self._pulse, Pin.IRQ_FALLING)

    def _pulse(self, pin):
        now = time.ticks_ms()
        if time.ticks_diff(now, self._last_ms) >= self._bounce_ms:
            self._count += 1
        self._last_ms = now

    def read(self):
        count = self._count
        if count != self._kept:
            _write(self._file, count)
            self._kept = count
        return {self._metric: round(self._first + count * self._per_pulse, 6)}


def _read(file):
    # Two copies: FAT, unlike littlefs, may keep half a file when the power is cut.
    best = 0
    for name in (file, file + ".1"):
        try:
            with open(name) as lines:
                number, again = lines.read().split()
                if number == again:
                    best = max(best, int(number))
        except (OSError, ValueError):
            pass
    return best


def _write(file, count):
    with open(file if count % 2 else file + ".1", "w") as lines:
        lines.write("%d %d" % (count, count))
