"""moisture_pct of a capacitive or resistive soil probe on an ADC pin:

    {"module": "moisture", "pin": 32}                                   moisture_raw, to find the two numbers
    {"module": "moisture", "pin": 32, "dry": 52000, "wet": 21000}       moisture_pct

dry is moisture_raw in dry soil or air (0 %), wet that in wet soil or water (100 %). Up to 10 % beyond is taken as 0 or
100 %; what is farther away, such as a probe that is not connected, gives no value.
"""

from app.sensors.adc import open_adc

_SAMPLES = 16


class Sensor:
    metrics = {"moisture_pct": (0, 100), "moisture_raw": (0, 65535)}

    def __init__(self, pin, dry=None, wet=None):
        if (dry is None) != (wet is None) or dry is not None and dry == wet:
            raise ValueError("give both dry and wet, as two numbers that differ")
        self._dry, self._wet = dry, wet
        self._adc = open_adc(pin)

    def read(self):
        raw = sum([self._adc.read_u16() for _ in range(_SAMPLES)]) / _SAMPLES
        if self._dry is None:
            return {"moisture_raw": round(raw)}
        percent = (self._dry - raw) * 100 / (self._dry - self._wet)
        if -10 <= percent <= 110:
            percent = min(max(percent, 0), 100)
        return {"moisture_pct": round(percent, 1)}
