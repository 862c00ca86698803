"""The drivers agree with Adafruit's and Pimoroni's on what chips send: random values, and the same bytes for both.

These are installed in .venv/peers, pinned and without what they need on a Raspberry Pi: a megabyte.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _drivers import ROWS, Bus
from umqtt_testkit.portable import Rng

pytestmark = pytest.mark.tier(2)

PEER_OF = {
    "sht4x": "adafruit-circuitpython-sht4x==1.0.27", "sht3x": "adafruit-circuitpython-sht31d==2.3.31",
    "aht20": "adafruit-circuitpython-ahtx0==1.0.30", "bh1750": "adafruit-circuitpython-bh1750==1.1.19",
    "ina219": "adafruit-circuitpython-ina219==3.5.2", "ads1115": "adafruit-circuitpython-ads1x15==3.0.5",
    "scd4x": "adafruit-circuitpython-scd4x==1.4.13", "pms5003": "adafruit-circuitpython-pm25==2.1.24",
    "gps": "adafruit-circuitpython-gps==4.0.0", "bme680": "bme680==2.0.0",
}  # fmt: skip
_SHARED = ("adafruit-circuitpython-busdevice==5.2.17", "adafruit-circuitpython-register==1.13.0")
_FOLDER = Path(sys.prefix) / "peers"


class _Shared(Bus):
    """The bus as CircuitPython has it. also: further commands after which the chip sends what it measured."""

    def __init__(self, address: int, answers: dict[bytes, bytes], also: dict[bytes, bytes]) -> None:
        super().__init__(address, answers)
        self._also = also

    def try_lock(self) -> bool:
        return True

    def unlock(self) -> None:
        pass

    def writeto(self, address: int, data: bytes, *, start: int = 0, end: int | None = None) -> None:
        super().writeto(address, data[start:end])
        if len(self.last) == 3 and self.last not in self.answers:
            self.answers.setdefault(self.last[:1], self.last[1:])

    def readfrom_into(self, address: int, into: bytearray, *, start: int = 0, end: int | None = None) -> None:
        end = len(into) if end is None else end
        key = self._also.get(self.last, self.last)
        key = key if key in self.answers else key[:1] if key[:1] in self.answers else b""
        into[start:end] = self._answer(key, end - start)

    def writeto_then_readfrom(self, address: int, out: bytes, into: bytearray, **parts: Any) -> None:
        self.writeto(address, out, start=parts.get("out_start", 0), end=parts.get("out_end"))
        self.readfrom_into(address, into, start=parts.get("in_start", 0), end=parts.get("in_end"))


class _Uart:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, count: int) -> bytes:
        found, self._data = self._data[:count], self._data[count:]
        return found

    def readline(self) -> bytes:
        line, mark, self._data = self._data.partition(b"\n")
        return line + mark

    @property
    def in_waiting(self) -> int:
        return len(self._data)


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _sht(module: str, name: str, bus: Bus) -> dict[str, float]:
    chip = _of(module, name)(bus, 0x45) if name == "SHT31D" else _of(module, name)(bus)
    return {"temp_c": chip.temperature, "humidity_pct": chip.relative_humidity}


def _bh1750(bus: Bus) -> dict[str, float]:
    chip = _of("adafruit_bh1750", "BH1750")(bus)
    chip.resolution = _of("adafruit_bh1750", "Resolution").MID  # 1 lx, as ours
    return {"light_lx": chip.lux}


def _ina219(bus: Bus) -> dict[str, float]:
    bus.answers[b"\0"] = b"\x39\x9f"  # the configuration
    chip = _of("adafruit_ina219", "INA219")(bus)
    volts, amperes = chip.bus_voltage, chip.shunt_voltage / 0.002
    return {"voltage_v": volts, "current_a": amperes, "power_w": volts * amperes}


def _ads1115(bus: Bus) -> dict[str, float]:
    bus.answers[b"\1"] = b"\x85\x83"  # it has converted
    chip = _of("adafruit_ads1x15", "ADS1115")(bus, gain=2)
    return {"a3_v": _of("adafruit_ads1x15", "AnalogIn")(chip, 3).voltage}


def _scd4x(bus: Bus) -> dict[str, float]:
    chip = _of("adafruit_scd4x", "SCD4X")(bus)
    return {"co2_ppm": chip.CO2, "temp_c": chip.temperature, "humidity_pct": chip.relative_humidity}


def _pm25(uart: _Uart) -> dict[str, float]:
    uart.read(3)
    uart.read(32)
    found = _of("adafruit_pm25.uart", "PM25_UART")(uart).read()
    return {"pm1_ugm3": found["pm10 env"], "pm25_ugm3": found["pm25 env"], "pm10_ugm3": found["pm100 env"]}


def _gps(uart: _Uart) -> dict[str, float]:
    chip = _of("adafruit_gps", "GPS")(uart)
    while uart.in_waiting > 3:
        chip.update()
    names = {"lat_deg": "latitude", "lon_deg": "longitude", "alt_m": "altitude_m", "satellites": "satellites"}
    return {metric: getattr(chip, name) for metric, name in names.items()}


class _SmBus:
    """The bus as Linux has it."""

    def __init__(self, bus: Bus) -> None:
        self._answers = bus.answers

    def read_byte_data(self, address: int, register: int) -> int:
        return self.read_i2c_block_data(address, register, 1)[0]

    def read_i2c_block_data(self, _address: int, register: int, count: int) -> list[int]:
        return list((self._answers.get(bytes([register]), b"") + bytes(count))[:count])

    def write_byte_data(self, _address: int, register: int, value: int) -> None:
        self._answers[bytes([register])] = bytes([value])


def _bme680(bus: Bus) -> dict[str, float]:
    chip = _of("bme680", "BME680")(bus.address, _SmBus(bus))
    chip.get_sensor_data()
    data = chip.data
    found = {"temp_c": data.temperature, "pressure_hpa": data.pressure, "humidity_pct": data.humidity}
    # To it half an ohm is added, which rounds it in C alone.
    return found | {"gas_ohm": data.gas_resistance - 0.5}


_BY_MODULE: dict[str, Callable[[Any], dict[str, float]]] = {
    "sht4x": lambda bus: _sht("adafruit_sht4x", "SHT4x", bus),
    "sht3x": lambda bus: _sht("adafruit_sht31d", "SHT31D", bus),
    "aht20": lambda bus: _sht("adafruit_ahtx0", "AHTx0", bus),
    "bh1750": _bh1750, "ina219": _ina219, "ads1115": _ads1115, "scd4x": _scd4x, "pms5003": _pm25, "gps": _gps,
    "bme680": _bme680,
}  # fmt: skip
# What they import of a Raspberry Pi: names alone.
_BLINKA = ("busio", "circuitpython_typing", "circuitpython_typing.device_drivers", "digitalio", "micropython")
_KINDS = ("I2C", "UART", "DigitalInOut", "Direction", "ReadableBuffer", "WriteableBuffer", "I2CDeviceDriver")
_ALSO = {b"\x10": b"\x20", b"\x11": b"\x20"}


@pytest.fixture(scope="module", autouse=True)
def peers() -> Iterator[None]:
    if not all((_FOLDER / name).exists() for name in ("adafruit_sht4x.py", "bme680")):
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(_FOLDER)]
        if subprocess.run([*pip, *_SHARED, *PEER_OF.values()], capture_output=True, check=False).returncode:
            pytest.skip("pip cannot install other drivers here: it needs the network once")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(_FOLDER))
        for name in _BLINKA:
            module: Any = types.ModuleType(name)
            for kind in _KINDS:
                setattr(module, kind, object)
            module.const = int
            patch.setitem(sys.modules, name, module)
        patch.setattr(time, "sleep", lambda seconds: None)
        yield


@pytest.mark.parametrize("module", PEER_OF)
def test_a_driver_agrees_with_that_of_others(module: str) -> None:
    """Planted: 25 in the place of 32 as the scale of the table's formulas."""
    row = next(row for row in ROWS if row.module == module)
    rng = Rng(77)
    for _ in range(30):
        raw = [rng.below(1 << bits) for bits in row.bits]
        wanted, wire = row.means(*raw), row.wire(*raw)
        if isinstance(wanted, str) or ("humidity_pct" in wanted and not 0 < wanted["humidity_pct"] < 100):
            continue
        found = _BY_MODULE[module](_Shared(row.address, wire, _ALSO) if row.address else _Uart(wire["uart"]))
        # That of the BME680 computes in whole numbers.
        assert found == pytest.approx(wanted, rel=1e-4, abs=0.05 if module == "bme680" else 1e-4), raw
