"""temp_c of a DS18B20: {"module": "ds18b20", "pin": 4}

Several sensors on one wire give temp_XXXXXX_c each, named by their ROM codes. The first sensor that is alone on the pin
gives temp_c; later ones are named by their ROM codes. Each keeps its name for ever, in /state/ds18b20-PIN. A sensor
that fails is left out, and the others are read.

A conversion takes 750 ms. It is started that long before the reading, so nothing waits for it.
"""

from binascii import hexlify, unhexlify

import ds18x20
import onewire
from machine import Pin

# What the sensor holds after power-on, until it has measured.
_POWER_ON_C = 85.0


class Sensor:
    lead_ms = 750
    folder = "/state"
    metrics = {"temp_c": (-55, 125)}

    def __init__(self, pin):
        wire = onewire.OneWire(Pin(pin))
        self._bus = ds18x20.DS18X20(wire)
        file = "%s/ds18b20-%s" % (self.folder, pin)
        self._names = names = _read(file)
        known = len(names)
        # A code that was read wrong is no sensor.
        new = [rom for rom in [bytes(rom) for rom in self._bus.scan()] if rom not in names and not wire.crc8(rom)]
        for rom in new:
            name = "temp_%s_c" % hexlify(rom[4:7]).decode()
            if name in names.values():  # many codes of one batch end alike
                name = "temp_%s_c" % hexlify(rom[1:7]).decode()
            names[rom] = "temp_c" if len(new) == 1 and not known else name
        if not names:
            raise OSError("no DS18B20 on pin %s" % pin)
        if new:
            _write(file, names)
        self.metrics = dict.fromkeys(names.values(), (-55, 125))
        self._last = {}
        self.problem = None

    def start(self):
        self._bus.convert_temp()

    def read(self):
        metrics = {}
        self.problem = None
        for rom in self._names:
            try:
                metrics[self._names[rom]] = self._read(rom)
            except Exception as error:  # noqa: BLE001 - the driver raises plain ones too
                self.problem = "%s: %r" % (hexlify(rom).decode(), error)
        return metrics

    def _read(self, rom):
        celsius = self._bus.read_temp(rom)
        if celsius == 0 and not any(self._bus.read_scratch(rom)):
            raise OSError("the wire is shorted: it reads all zeros")  # whose checksum is right
        if celsius == _POWER_ON_C and self._last.get(rom, 0) < _POWER_ON_C - 5:
            # It may have lost its power in between; a true 85 °C does not appear from one reading to the next.
            raise OSError("it had no power")
        self._last[rom] = celsius
        return celsius


def _read(file):
    # Returns {ROM code: name of its metric}.
    names = {}
    try:
        with open(file) as lines:
            for line in lines:
                rom, name = line.split()
                names[unhexlify(rom)] = name
    except (OSError, ValueError):
        pass  # none was there yet; or FAT left half a file
    return names


def _write(file, names):
    try:
        with open(file, "w") as lines:
            lines.write("".join(["%s %s\n" % (hexlify(rom).decode(), names[rom]) for rom in names]))
    except OSError:
        pass  # the names last until the next boot
