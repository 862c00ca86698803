"""The `esp32` module of a virtual board that plays an esp32.

Hook "chip_celsius" (27 without it): what the chip's thermometer measures. raw_temperature() gives it in whole degrees
Fahrenheit on the ESP32, mcu_temperature() in whole degrees Celsius on its successors; each chip has one of the two.
NVS lasts until power-off.
"""

import os

from _virtual import hook

WAKEUP_ALL_LOW = False
WAKEUP_ANY_HIGH = True
HEAP_DATA = 4
HEAP_EXEC = 1

_ERR_NVS_NOT_FOUND = -4354
_ERR_NVS_INVALID_LENGTH = -4364

if (os.getenv("UMQTT_BOARD_CHIP") or "esp32") == "esp32":

    def raw_temperature():
        return round(hook("chip_celsius", 27.0) * 9 / 5 + 32)

else:

    def mcu_temperature():
        return int(hook("chip_celsius", 27.0) + 0.5)


def wake_on_ext0(pin=None, level=WAKEUP_ALL_LOW):
    pass


def wake_on_ext1(pins=None, level=WAKEUP_ALL_LOW):
    pass


def wake_on_touch(wake):
    pass


def wake_on_ulp(wake):
    pass


def gpio_deep_sleep_hold(enable):
    pass


def idf_heap_info(capabilities):
    """Return (total, free, largest free block, least ever free) of each region, as on an idle board with Wi-Fi up."""
    return [(113840, 61440, 53248, 53000), (15072, 15036, 15036, 15036)]


class NVS:
    """Integers and blobs by name. Blobs share the names of integers, as in flash."""

    _spaces = {}

    def __init__(self, namespace):
        self._values = NVS._spaces.setdefault(namespace, {})

    def set_i32(self, key, value):
        self._values[key] = value

    def get_i32(self, key):
        return self._get(key, int)

    def set_blob(self, key, value):
        self._values[key] = bytes(value)

    def get_blob(self, key, buffer):
        value = self._get(key, bytes)
        if len(value) > len(buffer):
            raise OSError(_ERR_NVS_INVALID_LENGTH, "ESP_ERR_NVS_INVALID_LENGTH")
        buffer[: len(value)] = value
        return len(value)

    def erase_key(self, key):
        self._get(key, object)
        del self._values[key]

    def commit(self):
        pass

    def _get(self, key, kind):
        value = self._values.get(key)
        if value is None or not isinstance(value, kind):
            raise OSError(_ERR_NVS_NOT_FOUND, "ESP_ERR_NVS_NOT_FOUND")
        return value
