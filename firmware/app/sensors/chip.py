"""chip_c: the temperature inside the microcontroller in °C; coarse, and always some degrees above the air."""

import sys


class Sensor:
    """The chip's thermometer. Raises OSError on a chip without one that MicroPython can read."""

    metrics = {"chip_c": (-40, 150)}

    def __init__(self):
        self._celsius = _esp32() if sys.platform == "esp32" else _rp2()

    def read(self):
        return {"chip_c": round(self._celsius(), 1)}


def _esp32():
    esp32 = __import__("esp32")  # other ports and their type stubs do not have it
    # ESP32-S2, S3, C3 and later in °C; the first ESP32 in °F.
    if hasattr(esp32, "mcu_temperature"):
        return esp32.mcu_temperature
    return lambda: (esp32.raw_temperature() - 32) / 1.8


def _rp2():
    if sys.platform != "rp2":
        raise OSError("only on esp32 and rp2")
    from machine import ADC

    adc = ADC(getattr(ADC, "CORE_TEMP", 4))
    # RP2040 datasheet, 4.9.5: 0.706 V at 27 °C, and 1.721 mV less for each degree; the reference is 3.3 V.
    return lambda: 27 - (adc.read_u16() * 3.3 / 65535 - 0.706) / 0.001721
