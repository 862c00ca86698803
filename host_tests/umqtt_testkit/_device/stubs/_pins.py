"""machine.Pin, Signal, ADC, PWM and Timer of a virtual board.

Hooks:
    "pins": {"4": 1}             level of an input; without it a pull-up reads 1 and everything else 0
    "adc": {"26": 1.65}          volts at an analogue pin, by its GPIO number; 0 V without it
    "chip_celsius": 27.0         the chip's temperature, for ADC channel 4 of a Pico and the module esp32
    "supply_volts": 5.0          VSYS of a Pico W, read through GPIO29
"""

import _thread
import time

import micropython
from _virtual import IS_RP2, hook, hook_at
from umachine import Signal  # noqa: F401 - re-exported by machine

# Names of pins behind the Wi-Fi chip of a Pico W.
_NAMED_PINS = {"LED": 32, "WL_GPIO0": 32, "WL_GPIO1": 33, "WL_GPIO2": 34}
_PICO_VSYS = 29
_PICO_VSYS_SELECT = 25


class Pin:
    """A GPIO pin. An output reads back what was written. There is one object per pin, as on the boards."""

    IN = 0 if IS_RP2 else 1
    OUT = 1 if IS_RP2 else 3
    OPEN_DRAIN = 2 if IS_RP2 else 7
    PULL_UP = 1 if IS_RP2 else 2
    PULL_DOWN = 2 if IS_RP2 else 1
    IRQ_RISING = 8 if IS_RP2 else 1
    IRQ_FALLING = 4 if IS_RP2 else 2
    if IS_RP2:
        ALT = 3
        ANALOG = 4
    else:
        DRIVE_0, DRIVE_1, DRIVE_2, DRIVE_3 = 0, 1, 2, 3
        IRQ_LOW_LEVEL = 4
        IRQ_HIGH_LEVEL = 5

    _pins = {}

    def __new__(cls, id, mode=-1, pull=-1, **options):
        number = pin_number(id)
        if number not in cls._pins:
            cls._pins[number] = super().__new__(cls)
        return cls._pins[number]

    def __init__(self, id, mode=-1, pull=-1, **options):
        if not hasattr(self, "_number"):
            self._number = pin_number(id)
            self._mode = self.IN
            self._pull = None
            self._level = 0
            self._handler = None
            self._trigger = 0
        self.init(mode, pull, **options)

    def init(self, mode=-1, pull=-1, *, value=None, drive=None, hold=None, alt=None):
        if mode != -1:
            self._mode = mode
        if pull != -1:
            self._pull = pull
        if value is not None:
            self._level = 1 if value else 0

    def value(self, x=None):
        if x is None:
            return self._read()
        self._level = 1 if x else 0

    __call__ = value

    def _read(self):
        if self._mode == self.OUT:
            return self._level
        outside = hook_at("pins", self._number)
        if outside is not None:
            return 1 if outside else 0
        if self._mode == self.OPEN_DRAIN and not self._level:
            return 0
        return 1 if self._pull == self.PULL_UP else 0

    def on(self):
        self._level = 1

    def off(self):
        self._level = 0

    def toggle(self):
        self._level ^= 1

    def irq(self, handler=None, trigger=IRQ_FALLING | IRQ_RISING, **options):
        self._handler, self._trigger = handler, trigger
        return self

    def _drive(self, level):
        """Make an edge from outside, to test an interrupt. Only virtual boards have this method."""
        edge = self.IRQ_RISING if level else self.IRQ_FALLING
        if level != self._level:
            self._level = level
            if self._handler is not None and self._trigger & edge:
                micropython.schedule(self._handler, self)

    def __repr__(self):
        return "Pin(%d)" % self._number


def pin_number(id):
    """Return the GPIO number of a pin given by number or name. Raises ValueError."""
    if isinstance(id, Pin):
        return id._number
    if isinstance(id, str):
        if IS_RP2 and id in _NAMED_PINS:
            return _NAMED_PINS[id]
        if IS_RP2 and id[:2] == "GP":
            id = int(id[4:] if id[:4] == "GPIO" else id[2:])
        else:
            raise ValueError('unknown named pin "%s"' % id)
    if not 0 <= id < (30 if IS_RP2 else 49):
        raise ValueError("invalid pin")
    return id


def _volts(number):
    return hook_at("adc", number, 0.0)


class _PicoADC:
    """ADC of an RP2040: 12 bits of 3.3 V, scaled to 16; channel 4 is the chip's own thermometer."""

    CORE_TEMP = 4

    def __init__(self, id):
        if isinstance(id, int) and 0 <= id <= 4:
            self._channel = id
            return
        number = pin_number(id)
        if not 26 <= number <= 29:
            raise ValueError("Pin doesn't have ADC capabilities")
        self._channel = number - 26

    def read_u16(self):
        if self._channel == self.CORE_TEMP:
            # RP2040 datasheet, 4.9.5: T = 27 - (V - 0.706) / 0.001721
            volts = 0.706 - (hook("chip_celsius", 27.0) - 27) * 0.001721
        elif self._channel == _PICO_VSYS - 26:
            volts = self._vsys() / 3
        else:
            volts = _volts(26 + self._channel)
        raw = max(0, min(4095, round(volts / 3.3 * 4095)))
        return raw << 4 | raw >> 8

    @staticmethod
    def _vsys():
        # Pico W datasheet, 2.1: GPIO29 is also the clock of the Wi-Fi chip; it reads VSYS/3 while GPIO25 is high.
        select = Pin._pins.get(_PICO_VSYS_SELECT)
        if select is None or select._mode != Pin.OUT or not select._level:
            return 0.0
        return hook("supply_volts", 5.0)


class _EspADC:
    """ADC of an ESP32: 12 bits, range set by the attenuator; read_uv() uses the factory calibration."""

    ATTN_0DB, ATTN_2_5DB, ATTN_6DB, ATTN_11DB = 0, 1, 2, 3
    WIDTH_9BIT, WIDTH_10BIT, WIDTH_11BIT, WIDTH_12BIT = 9, 10, 11, 12
    # Full scale in volts by the attenuation (docs/esp32/quickref, ADC).
    _FULL_SCALE = (0.95, 1.25, 1.75, 2.45)
    # The radio uses ADC2 on an ESP32; a pin of neither block is refused.
    _PINS = (36, 37, 38, 39, 32, 33, 34, 35, 4, 0, 2, 15, 13, 12, 14, 27, 25, 26)

    def __init__(self, pin, *, atten=ATTN_0DB):
        self._number = pin_number(pin)
        if self._number not in self._PINS:
            raise ValueError("invalid pin")
        self._bits = 12
        self.atten(atten)

    def init(self, *, atten=ATTN_0DB):
        self.atten(atten)

    def atten(self, atten):
        if not self.ATTN_0DB <= atten <= self.ATTN_11DB:
            raise ValueError("invalid attenuation")
        self._atten = atten

    def width(self, bits):
        if not 9 <= bits <= 12:
            raise ValueError("invalid bit-width")
        self._bits = bits

    def _raw(self, bits):
        full = (1 << bits) - 1
        return max(0, min(full, round(_volts(self._number) / self._FULL_SCALE[self._atten] * full)))

    def read(self):
        return self._raw(self._bits)

    def read_u16(self):
        raw = self._raw(self._bits)
        return raw << (16 - self._bits) | raw >> (2 * self._bits - 16)

    def read_uv(self):
        # In steps of 1 mV, as esp_adc_cal_raw_to_voltage() gives it.
        return round(min(_volts(self._number), self._FULL_SCALE[self._atten]) * 1000) * 1000


ADC = _PicoADC if IS_RP2 else _EspADC


class PWM:
    """Stores frequency and duty cycle; drives nothing."""

    def __init__(self, pin, *, freq=None, duty_u16=None, duty_ns=None, **options):
        self._freq, self._duty_u16 = freq or (0 if IS_RP2 else 5000), duty_u16 or 0
        if duty_ns is not None:
            self.duty_ns(duty_ns)
        pin_number(pin)

    def freq(self, value=None):
        if value is None:
            return self._freq
        if value < 1:
            raise ValueError("freq too small" if IS_RP2 else "frequency must be from 1Hz to 40MHz")
        self._freq = value

    def duty_u16(self, value=None):
        if value is None:
            return self._duty_u16
        if not 0 <= value <= 65535:
            raise ValueError("duty_u16 must be from 0 to 65535")
        self._duty_u16 = value

    def duty_ns(self, value=None):
        if value is None:
            return self._duty_u16 * 1000000000 // (65535 * self._freq)
        self.duty_u16(value * self._freq * 65535 // 1000000000)

    def deinit(self):
        self._duty_u16 = 0


class Timer:
    """Calls back through micropython.schedule(), as a soft interrupt does. id: -1 (virtual) or, on esp32, 0 to 3."""

    ONE_SHOT = 0
    PERIODIC = 1

    def __init__(self, id=-1, **options):
        if id != -1 and (IS_RP2 or not 0 <= id <= 3):
            raise ValueError("Timer doesn't exist" if IS_RP2 else "invalid Timer number")
        self._run = 0
        if options:
            self.init(**options)

    def init(self, *, mode=PERIODIC, freq=-1, period=-1, callback=None, **options):
        self.deinit()
        period_ms = int(1000 / freq) if freq != -1 else period
        _thread.start_new_thread(self._tick, (self._run, max(1, period_ms), mode, callback))

    def deinit(self):
        self._run += 1

    def _tick(self, run, period_ms, mode, callback):
        while True:
            time.sleep_ms(period_ms)
            if run != self._run:
                return
            if callback is not None:
                try:
                    micropython.schedule(callback, self)
                except RuntimeError:
                    pass  # the schedule queue is full: a port's interrupt loses this tick too
            if mode == self.ONE_SHOT:
                return
