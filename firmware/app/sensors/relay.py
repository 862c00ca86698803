"""An output that is on or off, such as a relay: {"module": "relay", "pin": 5, "name": "pump"}

The command output switches it: {"name": "pump", "value": 1, "for_s": 60}. After for_s a timer puts it back into its
safe state, which needs neither the broker nor the main loop; at a start it is in the safe state too. The metric
pump_output is what it is now. safe: 0 (default) or 1; inverted: true if the pin is low when the relay is on; most_s:
the largest for_s (3600).
"""

from machine import Pin, Timer

_TICK_MS = 1000
_outputs = []
_timers = []


class Sensor:
    metrics = {"output": (0, 1)}

    def __init__(self, pin, safe=0, inverted=False, most_s=3600):
        self._inverted = inverted
        self.most_s = most_s
        self.prepare(pin, safe)
        self._safe = self._value = safe
        self._left_s = 0
        _outputs.append(self)
        if not _timers:
            from sys import platform

            timer = Timer(0 if platform == "esp32" else -1)
            timer.init(period=_TICK_MS, callback=_tick)
            _timers.append(timer)

    def prepare(self, pin, value):
        """Open the pin in this state, without another one in between."""
        self._pin = Pin(pin, Pin.OUT, value=int(bool(value) != self._inverted))

    def write(self, value):
        self._pin.value(int(bool(value) != self._inverted))

    def switch(self, value, for_s):
        """Set the output for so many seconds. value: in the range of the metric."""
        self._left_s = for_s + 1  # the first tick may come at once
        self._value = value
        self.write(value)

    def tick(self):
        if self._left_s:
            self._left_s -= 1
            if not self._left_s:
                self._value = self._safe
                self.write(self._safe)

    def read(self):
        return {"output": self._value}


def _tick(timer):
    for output in _outputs:
        output.tick()
