"""temp_c and humidity_pct of a DHT22 (AM2302): {"module": "dht22", "pin": 4}

The sensor needs 2 s between two measurements; readings in between are sent without it. Clones of the chip send
temperatures below 0 °C in two's complement instead of with a sign.
"""

import time

import dht
from machine import Pin

_SHORTEST_MS = 2000


class Sensor:
    metrics = {"temp_c": (-40, 80), "humidity_pct": (0, 100)}

    def __init__(self, pin):
        self._dht = dht.DHT22(Pin(pin))
        self._measured_at = None

    def read(self):
        now = time.ticks_ms()
        if self._measured_at is not None and time.ticks_diff(now, self._measured_at) < _SHORTEST_MS:
            return {}
        self._measured_at = now
        # Up to 25 ms with interrupts off for most of it: the protocol is timed in microseconds.
        self._dht.measure()
        celsius, percent = self._dht.temperature(), self._dht.humidity()
        if percent > 100:
            raise OSError("%.1f %% of humidity: a DHT11, or a bad wire" % percent)
        if not celsius and not percent:
            raise OSError("it reads all zeros: a bad wire")  # whose checksum is right
        if celsius < -1000:
            celsius = -celsius - 3276.8
        return {"temp_c": round(celsius, 1), "humidity_pct": round(percent, 1)}
