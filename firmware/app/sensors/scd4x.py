"""co2_ppm, temp_c and humidity_pct of a Sensirion SCD40 or SCD41 on I2C: {"module": "scd4x", "scl": 22, "sda": 21}

It measures every 5 s; readings in between are sent without it. Data sheet: Sensirion SCD4x, 3.5, 3.6 and 3.8.
"""

import time

from app.sensors.i2c import Chip

_START, _IS_READY, _READ = b"\x21\xb1", b"\xe4\xb8", b"\xec\x05"
_LATE_MS = 11_000


class Sensor(Chip):
    address = 0x62
    # In its first measurements after power-on the chip may give 0 ppm.
    metrics = {"co2_ppm": (1, 40000), "temp_c": (-10, 60), "humidity_pct": (0, 100)}

    def setup(self):
        self._measured_at = time.ticks_ms()
        try:
            self.send(*_START)
        except OSError:
            pass  # it refuses this while it measures already, since before a reset of the board

    def read(self):
        now = time.ticks_ms()
        if not self._ask(_IS_READY, 1)[0] & 0x7FF:
            if time.ticks_diff(now, self._measured_at) > _LATE_MS:
                self.setup()  # it has lost its power, and measures no more
                raise OSError("it does not measure: did it lose its power?")
            return {}
        self._measured_at = now
        carbon_dioxide, temperature, humidity = self._ask(_READ, 3)
        return {
            "co2_ppm": carbon_dioxide,
            "temp_c": round(temperature * 175 / 65535 - 45, 2),
            "humidity_pct": round(humidity * 100 / 65535, 1),
        }

    def _ask(self, command, count):
        self.send(*command)
        time.sleep_ms(1)
        return self.words(count)
