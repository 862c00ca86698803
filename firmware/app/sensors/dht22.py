"""temp_c and humidity_pct of a DHT22 (AM2302): {"module": "dht22", "pin": 4}

The sensor needs 2 s between two measurements; readings in between are sent without it.
"""

import time

import dht
from machine import Pin

_SHORTEST_MS = 2000


class Sensor:
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
        return {"temp_c": round(self._dht.temperature(), 1), "humidity_pct": round(self._dht.humidity(), 1)}
