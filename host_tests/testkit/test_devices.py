"""A text connects devices to a virtual board as its stub modules expect, and a wrong text gives a one-line error."""

from __future__ import annotations

import doctest

import pytest
from umqtt_testkit import devices
from umqtt_testkit.devices import Devices


def test_the_example_of_the_module_is_true():
    assert doctest.testmod(devices).failed == 0


@pytest.mark.parametrize(
    ("spec", "hooks"),
    [
        ("bme280@0x76", {"i2c": {"0x76": {"model": "bme280", "celsius": 21, "percent": 50, "hpa": 1013.25}}}),
        ("sht31@69:humidity_pct=1", {"i2c": {"0x45": {"model": "sht31", "celsius": 21, "percent": 1}}}),
        ("ds18b20@4:temp_c=-3.5", {"ds18b20": {"4": [-3.5]}}),
        ("dht22@4:humidity_pct=40,temp_c=20", {"dht": {"4": [20, 40]}}),
        ("adc@34:v=1.8", {"adc": {"34": 1.8}}),
        ("pin@14:level=0", {"pins": {"14": 0}}),
    ],
)
def test_each_kind_is_a_hook_of_the_stub_modules(spec: str, hooks: dict[str, object]):
    connected = Devices([spec])
    assert connected.hooks(at_s=0) == connected.hooks(at_s=17) == hooks and not connected.moving


def test_a_range_goes_up_and_down_once_a_minute_and_never_outside():
    connected = Devices(["adc@34:v=1..3", "pin@14:level=0..1"])
    seen = [connected.hooks(at_s=at) for at in (0, 15, 30, 45, 60)]
    assert connected.moving
    assert [each["adc"]["34"] for each in seen] == [1, 2, 3, 2, 1]
    assert [each["pins"]["14"] for each in seen[::2]] == [0, 1, 0]


def test_thermometers_share_a_wire_and_nothing_else_does():
    assert Devices(["ds18b20@4:temp_c=1", "ds18b20@4:temp_c=2"]).hooks(0) == {"ds18b20": {"4": [1, 2]}}
    for pair in (["adc@4", "pin@4"], ["adc@4", "adc@4"], ["ds18b20@4", "dht22@4"], ["dht22@4", "ds18b20@4"]):
        with pytest.raises(ValueError, match=f"{pair[0]} is at that place already"):
            Devices(pair)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("", "must be like"),
        ("sht31", "must be like"),
        ("sht31@0x44 :temp_c=1", "must be like"),
        ("aht20@0x38", "known are: adc, bme280"),
        ("sht31@0x50", "from 0x44 to 0x45"),
        ("adc@A0", "on a pin from 0 to 63"),
        ("adc@-1", "must be like"),
        ("adc@64:v=1", "on a pin from 0 to 63"),
        ("adc@34:celsius=1", "it has v"),
        ("adc@34:v", "not ''"),
        ("adc@34:v=nan", "not 'nan'"),
        ("adc@34:v=3..1", "not '3..1'"),
        ("adc@34:v=1..", "not '1..'"),
        ("adc@34:v=3.4", "from 0 to 3.3"),
        ("adc@34:v=1,", "no ''"),
    ],
)
def test_what_is_not_understood_is_told_with_what_would_be(spec: str, told: str):
    with pytest.raises(ValueError) as raised:
        Devices([spec])
    assert str(raised.value).startswith(spec) and told in str(raised.value) and "\n" not in str(raised.value)
