"""weight_kg of a load cell behind an Avia HX711:

    {"module": "hx711", "data": 4, "clock": 5}                                     weight_raw, to find the two numbers
    {"module": "hx711", "data": 4, "clock": 5, "zero": 81500, "per_kg": 21300}     weight_kg

zero is weight_raw without a load, per_kg how much it grows for each kg (below 0 if it falls). Data sheet: Avia HX711,
"serial interface" (channel A, gain 128).
"""

from machine import Pin, disable_irq, enable_irq

_SMALLEST, _LARGEST = -0x800000, 0x7FFFFF


class Sensor:
    metrics = {"weight_kg": (-10000, 10000), "weight_raw": (_SMALLEST + 1, _LARGEST - 1)}

    def __init__(self, data, clock, zero=0, per_kg=None):
        self._clock = Pin(clock, Pin.OUT, value=0)
        self._data = Pin(data, Pin.IN)
        self._zero, self._per_kg = zero, per_kg

    def read(self):
        if self._data.value():
            raise OSError("it has not measured: look at its wires and its power")
        raw = self._shift()
        if raw > _LARGEST:
            raw += 2 * _SMALLEST
        if not self._data.value():
            raise OSError("the data wire stays low: a bad wire")
        if self._per_kg is None or raw in (_SMALLEST, _LARGEST):  # the ends: more than it can measure
            return {"weight_raw": raw}
        return {"weight_kg": round((raw - self._zero) / self._per_kg, 4)}

    def _shift(self):
        clock, data = self._clock.value, self._data.value
        value = 0
        # A clock that is high for 60 µs switches the chip off.
        state = disable_irq()
        for _ in range(24):
            clock(1)
            clock(0)
            value = value << 1 | data()
        clock(1)  # one more: channel A at gain 128 comes next
        clock(0)
        enable_irq(state)
        return value
