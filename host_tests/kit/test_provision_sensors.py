"""umqtt provision knows the sensors of the firmware and the pins of a chip, and tries each sensor before it ends."""

from __future__ import annotations

import json

import pytest
from cable import Cable
from test_device_provision import BROKER, on_board
from umqtt_kit.device.ports import board_description
from umqtt_kit.provision.sensors import SensorCheck, drivers, line_of

from umqtt_cli.errors import KitError

_SHT = {"module": "sht3x", "scl": 22, "sda": 21, "address": "0x44", "name": "attic"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bme20 pin=4", "sensor 1 (bme20): no module of this name — did you mean bme280?"),
        ("dht22 pni=4", "no key 'pni' — did you mean pin?"),
        ("dht22 colour=4", "no key 'colour' — it has module, name, pin"),
        ("dht22", "pin is missing"),
        ("dht22 pin=onwire", "no pin 'onwire' — did you mean onewire?"),
        ("dht22 pin=24", "an ESP32 has no pin 24 for sensors — it has 0 to 5, 12 to 19, "),
        ("dht22 pin", "must be KEY=VALUE"),
    ],
)
def test_what_a_board_cannot_have_is_refused_with_what_may_be_meant(line: str, said: str):
    """Planted: any key is taken; pins are not looked at."""
    check = SensorCheck([], board_description("ESP32_GENERIC"))
    with pytest.raises(KitError) as caught:
        check.entry_of(line)
    assert said in str(caught.value)


def test_addresses_in_hex_and_pins_by_name_become_numbers():
    check = SensorCheck(["own"], board_description("RPI_PICO_W"))
    entry = check.entry_of("bme280 scl=i2c_scl sda=i2c_sda address=0x77 name=attic")
    assert entry == {"module": "bme280", "scl": 5, "sda": 4, "address": 119, "name": "attic"}
    assert check.entry_of(line_of(entry)) == entry
    assert check.entry_of("own what=0x5 list=[1]") == {"module": "own", "what": "0x5", "list": [1]}
    # Keys are found through the classes that a driver is built on.
    assert drivers()["ina226"].keys() == {"module", "name", "scl", "sda", "address", "bus", "shunt_ohm"}
    assert drivers()["hx711"]["clock"] and not drivers()["pwm"]["safe"]


def test_each_sensor_is_tried_before_it_ends_also_without_a_firmware(cable: Cable):
    """Planted: what a board without this driver says is that it has no such module."""
    with cable.board(board="ESP32_GENERIC") as board:
        board.hooks(i2c={"0x44": {"model": "sht31", "celsius": 21.5, "percent": 40}, "0x76": {}})
        sensors = [_SHT, {"module": "bme280", "scl": 22, "sda": 21, "address": "0x77"}, {"module": "level", "pin": 3}]
        pairs = (f'brokers=["{BROKER}"]', 'wifi=["workshop"]', f"sensors={json.dumps(sensors)}")
        options = [part for pair in pairs for part in ("--set", pair)]
        answer = cable.umqtt("provision", *options, "--json")
        assert answer.code == 0, answer
        attic, bme, level = answer.json["boards"][0]["sensors"]
        assert attic["problem"] is None and attic["metrics"].keys() == {"attic_temp_c", "attic_humidity_pct"}
        assert attic["metrics"]["attic_temp_c"] == pytest.approx(21.5, abs=0.01)
        assert "nothing answers at 0x77; 0x44 answers: a SHT3x" in bme["problem"], bme
        assert "0x76 answers: a BME280 by its id" in bme["problem"], bme
        assert "no module" in level["problem"] and "level" in level["problem"]
        assert on_board(board.port)[0]["sensors"][0]["address"] == 0x44
        answer = cable.umqtt("provision", "--set", "interval_ms=60000")
        assert "sensor attic: attic_humidity_pct 40.0, attic_temp_c 21.5" in answer.stderr, answer
        assert "0x76 answers: a BME280 by its id" in answer.stderr and "sensor level: " in answer.stderr
        refused = cable.umqtt("provision", "--set", 'sensors=[{"module": "dht22", "pin": 24}]')
        assert refused.code == 2 and "no pin 24" in refused.stderr and "nothing was written" in refused.stderr
        assert len(on_board(board.port)[0]["sensors"]) == 3
