"""A thermostat with hysteresis: device code, with its tests in tests/device."""


class Thermostat:
    """A thermostat of a heater. switch: called with True or False. Temperatures are in degrees Celsius."""

    def __init__(self, switch, target=20.0, hysteresis=0.5, shortest_ms=60_000):
        self.target = target
        self._switch = switch
        self._hysteresis = hysteresis
        self._shortest_ms = shortest_ms
        self._changed = None
        self.heating = False

    def update(self, temperature, ticks):
        """Switch the heater if needed. ticks: a module with ticks_ms() and ticks_diff(), like `time` on a board."""
        too_cold = temperature < self.target - self._hysteresis
        too_warm = temperature > self.target + self._hysteresis
        if too_warm if self.heating else too_cold:
            now = ticks.ticks_ms()
            # A relay that switches too often wears out.
            if self._changed is not None and ticks.ticks_diff(now, self._changed) < self._shortest_ms:
                return
            self._changed = now
            self.heating = not self.heating
            self._switch(self.heating)
