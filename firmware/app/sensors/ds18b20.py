"""temp_c of a DS18B20: {"module": "ds18b20", "pin": 4}

Several sensors on one wire give temp_XXXXXX_c each, named by the end of their ROM codes.

A conversion takes 750 ms. It is started that long before the reading, so nothing waits for it.
"""

from binascii import hexlify

import ds18x20
import onewire
from machine import Pin

# What the sensor holds after power-on, until it has measured.
_POWER_ON_C = 85.0


class Sensor:
    lead_ms = 750

    def __init__(self, pin):
        self._bus = ds18x20.DS18X20(onewire.OneWire(Pin(pin)))
        self._roms = [bytes(rom) for rom in self._bus.scan()]
        if not self._roms:
            raise OSError("no DS18B20 on pin %s" % pin)
        self._last = {}

    def start(self):
        self._bus.convert_temp()

    def read(self):
        metrics = {}
        for rom in self._roms:
            celsius = self._bus.read_temp(rom)
            if celsius == _POWER_ON_C and self._last.get(rom, 0) < _POWER_ON_C - 5:
                # It may have lost its power in between; a true 85 °C does not appear from one reading to the next.
                raise OSError("a DS18B20 had no power")
            self._last[rom] = celsius
            metrics["temp_c" if len(self._roms) == 1 else "temp_%s_c" % hexlify(rom[4:7]).decode()] = celsius
        return metrics
