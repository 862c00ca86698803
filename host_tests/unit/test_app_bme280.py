"""The BME280's formulas give the results of the data sheets, and the chip is driven as they require."""

from app.sensors import bme280
from app.sensors.bme280 import Sensor, compensate_humidity, compensate_pressure, compensate_temperature
from umqtt_testkit.portable import Rng, equal, raises

# BST-BMP280-DS001, 3.12: the manufacturer's worked example, for formulas that both chips share.
_T = (27504, 26435, -1000)
_P = (36477, -10685, 3024, 2855, 140, -7, 15500, -14600, 6000)
_H = (75, 355, 0, 340, 50, 30)
_EXAMPLE = (_T, _P, _H)


class _I2C:
    """An I2C bus with the registers of one address. hold: a register's contents."""

    def __init__(self, chip=0x60, address=0x76):
        self.address = address
        self.hold = {0xD0: bytes([chip]), 0xF3: b"\0", 0xF7: b"\x80\0\0\x80\0\0\x80\0"}
        self.writes = []

    def scan(self):
        return [self.address]

    def readfrom_mem(self, address, register, count):
        if address != self.address:
            raise OSError(19)
        return self.hold[register][:count]

    def writeto_mem(self, address, register, data):
        self.writes.append((register, data[0]))


def _little(value):
    return bytes([value & 255, value >> 8 & 255])


def _chip(humid=True):
    i2c = _I2C(0x60 if humid else 0x58)
    i2c.hold[0x88] = b"".join([_little(value) for value in _T + _P])
    i2c.hold[0xA1] = bytes([_H[0]])
    h4, h5 = _H[3], _H[4]
    i2c.hold[0xE1] = _little(_H[1]) + bytes([_H[2], h4 >> 4, h4 & 15 | (h5 & 15) << 4, h5 >> 4, _H[5]])
    return i2c


def _measure(i2c, pressure, temperature, humidity):
    def three(value):
        return bytes([value >> 12, value >> 4 & 255, (value & 15) << 4])

    i2c.hold[0xF7] = three(pressure) + three(temperature) + bytes([humidity >> 8, humidity & 255])


def test_the_example_of_the_data_sheet():
    fine, hundredths = compensate_temperature(_EXAMPLE, 519888)
    equal((fine, hundredths), (128422, 2508))
    # The data sheet computes 100653.27 Pa, in floating point.
    assert abs(compensate_pressure(_EXAMPLE, 415148, fine) / 256 - 100653.27) < 0.05


def _humidity_in_floating_point(raw, fine):
    # The other one of Bosch's two formulas (BST-BME280-DS002, appendix 8.1).
    h1, h2, h3, h4, h5, h6 = _H
    h = fine - 76800.0
    h = (raw - (h4 * 64.0 + h5 / 16384.0 * h)) * (
        h2 / 65536.0 * (1.0 + h6 / 67108864.0 * h * (1.0 + h3 / 67108864.0 * h))
    )
    h *= 1.0 - h1 * h / 524288.0
    return min(max(h, 0.0), 100.0)


def _pressure_in_floating_point(raw, fine):
    p1, p2, p3, p4, p5, p6, p7, p8, p9 = _P
    a = fine / 2.0 - 64000.0
    b = a * a * p6 / 32768.0 + a * p5 * 2.0
    b = b / 4.0 + p4 * 65536.0
    a = (p3 * a * a / 524288.0 + p2 * a) / 524288.0
    a = (1.0 + a / 32768.0) * p1
    p = (1048576.0 - raw - b / 4096.0) * 6250.0 / a
    return p + (p9 * p * p / 2147483648.0 + p * p8 / 32768.0 + p7) / 16.0


def test_whole_numbers_agree_with_the_floating_point_formulas_over_the_range():
    rng = Rng(280)
    for _ in range(500):
        fine, hundredths = compensate_temperature(_EXAMPLE, rng.between(380000, 650000))
        if not -4000 <= hundredths <= 8500:
            continue
        raw = rng.between(20000, 45000)
        expected = _humidity_in_floating_point(raw, fine)
        assert abs(compensate_humidity(_EXAMPLE, raw, fine) / 1024 - expected) < 0.02, (raw, fine, expected)
        raw = rng.between(250000, 550000)
        expected = _pressure_in_floating_point(raw, fine)
        assert abs(compensate_pressure(_EXAMPLE, raw, fine) / 256 - expected) < 1, (raw, fine, expected)


def test_humidity_stays_between_0_and_100():
    fine, _ = compensate_temperature(_EXAMPLE, 519888)
    equal((compensate_humidity(_EXAMPLE, 0, fine), compensate_humidity(_EXAMPLE, 65535, fine) / 1024), (0, 100.0))


def test_a_calibration_of_zeros_divides_nothing_by_zero():
    equal(compensate_pressure((_T, (0,) * 9, _H), 415148, 128422), 0)


def test_the_calibration_is_read_as_it_is_laid_out():
    equal(Sensor(i2c=_chip()).calibration, _EXAMPLE)
    i2c = _chip()
    # H4 and H5 are signed 12-bit numbers that share the register between them, half a byte each.
    i2c.hold[0xE1] = _little(355) + bytes([0, 0xFF, 0x1E, 0xFE, 0xE2])
    equal(Sensor(i2c=i2c).calibration[2], (75, 355, 0, -2, -31, -30))


def test_a_measurement_is_started_and_read():
    i2c = _chip()
    sensor = Sensor(i2c=i2c)
    sensor.start()
    # 5.4.3: ctrl_hum takes effect only with the following write to ctrl_meas.
    equal(i2c.writes, [(0xF2, 1), (0xF4, 0x25)])
    _measure(i2c, 415148, 519888, 30000)
    found = sensor.read()
    equal((found["temp_c"], found["pressure_hpa"]), (25.08, 1006.53))
    assert 40 < found["humidity_pct"] < 60, found


def test_a_bmp280_gives_no_humidity():
    i2c = _chip(humid=False)
    sensor = Sensor(i2c=i2c)
    sensor.start()
    _measure(i2c, 415148, 519888, 30000)
    equal(sorted(sensor.read()), ["pressure_hpa", "temp_c"])
    equal(i2c.writes, [(0xF4, 0x25)])


def test_what_was_not_measured_is_not_made_up():
    sensor = Sensor(i2c=_chip())
    raises(OSError, sensor.read)


def test_another_chip_at_its_address_is_refused_and_nobody_there_too():
    assert "the id 0x55" in str(raises(OSError, Sensor, i2c=_I2C(0x55)))
    assert "nothing answers at 0x76" in str(raises(OSError, Sensor, i2c=_I2C(address=0x77)))
    Sensor(i2c=_chip(), address=0x76)
    equal(bme280.Sensor.lead_ms, 10)


def test_a_chip_that_is_not_ready_or_reads_zeros_gives_nothing():
    # Planted: what the registers hold is taken for a measurement: -148 °C.
    i2c = _chip()
    _measure(i2c, 415148, 519888, 20000)
    sensor = Sensor(i2c=i2c)
    equal(sorted(sensor.read()), ["humidity_pct", "pressure_hpa", "temp_c"])
    for status in (b"\x08", b"\x01"):
        i2c.hold[0xF3] = status
        raises(OSError, sensor.read)
        raises(OSError, Sensor, i2c=i2c)
    i2c.hold[0xF3] = b"\0"
    i2c.hold[0xF7] = bytes(8)
    raises(OSError, sensor.read)
    i2c.hold[0x88] = bytes(24)
    raises(OSError, Sensor, i2c=i2c)
