"""distance_mm of an ultrasonic HC-SR04: {"module": "hcsr04", "trigger": 5, "echo": 18}

Its echo has 5 V: a board of 3.3 V needs a divider there. A reading waits for up to 30 ms. Data sheet: the time of the
echo times the speed of sound (343 m/s at 20 °C), by two.
"""

import time

from machine import Pin, time_pulse_us

_LONGEST_US = 30_000


class Sensor:
    metrics = {"distance_mm": (20, 4000)}

    def __init__(self, trigger, echo):
        self._trigger = Pin(trigger, Pin.OUT, value=0)
        self._echo = Pin(echo, Pin.IN)

    def read(self):
        self._trigger.value(1)
        time.sleep_us(10)
        self._trigger.value(0)
        took_us = time_pulse_us(self._echo, 1, _LONGEST_US)
        if took_us < 0:
            raise OSError("no echo began" if took_us == -2 else "nothing within 4 m")
        return {"distance_mm": round(took_us * 0.343 / 2)}
