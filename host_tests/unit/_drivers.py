"""The drivers as a table, and the wires that they are tried on. The values are those of data sheets.

A row's raw values become what the chip sends (`wire`), and by another computation than the driver's what it means
(`means`), as metrics, or a text that the failure has. Portable.
"""

import sys

from umqtt_testkit.portable import Clock


def crc8(data):
    """Return the remainder by the polynomial 0x131 of the message, whose first byte is inverted."""
    value = (int.from_bytes(data, "big") ^ 0xFF << 8 * (len(data) - 1)) << 8
    for bit in range(8 * len(data) + 7, 7, -1):
        if value >> bit & 1:
            value ^= 0x131 << bit - 8
    return value


def big(value, size=2):
    return (value & (1 << 8 * size) - 1).to_bytes(size, "big")


def words(*values):
    return b"".join([big(value) + bytes([crc8(big(value))]) for value in values])


def signed(value, bits):
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


class Bus:
    """An I2C bus with one chip. answers: what it sends after a command or for a register; fill: it sends this alone."""

    def __init__(self, address, answers):
        self.address, self.answers, self.last, self.fill, self.broken = address, answers, b"", None, False

    def scan(self):
        return [] if self.address is None else [self.address]

    def writeto(self, address, data):
        self._check(address)
        self.last = bytes(data)

    def readfrom(self, address, count):
        self._check(address)
        return self._answer(self.last, count)

    def readfrom_mem(self, address, register, count):
        self._check(address)
        return self._answer(bytes([register]), count)

    def writeto_mem(self, address, register, data):
        self._check(address)
        if self.answers.get(bytes([register])) is None:
            self.answers[bytes([register])] = bytes(data)

    def _check(self, address):
        if self.broken or address != self.address:
            raise OSError(5)

    def _answer(self, key, count):
        if self.fill is not None:
            return bytes([self.fill]) * count
        if self.answers.get(key) is None:
            raise OSError(5)
        return (self.answers[key] + bytes(count))[:count]


class Machine:
    """The module machine with what the drivers need of it. `wire`: one of the row, or a Bus as "i2c"."""

    IN, OUT, PULL_UP, IRQ_FALLING = 0, 1, 2, 3

    def __init__(self, wire):
        self.wire, self.timers, self.pins, self.bits = wire, [], {}, []
        machine = self

        class Pin:
            IN, OUT, PULL_UP, IRQ_FALLING = 0, 1, 2, 3

            def __init__(self, number, mode=0, pull=None, value=None):
                self.number, self.level, self.handler = number, value, None
                machine.pins[number] = self

            def irq(self, handler, trigger):
                self.handler = handler

            def value(self, level=None):
                if level is not None:
                    if "bits" in machine.wire and level:
                        machine.clocked()
                    self.level = level
                elif "bits" in machine.wire:
                    return machine.data()
                return self.level

            __call__ = value

        class Timer:
            def __init__(self, number):
                machine.timers.append(self)

            def init(self, period, callback):
                self.callback = callback

        class UART:
            def __init__(self, number, baudrate, rxbuf, **pins):
                pass

            def read(self):
                return machine.wire["uart"]

        class ADC:
            def __init__(self, pin):
                pass

            def read_u16(self):
                return machine.wire["adc"]

        class PWM:
            def __init__(self, pin, freq, duty_u16):
                pin.level = duty_u16
                self.pin = pin

            def duty_u16(self, value):
                self.pin.level = value

        self.Pin, self.Timer, self.UART, self.ADC, self.PWM = Pin, Timer, UART, ADC, PWM

    def I2C(self, bus, scl, sda, freq):
        return self.wire["i2c"]

    def time_pulse_us(self, pin, level, limit):
        return self.wire["us"]

    def disable_irq(self):
        return 0

    def enable_irq(self, state):
        pass

    def clocked(self):
        self.bits.append(self.wire["bits"] >> 23 - len(self.bits) & 1 if len(self.bits) < 24 else self.wire["end"])

    def data(self):
        return self.bits[-1] if self.bits else self.wire["ready"]


class Wired:
    """The modules of a board, with this wire, for as long as the context lasts."""

    def __init__(self, wire):
        self.machine = Machine(wire)
        self.clock = Clock()

    def __enter__(self):
        self._before = {name: sys.modules.get(name) for name in ("machine", "time")}
        self.clock.sleep_ms = self.clock.advance
        self.clock.sleep_us = lambda us: None
        sys.modules["machine"], sys.modules["time"] = self.machine, self.clock
        self.forget()
        return self

    def forget(self):
        """Unload the drivers, which keep the modules that they were loaded with."""
        for name in list(sys.modules):
            if name.startswith("app.sensors."):
                sys.modules.pop(name)

    def __exit__(self, kind, error, trace):
        self.forget()
        for name in self._before:
            sys.modules.pop(name)
            if self._before[name]:
                sys.modules[name] = self._before[name]


def i2c(at, **keys):
    """Return the keys of an entry, and the address at which the chip answers."""
    keys.update({"scl": 22, "sda": 21})
    return keys, at


def sht(command, percent):
    return (
        lambda t, h: {command: words(t, h)},
        lambda t, h: {"temp_c": t / 65535 * 175 - 45, "humidity_pct": percent(h / 65535)},
        (16, 16),
    )


def aht(checked):
    def wire(h, t, status=0x1C):
        data = bytes([status]) + big(h << 20 | t, 5)
        return {b"": b"\x1c", b"\xac\x33\0": data + (bytes([crc8(data)]) if checked else b"")}

    return wire, lambda h, t: {"humidity_pct": h / 2**20 * 100, "temp_c": t / 2**20 * 200 - 50}, (20, 20)


def ina(bus_step, bus_bits, shunt_step):
    def means(shunt, bus):
        bus &= (1 << bus_bits) - 1
        amperes = signed(shunt, 16) * shunt_step / 0.002
        return {"voltage_v": bus * bus_step, "current_a": amperes, "power_w": bus * bus_step * amperes}

    return means, (16, bus_bits)


def pms(one, two, ten):
    frame = b"BM" + big(28) + b"".join([big(n) for n in (9, 8, 7, one, two, ten, 1, 2, 3, 4, 5, 6, 0)])
    return frame + big(sum(frame))


# A calibration as chips have it: T1 to T3, P1 to P10, H1 to H7, G1 to G3, and of the heater the value and range.
_T, _P = (26203, 26461, 3), (36673, -10373, 88, 5802, 35, 30, 41, -1120, -2345, 30)
_H, _G = (717, 1013, 0, 45, 20, 120, -100), (-30, -5969, 18, 46, 1)
_GAS_1 = {5: 2126008810, 7: 2130303777, 10: 2143188679, 11: 2136746228, 13: 2126008810}
_GAS_2 = {4: 255744255, 5: 127110228, 7: 32258064, 8: 16016016}


def bosch(variant, error=2):
    """Return wire and means of a BME680 with this error of the gas sensor, or with variant 1 of a BME688."""
    from struct import pack

    p1, p2, p3, p4, p5, p6, p7, p8, p9, p10 = _P
    one = pack("<hbBHhbBhhbbHhhB", _T[1], _T[2], 0, p1, p2, p3, 0, p4, p5, p7, p6, 0, p8, p9, p10)
    shared = (_H[1] & 15) << 4 | _H[0] & 15
    two = pack("<BBBbbbBbHhbb", _H[1] >> 4, shared, _H[0] >> 4, *_H[2:], _T[0], _G[1], _G[0], _G[2])
    other = pack("<bBBBb", _G[3], 0, _G[4] << 4, 0, error * 16)

    def wire(p, t, h, g, span, status=0x80, good=0x30):
        gas = big(g << 6 | span | good)
        field = bytes((status, 0)) + big((p + 250000) << 4, 3) + big((t + 415000) << 4, 3) + big(h + 10000) + bytes(3)
        field += bytes(2) + gas if variant else gas + bytes(2)
        return {b"\xd0": b"\x61", b"\xf0": bytes((variant,)), b"\x89": b"\0" + one + b"\0", b"\x8a": one, b"\xe1": two,
                b"\0": other, b"\2": other[2:], b"\4": other[4:], b"\x1d": field}  # fmt: skip

    def means(p, t, h, g, span):
        # Bosch's formulas in floating point, and of the gas sensor in whole numbers.
        t = (t + 415000) / 16384 - _T[0] / 1024
        fine = t * _T[1] + t * t / 64 * _T[2] * 16
        celsius = fine / 5120
        v = fine / 2 - 64000
        offset = (v * v * p6 / 131072 + v * p5 * 2) / 4 + p4 * 65536
        scale = (1 + (p3 * v * v / 16384 + p2 * v) / 524288 / 32768) * p1
        pa = (1048576 - p - 250000 - offset / 4096) * 6250 / scale
        pa += (p9 * pa * pa / 2147483648 + pa * p8 / 32768 + (pa / 256) ** 3 * p10 / 131072 + p7 * 128) / 16
        v = h + 10000 - _H[0] * 16 - _H[2] / 2 * celsius
        v *= _H[1] / 262144 * (1 + _H[3] / 16384 * celsius + _H[4] / 1048576 * celsius * celsius)
        percent = v + (_H[5] / 16384 + _H[6] / 2097152 * celsius) * v * v
        if variant:
            ohms = 1000000 * (262144 >> span) / (4096 + (g - 512) * 3)
        else:
            scale = (1340 + 5 * error) * _GAS_1.get(span, 2147483647) >> 16
            ohms = (_GAS_2.get(span, 4096000000 >> span) * scale >> 9) / ((g << 15) - 16777216 + scale)
        return {"temp_c": celsius, "pressure_hpa": pa / 100, "humidity_pct": min(max(percent, 0), 100), "gas_ohm": ohms}

    return wire, means, (18, 17, 15, 10, 4)


def gga(latitude, south, longitude, west, fix=1):
    text = "GPGGA,123519,%02d%07.4f,%s,%03d%07.4f,%s,%d,08,0.9,545.4,M,46.9,M,," % (
        latitude // 600000, latitude % 600000 / 10000, "NS"[south], longitude // 600000, longitude % 600000 / 10000,
        "EW"[west], fix,
    )  # fmt: skip
    total = 0
    for byte in text.encode():
        total ^= byte
    return ("$GPGLL,\r\n$%s*%02X\r\n$GP" % (text, total)).encode()


def spread(values):
    """Return the root mean square of vectors around their mean. values: a list of three numbers each."""
    means = [sum(axis) / len(values) for axis in zip(*values)]
    return (sum([(v - m) ** 2 for one in values for v, m in zip(one, means)]) / len(values)) ** 0.5


class Row:
    """A driver.

    entry: its keys; address: of its chip, None: not on I2C; wire(*raw): what it sends; means(*raw): the metrics, or a
    part of the failure's text; bits: of each raw value; example: raw values and their metrics in the data sheet;
    checked: whether any bit that is sent wrong is noticed; silent: wires that give no value, with part of the text of
    the failure, or "" for none; zeros: what a chip that sends zeros alone is taken for, None: a failure.
    """

    def __init__(self, module, entry, wire, means, bits, example, checked=False, silent=(), zeros=None):
        self.module, (self.entry, self.address) = module, entry
        self.wire, self.means, self.bits, self.example = wire, means, bits, example
        self.checked, self.silent, self.zeros = checked, silent, zeros


_INA_219, _INA_226 = ina(0.004, 13, 1e-5), ina(0.00125, 15, 2.5e-6)
_SCD = b"\xe4\xb8", b"\xec\x05"
_SHAKEN = [(n * 37 % 11 * (n % 3), -n, 2048 + n % 2 * 300) for n in range(84)]

ROWS = (
    # Sensirion: 26214 is 0.4 of the scale.
    Row("sht4x", i2c(0x44), *sht(b"\xfd", lambda part: min(max(part * 125 - 6, 0), 100)),
        ((26214, 26214), {"temp_c": 25.0, "humidity_pct": 44.0}), True, [({b"\xfd": None}, "OSError")]),
    Row("sht3x", i2c(0x45, address=0x45), *sht(b"\x24\0", lambda part: part * 100),
        ((26214, 26214), {"temp_c": 25.0, "humidity_pct": 40.0}), True, [({b"\x24\0": None}, "OSError")]),
    Row("aht20", i2c(0x38), *aht(True), ((2**19, 3 * 2**17), {"temp_c": 25.0, "humidity_pct": 50.0}), True,
        [({b"\xac\x33\0": b"\x9c" + bytes(6)}, "0x9c")]),
    Row("aht10", i2c(0x38), *aht(False), ((2**19, 3 * 2**17), {"temp_c": 25.0, "humidity_pct": 50.0}), False,
        [({b"\xac\x33\0": b"\x98" + bytes(5)}, "0x98"), ({b"\xac\x33\0": b"\0" + bytes(5)}, "0x00")]),
    # "28067 lx", from 0x8390.
    Row("bh1750", i2c(0x23), lambda lux: {b"\x20": big(lux)}, lambda lux: {"light_lx": lux / 1.2}, (16,),
        ((0x8390,), {"light_lx": 28066.7}), zeros={"light_lx": 0}),
    # 11.98 V, 20 mV at 2 milliohms, 10 A.
    Row("ina219", i2c(0x40, shunt_ohm=0.002), lambda s, b: {b"\1": big(s), b"\2": big(b << 3 | 2)}, *_INA_219,
        ((2000, 0x5D98 >> 3), {"voltage_v": 11.98, "current_a": 10.0, "power_w": 119.8}),
        silent=[({b"\2": big(0x5D98)}, "0x5d98")]),
    Row("ina226", i2c(0x41, shunt_ohm=0.002, address=0x41),
        lambda s, b: {b"\1": big(s), b"\2": big(b), b"\6": big(8), b"\xff": big(0x2260)}, *_INA_226,
        ((8000, 9584), {"voltage_v": 11.98, "current_a": 10.0, "power_w": 119.8}),
        silent=[({b"\6": big(0)}, "has not measured"), ({b"\xff": b"\x70\x22"}, "has the id 0x70, not 0x22")]),
    Row("ads1115", i2c(0x48, channels=[3], range_v=2.048), lambda raw: {b"\0": big(raw)},
        lambda raw: "range_v" if raw == 0x7FFF else {"a3_v": signed(raw, 16) * 0.0000625}, (16,),
        ((0x4000,), {"a3_v": 1.024}), silent=[({b"\1": b"\x7b\xe3"}, "0x7be3"), ({b"\0": big(0x7FFF)}, "range_v")]),
    # The data sheets have no example: these are the results of Bosch's own code.
    Row("bme680", i2c(0x76), *bosch(0),
        ((100000, 74000, 9000, 600, 7),
         {"temp_c": 22.01, "pressure_hpa": 1030.73, "humidity_pct": 37.185, "gas_ohm": 59119}),
        silent=[({b"\x1d": b"\0" + bytes(16)}, "measured nothing"), ({b"\x1d": b"\xa0" + bytes(16)}, "nothing"),
                ({b"\xd0": b"\x60"}, "has the id 0x60, not 0x61"), ({b"\xe1": bytes(14)}, "calibration")]),
    Row("bme680", i2c(0x76), *bosch(1),
        ((100000, 74000, 9000, 600, 7),
         {"temp_c": 22.01, "pressure_hpa": 1030.73, "humidity_pct": 37.185, "gas_ohm": 469725})),
    # 500 ppm, 25 °C, 37 %.
    Row("scd4x", i2c(0x62), lambda c, t, h: {_SCD[0]: words(0x8006), _SCD[1]: words(c, t, h)},
        lambda c, t, h: {"co2_ppm": c, "temp_c": t / 65535 * 175 - 45, "humidity_pct": h / 655.35}, (16, 16, 16),
        ((0x1F4, 0x6667, 0x5EB9), {"co2_ppm": 500, "temp_c": 25.0, "humidity_pct": 37.0}), True,
        [({_SCD[0]: words(0x8000)}, "")]),
    Row("vl53l0x", i2c(0x29), lambda mm: {b"\x14": b"\x5b" + bytes(9) + big(mm), b"\xc0": b"\xee"},
        lambda mm: {"distance_mm": mm}, (16,), ((345,), {"distance_mm": 345}),
        silent=[({b"\x14": b"\x5a" + bytes(11)}, "not measured"), ({b"\x14": b"\x25" + bytes(11)}, "status is 4")]),
    Row("mpu6050", i2c(0x68),
        lambda x: {b"\x75": b"\x68", b"\x72": big(6 * 84), b"\x74": [b"".join([big(x * v // 16) for v in one])
                                                                     for one in _SHAKEN]},
        lambda x: {"vibration_ms2": spread([[x * v // 16 for v in one] for one in _SHAKEN]) * 9.80665 / 2048}, (5,),
        ((16,), {"vibration_ms2": round(spread(_SHAKEN) * 9.80665 / 2048, 3)}),
        silent=[({b"\x72": big(0)}, "0 bytes"), ({b"\x72": big(1024)}, "1024 bytes")]),
    Row("pms5003", ({"uart": 1, "rx": 16, "tx": 17}, None),
        lambda *raw: {"uart": b"\x42\x4d\0" + pms(1, 2, 3) + pms(*raw)},
        lambda *raw: dict(zip(("pm1_ugm3", "pm25_ugm3", "pm10_ugm3"), raw)), (11, 11, 11),
        ((5, 12, 13), {"pm1_ugm3": 5, "pm25_ugm3": 12, "pm10_ugm3": 13}),
        silent=[({"uart": None}, "no frame"), ({"uart": pms(1, 2, 3)[:31] + b"\0"}, "checksum"),
                ({"uart": bytes(64)}, "no frame"), ({"uart": b"\xff" * 64}, "no frame")]),
    # The standard's own example.
    Row("gps", ({"uart": 1, "rx": 16, "tx": 17}, None),
        lambda a, s, b, w: {"uart": gga(a * 5, s, b * 10, w)},
        lambda a, s, b, w: {"lat_deg": a * 5 / 600000 * (1, -1)[s], "lon_deg": b * 10 / 600000 * (1, -1)[w],
                            "alt_m": 545.4, "satellites": 8}, (23, 1, 23, 1),
        ((28870380 // 5, 0, 6910000 // 10, 0), {"lat_deg": 48.1173, "lon_deg": 11.516667, "alt_m": 545.4,
                                                "satellites": 8}),
        silent=[({"uart": None}, "no position"), ({"uart": gga(1, 0, 1, 0).replace(b"08", b"09")}, "checksum")]),
    Row("hcsr04", ({"trigger": 5, "echo": 18}, None), lambda us: {"us": us},
        lambda us: {"distance_mm": us / 1e6 * 171500}, (15,),
        ((5831,), {"distance_mm": 1000}), silent=[({"us": -2}, "no echo"), ({"us": -1}, "4 m")]),
    Row("hx711", ({"data": 4, "clock": 5, "zero": 1000, "per_kg": -500}, None),
        lambda raw: {"bits": raw, "end": 1, "ready": 0},
        lambda raw: {"weight_kg": (signed(raw, 24) - 1000) / -500}, (24,), ((0xFFFC18,), {"weight_kg": 4.0}),
        silent=[({"ready": 1}, "has not measured"), ({"end": 0}, "stays low"), ({"bits": 0x800000}, "out of range"),
                ({"bits": 0x7FFFFF}, "out of range")]),
    Row("moisture", ({"pin": 32, "dry": 52000, "wet": 21000}, None), lambda raw: {"adc": raw},
        lambda raw: {"moisture_pct": min(max((52000 - raw) / 310, 0), 100) if 17900 <= raw <= 55100 else 200}, (16,),
        ((36500,), {"moisture_pct": 50.0}), silent=[({"adc": 0}, "range"), ({"adc": 65535}, "range")]),
)  # fmt: skip
