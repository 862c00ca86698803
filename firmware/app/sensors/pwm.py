"""An output between 0 and 1, such as a dimmer, a fan or a valve: {"module": "pwm", "pin": 5, "name": "fan"}

hz: 1000 (default). safe, inverted, most_s and the command output: as for relay; value: 0 to 1, for instance 0.4.
"""

from machine import PWM, Pin

from app.sensors.relay import Sensor as Relay


class Sensor(Relay):
    def __init__(self, pin, hz=1000, **output):
        self._hz = hz
        super().__init__(pin, **output)

    def prepare(self, pin, value):
        self._pwm = PWM(Pin(pin), freq=self._hz, duty_u16=self._duty(value))

    def write(self, value):
        self._pwm.duty_u16(self._duty(value))

    def _duty(self, value):
        return round((1 - value if self._inverted else value) * 65535)
