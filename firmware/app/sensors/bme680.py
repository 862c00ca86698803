"""temp_c, humidity_pct, pressure_hpa and gas_ohm of a Bosch BME680 or BME688 on I2C

    {"module": "bme680", "scl": 22, "sda": 21}    address: 118 (default) or 119

gas_ohm is the resistance of the gas sensor after 100 ms at 320 °C, which falls as the air gets worse. The heater draws
12 mA and warms the chip a little. Formulas: data sheets BST-BME680-DS001, 3.3 and 3.4; BST-BME688-DS000, 3.6.
"""

from struct import unpack_from

from app.sensors.i2c import Chip

_ID, _VARIANT, _FIELD = 0xD0, 0xF0, 0x1D
_RES_HEAT, _GAS_WAIT, _CTRL_GAS, _CTRL_HUM, _CTRL_MEAS = 0x5A, 0x64, 0x71, 0x72, 0x74
_HEATER_C, _HEAT_100_MS = 320, 0x59
# Temperature twice, pressure 16 times, forced mode; humidity once, effective at the next ctrl_meas.
_MEASURE_ONCE, _HUMIDITY_ONCE = 0x55, 0x01
# Bits of the field's first byte: it is new; the chip measures gas or the others.
_NEW, _BUSY = 0x80, 0x60
# Of the gas sensor's: it was measured, and its heater was hot.
_GAS_IS_GOOD = 0x30
# What a register holds when nothing was measured.
_NO_MEASUREMENT = 0x80000
# Deviations of the gas sensor's 16 ranges in percent (table 16).
_RANGE_1 = {5: -1, 7: -0.8, 10: -0.2, 11: -0.5, 13: -1}
_RANGE_2 = {4: 0.1, 5: 0.7, 7: -0.8, 8: -0.1}


class Sensor(Chip):
    address = 0x76
    # 43 ms, and 100 ms of heating.
    lead_ms = 160
    metrics = {"temp_c": (-40, 85), "pressure_hpa": (300, 1100), "humidity_pct": (0, 100), "gas_ohm": (100, 110e6)}

    def setup(self):
        self.check_id(_ID, 0x61)
        self._is_688 = self.load(_VARIANT, 1)[0] == 1
        t2, t3, _, p1, p2, p3, _, p4, p5, p7, p6, _, p8, p9, p10 = unpack_from("<hbBHhbBhhbbHhhB", self.load(0x8A, 23))
        high2, low, high1, h3, h4, h5, h6, h7, t1, g2, g1, g3 = unpack_from("<BBBbbbBbHhbb", self.load(0xE1, 14))
        if not t1:
            raise OSError("the calibration of the BME680 reads 0")
        self._temperature = t1, t2, t3
        self._pressure = p1, p2, p3, p4, p5, p6, p7, p8, p9, p10
        # H1 and H2 have 12 bits, and share the byte between them.
        self._humidity = high1 << 4 | low & 15, high2 << 4 | low >> 4, h3, h4, h5, h6, h7
        value, _, span, _, error = unpack_from("<bBBBb", self.load(0, 5))
        self._heater = g1, g2, g3, value, span >> 4 & 3
        self._gas_error = error >> 4
        self._celsius = 25

    def start(self):
        self.store(_RES_HEAT, heater_resistance(self._heater, _HEATER_C, self._celsius))
        self.store(_GAS_WAIT, _HEAT_100_MS)
        self.store(_CTRL_GAS, 0x20 if self._is_688 else 0x10)
        self.store(_CTRL_HUM, _HUMIDITY_ONCE)
        self.store(_CTRL_MEAS, _MEASURE_ONCE)

    def read(self):
        data = self.load(_FIELD, 17)
        raw = data[5] << 12 | data[6] << 4 | data[7] >> 4
        if data[0] & _BUSY or not data[0] & _NEW or raw in (_NO_MEASUREMENT, 0):
            raise OSError("the BME680 has measured nothing: did it lose its power?")
        fine, hundredths = compensate_temperature(self._temperature, raw)
        pascals = compensate_pressure(self._pressure, data[2] << 12 | data[3] << 4 | data[4] >> 4, fine)
        thousandths = compensate_humidity(self._humidity, data[8] << 8 | data[9], hundredths)
        self._celsius = hundredths / 100
        metrics = {"temp_c": self._celsius, "pressure_hpa": pascals / 100, "humidity_pct": thousandths / 1000}
        high, low = data[15:17] if self._is_688 else data[13:15]
        self.problem = None
        if low & _GAS_IS_GOOD == _GAS_IS_GOOD:
            ohms = resistance_688 if self._is_688 else resistance_680
            metrics["gas_ohm"] = round(ohms(high << 2 | low >> 6, low & 15, self._gas_error))
        else:
            self.problem = "the heater of the gas sensor was not hot"
        return metrics


def heater_resistance(heater, target, celsius):
    """Return the register for a temperature of the heater, in °C, while the air has the other."""
    g1, g2, g3, value, span = heater
    hot = (g1 / 16 + 49) * (1 + (g2 / 32768 * 0.0005 + 0.00235) * target) + g3 / 1024 * celsius
    return min(max(int(3.4 * (hot * 4 / (4 + span) / (1 + value * 0.002) - 25)), 0), 255)


def compensate_temperature(calibration, raw):
    """Return (fine temperature, temperature in hundredths of °C)."""
    t1, t2, t3 = calibration
    linear = (raw >> 3) - (t1 << 1)
    fine = (linear * t2 >> 11) + (((linear >> 1) * (linear >> 1) >> 12) * (t3 << 4) >> 14)
    return fine, fine * 5 + 128 >> 8


def compensate_pressure(calibration, raw, fine):
    """Return the pressure in Pa; 0 if the calibration is invalid."""
    p1, p2, p3, p4, p5, p6, p7, p8, p9, p10 = calibration
    half = (fine >> 1) - 64000
    square = (half >> 2) * (half >> 2)
    offset = (((square >> 11) * p6 >> 2) + (half * p5 << 1) >> 2) + (p4 << 16)
    scale = 32768 + (((square >> 13) * (p3 << 5) >> 3) + (p2 * half >> 1) >> 18)
    scale = scale * p1 >> 15
    if not scale:
        return 0
    pa = (1048576 - raw - (offset >> 12)) * 6250 // scale
    cube = (pa >> 8) * (pa >> 8) * (pa >> 8)
    more = (p9 * ((pa >> 3) * (pa >> 3) >> 13) >> 12) + ((pa >> 2) * p8 >> 13) + (cube * p10 >> 17)
    return pa + (more + (p7 << 7) >> 4)


def compensate_humidity(calibration, raw, hundredths):
    """Return the humidity in thousandths of a percent, limited to 0 to 100 %."""
    h1, h2, h3, h4, h5, h6, h7 = calibration
    base = raw - (h1 << 4) - (hundredths * h3 // 100 >> 1)
    bend = (hundredths * (hundredths * h5 // 100) >> 6) // 100
    value = base * (h2 * (hundredths * h4 // 100 + bend + 16384) >> 10)
    square = (value >> 14) * (value >> 14) >> 10
    value += ((h6 << 7) + hundredths * h7 // 100 >> 4) * square >> 1
    return min(max((value >> 10) * 1000 >> 12, 0), 100000)


def resistance_680(raw, span, error):
    """Return the resistance in ohms that a BME680 has measured in this range."""
    scale = (1340 + 5 * error) * (1 + _RANGE_1.get(span, 0) / 100)
    return 8e6 / ((1 + _RANGE_2.get(span, 0) / 100) * (1 << span) * ((raw - 512) / scale + 1))


def resistance_688(raw, span, error):
    """Return the resistance in ohms that a BME688 has measured in this range."""
    return 1e6 * (262144 >> span) / (4096 + 3 * (raw - 512))
