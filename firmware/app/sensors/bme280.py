"""temp_c, humidity_pct and pressure_hpa of a Bosch BME280 on I2C, or of a BMP280, which has no humidity.

    {"module": "bme280", "scl": 22, "sda": 21}    address: 118 (default) or 119

Each measurement is started early enough that no reading waits for it (forced mode: the chip sleeps in between).
Formulas: data sheet BST-BME280-DS002, 4.2.3.
"""

from struct import unpack_from

from app.sensors.i2c import Chip

_ID, _CTRL_HUM, _STATUS, _CTRL_MEAS, _DATA = 0xD0, 0xF2, 0xF3, 0xF4, 0xF7
_BME280, _BMP280 = 0x60, 0x58
# Temperature and pressure once each, forced mode (5.4.5); humidity once (5.4.3), effective at the next ctrl_meas.
_MEASURE_ONCE = 0x25
_HUMIDITY_ONCE = 0x01
# Bits of the status (5.4.4): a measurement is running; the calibration is being copied to its registers.
_NOT_READY = 0x09
# What a register holds when nothing was measured (5.4.7, 5.4.8).
_NO_MEASUREMENT = 0x80000


class Sensor(Chip):
    address = 0x76
    # At most 9.3 ms at one sample each (appendix 9.1).
    lead_ms = 10
    metrics = {"temp_c": (-40, 85), "pressure_hpa": (300, 1100), "humidity_pct": (0, 100)}

    def setup(self):
        self._humid = self.check_id(_ID, _BME280, _BMP280) == _BME280
        self._check_status()
        self.calibration = self._read_calibration()
        if not self.calibration[0][0]:
            raise OSError("the calibration of the BME280 reads 0")

    def start(self):
        if self._humid:
            self.store(_CTRL_HUM, _HUMIDITY_ONCE)
        self.store(_CTRL_MEAS, _MEASURE_ONCE)

    def _check_status(self):
        if self.load(_STATUS, 1)[0] & _NOT_READY:
            raise OSError("the BME280 is not ready")

    def read(self):
        self._check_status()
        data = self.load(_DATA, 8 if self._humid else 6)
        pressure = data[0] << 12 | data[1] << 4 | data[2] >> 4
        temperature = data[3] << 12 | data[4] << 4 | data[5] >> 4
        if temperature in (_NO_MEASUREMENT, 0):  # 0: no chip measures that, a bad bus reads it
            raise OSError("the BME280 has measured nothing: did it lose its power?")
        fine, hundredths = compensate_temperature(self.calibration, temperature)
        metrics = {
            "temp_c": hundredths / 100,
            "pressure_hpa": round(compensate_pressure(self.calibration, pressure, fine) / 25600, 2),
        }
        if self._humid:
            humidity = data[6] << 8 | data[7]
            metrics["humidity_pct"] = round(compensate_humidity(self.calibration, humidity, fine) / 1024, 1)
        return metrics

    def _read_calibration(self):
        # Returns (dig_T1 to T3, dig_P1 to P9, dig_H1 to H6) from the chip (table 16).
        values = unpack_from("<HhhHhhhhhhhh", self.load(0x88, 24))
        humidity = ()
        if self._humid:
            h2, h3, high4, low, high5, h6 = unpack_from("<hBbBbb", self.load(0xE1, 7))
            # H4 and H5 are signed numbers of 12 bits that share the byte between them.
            humidity = (self.load(0xA1, 1)[0], h2, h3, high4 * 16 | low & 15, high5 * 16 | low >> 4, h6)
        return values[:3], values[3:], humidity


def compensate_temperature(calibration, raw):
    """Return (fine temperature, which the other two functions need; temperature in hundredths of °C)."""
    t1, t2, t3 = calibration[0]
    linear = ((raw >> 3) - (t1 << 1)) * t2 >> 11
    offset = (raw >> 4) - t1
    fine = linear + ((offset * offset >> 12) * t3 >> 14)
    return fine, fine * 5 + 128 >> 8


def compensate_pressure(calibration, raw, fine):
    """Return the pressure in 256ths of Pa, by 64-bit integer arithmetic; 0 if the calibration is invalid."""
    p1, p2, p3, p4, p5, p6, p7, p8, p9 = calibration[1]
    t = fine - 128000
    offset = t * t * p6 + (t * p5 << 17) + (p4 << 35)
    scale = ((1 << 47) + (t * t * p3 >> 8) + (t * p2 << 12)) * p1 >> 33
    if not scale:
        return 0
    p = (((1048576 - raw) << 31) - offset) * 3125 // scale
    return (p + (p9 * (p >> 13) * (p >> 13) >> 25) + (p8 * p >> 19) >> 8) + (p7 << 4)


def compensate_humidity(calibration, raw, fine):
    """Return the humidity in 1024ths of a percent, limited to 0 to 100 %."""
    h1, h2, h3, h4, h5, h6 = calibration[2]
    t = fine - 76800
    base = (raw << 14) - (h4 << 20) - h5 * t + 16384 >> 15
    gain = ((t * h6 >> 10) * ((t * h3 >> 11) + 32768) >> 10) + 2097152
    value = base * (gain * h2 + 8192 >> 14)
    value -= ((value >> 15) * (value >> 15) >> 7) * h1 >> 4
    return min(max(value, 0), 419430400) >> 12
