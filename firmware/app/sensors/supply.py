"""supply_v: the voltage that feeds the board, through a divider on a pin.

    {"module": "supply", "pin": 35, "factor": 2}                  a divider of two equal resistors
    {"module": "supply", "pin": 29, "factor": 3, "select": 25}    Raspberry Pi Pico W and 2 W: VSYS

select: a pin that has to be high while measuring. On the Pico W and 2 W the radio also uses both pins, so there the
voltage is measured once, when the sensor is created and before Wi-Fi is switched on. Only the first reading of a
boot, or of a wake from deep sleep, contains it.
"""

from machine import ADC, Pin

from app.sensors.adc import open_adc


class Sensor:
    metrics = {"supply_v": (0, 60)}

    def __init__(self, pin, factor=1, select=None):
        self._factor = factor
        self._once = None
        self._shared = select is not None
        if self._shared:
            Pin(select, Pin.OUT, value=1)
            self._adc = ADC(Pin(pin, Pin.IN))
            self._once = self._volts()
        else:
            self._adc = open_adc(pin)

    def read(self):
        volts = self._once if self._shared else self._volts()
        self._once = None
        return {} if volts is None else {"supply_v": volts}

    def _volts(self):
        read_uv = getattr(self._adc, "read_uv", None)
        volts = read_uv() / 1_000_000 if read_uv else self._adc.read_u16() * 3.3 / 65535
        return round(volts * self._factor, 2)
