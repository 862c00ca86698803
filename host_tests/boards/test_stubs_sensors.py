"""Sensors at the pins of a virtual board answer and fail as the data sheets and drivers say."""

from __future__ import annotations

import errno
import random

import pytest
from stub_world import answers
from umqtt_testkit.models import MODELS

pytestmark = pytest.mark.tier(1)

SEED = 31

DS18B20 = """
import machine, onewire, ds18x20, time
bus = ds18x20.DS18X20(onewire.OneWire(machine.Pin(4)))
"""
BME280 = """
import machine, struct
bus = machine.I2C(0, scl=machine.Pin(5), sda=machine.Pin(4))
# Written from the data sheet alone (4.2.3 and appendix 8.1, double precision), with the calibration read from the chip.
first = bus.readfrom_mem(0x76, 0x88, 26)
second = bus.readfrom_mem(0x76, 0xE1, 7)
t1, t2, t3, p1, p2, p3, p4, p5, p6, p7, p8, p9 = struct.unpack("<HhhHhhhhhhhh", first)
h1, h2, h3 = first[25], struct.unpack("<h", second)[0], second[2]
h4 = (second[3] << 4) | (second[4] & 15)
h5 = (second[5] << 4) | (second[4] >> 4)
h6 = second[6]
def measured():
    data = bus.readfrom_mem(0x76, 0xF7, 8)
    p = data[0] << 12 | data[1] << 4 | data[2] >> 4
    t = data[3] << 12 | data[4] << 4 | data[5] >> 4
    h = data[6] << 8 | data[7]
    v1 = (t / 16384.0 - t1 / 1024.0) * t2
    v2 = (t / 131072.0 - t1 / 8192.0) * (t / 131072.0 - t1 / 8192.0) * t3
    fine = v1 + v2
    celsius = fine / 5120.0
    v1 = fine / 2.0 - 64000.0
    v2 = v1 * v1 * p6 / 32768.0 + v1 * p5 * 2.0
    v2 = v2 / 4.0 + p4 * 65536.0
    v1 = (p3 * v1 * v1 / 524288.0 + p2 * v1) / 524288.0
    v1 = (1.0 + v1 / 32768.0) * p1
    hpa = 1048576.0 - p
    hpa = (hpa - v2 / 4096.0) * 6250.0 / v1
    v1 = p9 * hpa * hpa / 2147483648.0
    v2 = hpa * p8 / 32768.0
    hpa = (hpa + (v1 + v2 + p7) / 16.0) / 100
    x = fine - 76800.0
    slope = h2 / 65536.0 * (1.0 + h6 / 67108864.0 * x * (1.0 + h3 / 67108864.0 * x))
    x = (h - (h4 * 64.0 + h5 / 16384.0 * x)) * slope
    percent = x * (1.0 - h1 * x / 524288.0)
    return (celsius, hpa, percent, p, t, h)
def force(humidity=1, control=0x25):
    bus.writeto_mem(0x76, 0xF2, bytes((humidity,)))
    bus.writeto_mem(0x76, 0xF4, bytes((control,)))
"""


# DS18B20


def test_a_thermometer_says_85_until_its_conversion_is_done():
    early, converting, done, late = answers(
        DS18B20
        + """
onewire.time = clock = Clock()
rom = bus.scan()[0]
show(bus.read_temp(rom))
bus.convert_temp()
clock.advance(749)
show((bus.ow.readbit(), bus.read_temp(rom)))
clock.advance(1)
show(bus.ow.readbit())
show(bus.read_temp(rom))
""",
        ds18b20={"4": [21.5]},
    )
    assert (early, converting, done, late) == (85.0, (0, 85.0), 1, 21.5)


def test_every_sixteenth_of_a_degree_comes_through_the_scratchpad():
    print("seed", SEED)
    wanted = [-55.0, -0.0625, 0.0, 0.0625, 125.0] + [random.Random(SEED).randrange(-880, 2000) / 16 for _ in range(40)]
    found = answers(
        DS18B20
        + """
onewire.time = clock = Clock()
bus.convert_temp()
clock.advance(750)
show([bus.read_temp(rom) for rom in bus.scan()])
""",
        ds18b20={"4": wanted},
    )
    assert found == [wanted]


def test_thermometers_are_told_apart_by_roms_with_a_checksum():
    (roms,) = answers(
        DS18B20 + "roms = bus.scan()\nshow([(bytes(rom), bus.ow.crc8(rom)) for rom in roms])",
        ds18b20={"4": [1, None, 3]},
    )
    assert len({rom for rom, _ in roms}) == 2, "one does not answer"
    assert all(rom[0] == 0x28 and len(rom) == 8 and crc == 0 for rom, crc in roms)


def test_a_bus_fails_in_the_words_of_its_drivers():
    nobody = answers(
        DS18B20 + "show((bus.ow.reset(), bus.scan(), fails(bus.convert_temp), fails(bus.read_temp, bytes(8))))"
    )
    assert nobody == [(False, [], ("OneWireError",), ("OneWireError",))]
    noise, stranger = answers(
        DS18B20
        + """
show(fails(bus.read_temp, bus.scan()[0]))
show(fails(bus.read_temp, b"\\x28" + bytes(7)))
""",
        ds18b20={"4": ["crc"]},
    )
    assert noise == stranger == ("Exception", "CRC error")


# DHT


def test_a_dht_answers_and_fails_as_its_driver_does():
    program = """
import dht, machine
line = machine.Pin(4)
d = dht.DHT22(line)
world(dht={"4": [-12.34, 55.51]})
d.measure()
show((d.temperature(), d.humidity()))
d = dht.DHT11(line)
world(dht={"4": [21.7, 40]})
d.measure()
show((d.temperature(), d.humidity()))
world(dht={"4": None})
show(fails(d.measure))
world(dht={"4": "checksum"})
show(fails(d.measure))
"""
    tenths, whole, nobody, noise = answers(program)
    assert tenths == pytest.approx((-12.3, 55.5), abs=0.06), "a DHT22 counts in tenths and knows frost"
    assert whole == (22, 40)
    assert nobody == ("OSError", errno.ETIMEDOUT)
    assert noise == ("Exception", "checksum error")


# BME280


@pytest.mark.parametrize("board", ["ESP32_GENERIC", "RPI_PICO_W"])
def test_a_driver_that_follows_the_data_sheet_finds_the_weather_that_was_set(board: str):
    print("seed", SEED)
    chance = random.Random(SEED)
    weathers = [(0.0, 1013.25, 50.0), (-39.0, 305.0, 1.0), (80.0, 1095.0, 99.0)]
    weathers += [(chance.uniform(-30, 60), chance.uniform(600, 1090), chance.uniform(3, 97)) for _ in range(3)]
    program = f"""
for celsius, hpa, percent in {weathers}:
    world(i2c={{"0x76": {{"celsius": celsius, "hpa": hpa, "percent": percent}}}})
    force()
    show(measured()[:3])
"""
    seen = answers(BME280 + program, board, i2c={"0x76": {}})
    assert len(seen) == len(weathers)
    for (celsius, hpa, percent), found in zip(weathers, seen, strict=True):
        assert found[0] == pytest.approx(celsius, abs=0.01)
        assert found[1] == pytest.approx(hpa, abs=0.05)
        assert found[2] == pytest.approx(percent, abs=0.1)


def test_a_bme280_measures_when_it_is_told_to_and_only_what():
    asleep, forced, mode, no_pressure, no_humidity, latched, reset = answers(
        BME280
        + """
show(measured()[3:])
force()
show(0x80000 not in measured()[3:])
show(bus.readfrom_mem(0x76, 0xF4, 1)[0] & 3)
force(control=0x21)
show(measured()[3])
force(humidity=0)
show(measured()[5])
bus.writeto_mem(0x76, 0xF2, b"\\x01")  # takes effect with the next write of ctrl_meas
show(measured()[5])
bus.writeto_mem(0x76, 0xE0, b"\\xb6")
show((bus.readfrom_mem(0x76, 0xD0, 1), bus.readfrom_mem(0x76, 0xF2, 3), measured()[3:]))
""",
        i2c={"0x76": {}},
    )
    skipped = (0x80000, 0x80000, 0x8000)
    assert (asleep, forced, mode) == (skipped, True, 0)
    assert (no_pressure, no_humidity, latched) == (0x80000, 0x8000, 0x8000)
    assert reset == (b"\x60", b"\0\0\0", skipped)


@pytest.mark.parametrize(("board", "number"), [("ESP32_GENERIC", errno.ENODEV), ("RPI_PICO_W", errno.EIO)])
def test_a_bus_without_that_device_fails_with_the_number_of_its_port(board: str, number: int):
    program = """
import machine
hard = machine.I2C(0, scl=machine.Pin(5), sda=machine.Pin(4))
soft = machine.SoftI2C(scl=machine.Pin(5), sda=machine.Pin(4))
show((hard.scan(), fails(hard.readfrom, 0x76, 1), fails(soft.readfrom, 0x76, 1), fails(hard.writeto, 0x40, b"a")))
"""
    found = answers(program, board, i2c={"0x40": "timeout"})
    assert found == [([], ("OSError", number), ("OSError", errno.ENODEV), ("OSError", errno.ETIMEDOUT))]


def test_a_pico_refuses_pins_of_another_bus():
    program = """
import machine
show(fails(machine.I2C, 0, scl=machine.Pin(7), sda=machine.Pin(4)))
show(fails(machine.I2C, 2))
"""
    assert answers(program, "RPI_PICO_W") == [("ValueError", "bad SCL pin"), ("ValueError", "I2C(2) doesn't exist")]


# The chip itself


CELSIUS = (-20.0, 0.0, 27.0, 63.5)


@pytest.mark.parametrize(
    ("board", "read", "wanted"),
    [
        ("ESP32_GENERIC", "(esp32.raw_temperature() - 32) / 1.8", pytest.approx(CELSIUS, abs=0.3)),
        # Rounded as in the port (modesp32.c): below zero, towards it.
        ("ESP32_GENERIC_C3", "esp32.mcu_temperature()", [int(one + 0.5) for one in CELSIUS]),
        # The formula of the Pico's own documentation.
        ("RPI_PICO_W", "27 - (machine.ADC(4).read_u16() * 3.3 / 65535 - 0.706) / 0.001721",
         pytest.approx(CELSIUS, abs=0.5)),
    ],
)  # fmt: skip
def test_the_chips_thermometer_is_read_as_the_board_has_it(board: str, read: str, wanted: object):
    module = "esp32" if "esp32" in read else "machine"
    program = f"import {module}\nfor c in {CELSIUS}:\n    world(chip_celsius=c)\n    show({read})"
    assert answers(program, board) == wanted


def test_each_chip_has_the_thermometer_of_its_kind_alone():
    program = "import esp32\nshow((hasattr(esp32, 'raw_temperature'), hasattr(esp32, 'mcu_temperature')))"
    found = {name: answers(program, name)[0] for name, model in MODELS.items() if model.platform == "esp32"}
    assert found == {
        "ESP32_GENERIC": (True, False), "ESP32_GENERIC_S3": (False, True), "ESP32_GENERIC_C3": (False, True),
        "ESP32_GENERIC_C6": (False, True),
    }  # fmt: skip


def test_a_picos_supply_is_seen_only_while_the_wifi_chip_is_not_selected():
    seen, unseen = answers(
        """
import machine
def volts():
    return machine.ADC(machine.Pin(29)).read_u16() * 3 * 3.3 / 65535
select = machine.Pin(25, machine.Pin.OUT, value=1)
show(volts())
select.off()
show(volts())
""",
        "RPI_PICO_W",
        supply_volts=4.6,
    )
    assert seen == pytest.approx(4.6, abs=0.01)
    assert unseen == 0


# SHT31

SHT31 = """
import machine, _sht31
bus = machine.I2C(0, scl=machine.Pin(5), sda=machine.Pin(4))
_sht31.time = clock = Clock()
clock.sleep_ms = clock.advance
def order(command):
    bus.writeto(0x44, bytes((command >> 8, command & 0xFF)))
def words(count):
    data = bus.readfrom(0x44, 3 * count)
    return [data[at] << 8 | data[at + 1] for at in range(0, 3 * count, 3)]
"""


@pytest.mark.parametrize(("board", "number"), [("ESP32_GENERIC", errno.ENODEV), ("RPI_PICO_W", errno.EIO)])
def test_an_sht31_measures_as_ordered_and_is_silent_until_then(board: str, number: int):
    """Planted: the sensor answers before the measurement has ended."""
    program = """
show(fails(words, 2))
order(0x2400)
clock.advance(15)
show(fails(words, 2))
clock.advance(1)
show(words(2))
show(fails(words, 2))
order(0x2C06)
show((words(2), clock.ticks_ms()))
show(fails(order, 0x1234))
show(fails(order, 0xE000))
order(0x2130)
order(0xE000)
show(words(2))
order(0xF32D)
show((words(1), _sht31._with_crc(0xBEEF)[2]))
"""
    # 4.13: 21.5 °C and 40 %.
    measured = [round(66.5 / 175 * 0xFFFF), round(0.4 * 0xFFFF)]
    silent = ("OSError", number)
    found = answers(SHT31 + program, board, i2c={"0x44": {"model": "sht31", "celsius": 21.5, "percent": 40}})
    # The data sheet's own example of a checksum is 0x92.
    assert found == [silent, silent, measured, silent, (measured, 32), silent, silent, measured, ([0x8010], 0x92)]
