"""Sensors and signals connected to a virtual board, each described by one text: ``sht31@0x44:temp_c=21..23``.

KIND@PLACE:QUANTITY=VALUE,… where PLACE is an I2C address (bme280, sht31) or the number of a pin, and VALUE a number
or LOW..HIGH: then the quantity goes up and down between the two, once a minute. A quantity that is left out has the
usual value of its kind. Several ds18b20 share a pin.

>>> from umqtt_testkit.devices import Devices
>>> Devices(["sht31@0x44:temp_c=21..23"]).hooks(at_s=15.0)
{'i2c': {'0x44': {'model': 'sht31', 'celsius': 22.0, 'percent': 50.0}}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PERIOD_S = 60.0
_SPEC = re.compile(r"(?P<kind>\w+)@(?P<place>\w+)(?::(?P<values>.*))?")


@dataclass(frozen=True)
class Quantity:
    """A quantity that a device measures.

    stub: its name in the stub module (see _device/stubs). lowest, highest: the range that the device can measure.
    """

    stub: str
    usual: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Kind:
    hook: str
    places: range
    quantities: dict[str, Quantity]


_PINS = range(64)
KINDS = {
    "bme280": Kind(
        "i2c",
        range(0x76, 0x78),
        {
            "temp_c": Quantity("celsius", 21, -40, 85),
            "humidity_pct": Quantity("percent", 50, 0, 100),
            "pressure_hpa": Quantity("hpa", 1013.25, 300, 1100),
        },
    ),
    "sht31": Kind(
        "i2c",
        range(0x44, 0x46),
        {"temp_c": Quantity("celsius", 21, -40, 125), "humidity_pct": Quantity("percent", 50, 0, 100)},
    ),
    "ds18b20": Kind("ds18b20", _PINS, {"temp_c": Quantity("celsius", 21, -55, 125)}),
    "dht22": Kind(
        "dht",
        _PINS,
        {"temp_c": Quantity("celsius", 21, -40, 80), "humidity_pct": Quantity("percent", 50, 0, 100)},
    ),
    "adc": Kind("adc", _PINS, {"v": Quantity("volts", 1, 0, 3.3)}),
    "pin": Kind("pins", _PINS, {"level": Quantity("level", 1, 0, 1)}),
}


@dataclass(frozen=True)
class _Range:
    low: float
    high: float

    def at(self, at_s: float) -> float:
        share = 2 * (at_s % PERIOD_S) / PERIOD_S
        return round(self.low + (self.high - self.low) * min(share, 2 - share), 3)


@dataclass(frozen=True)
class _Device:
    kind: str
    place: int
    values: dict[str, _Range]


class Devices:
    """The devices connected to a board. Raises ValueError for a text it cannot parse, listing what is known."""

    def __init__(self, specs: Iterable[str]) -> None:
        self._devices: list[_Device] = []
        # I2C addresses and pin numbers do not overlap.
        taken: dict[int, str] = {}
        for spec in specs:
            device = _parse(spec)
            before = taken.get(device.place)
            if before and not (device.kind == "ds18b20" and before.startswith("ds18b20@")):
                raise ValueError(f"{spec}: {before} is at that place already")
            taken[device.place] = spec
            self._devices.append(device)

    @property
    def moving(self) -> bool:
        """Whether a value changes with time."""
        return any(value.low != value.high for device in self._devices for value in device.values.values())

    def hooks(self, at_s: float) -> dict[str, object]:
        """Return the hooks for VirtualBoard.hooks(), with the values `at_s` seconds after an arbitrary start."""
        found: dict[str, dict[str, Any]] = {}
        for device in self._devices:
            kind = KINDS[device.kind]
            values = {
                quantity.stub: device.values[name].at(at_s) if name in device.values else float(quantity.usual)
                for name, quantity in kind.quantities.items()
            }
            connected = found.setdefault(kind.hook, {})
            if kind.hook == "i2c":
                connected[hex(device.place)] = {"model": device.kind, **values}
            elif kind.hook == "ds18b20":
                connected.setdefault(str(device.place), []).append(values["celsius"])
            elif kind.hook == "dht":
                connected[str(device.place)] = list(values.values())
            else:
                (value,) = values.values()
                connected[str(device.place)] = value if kind.hook == "adc" else round(value)
        return dict(found)


def _parse(spec: str) -> _Device:
    form = _SPEC.fullmatch(spec)
    if form is None:
        raise ValueError(f"{spec}: must be like sht31@0x44:temp_c=21..23")
    kind = KINDS.get(form["kind"])
    if kind is None:
        raise ValueError(f"{spec}: there is no {form['kind']}; known are: {', '.join(sorted(KINDS))}")
    try:
        place = int(form["place"], 0)
    except ValueError:
        place = -1
    if place not in kind.places:
        show = hex if kind.hook == "i2c" else str
        where = "at an I2C address" if kind.hook == "i2c" else "on a pin"
        raise ValueError(
            f"{spec}: a {form['kind']} is {where} from {show(kind.places[0])} to {show(kind.places[-1])}"
        )
    values = {}
    for part in (form["values"] or "").split(",") if form["values"] else ():
        name, _, value = part.partition("=")
        quantity = kind.quantities.get(name)
        if quantity is None:
            raise ValueError(f"{spec}: {form['kind']} has no {name!r}; it has {', '.join(kind.quantities)}")
        values[name] = _range(spec, name, value, quantity)
    return _Device(form["kind"], place, values)


def _range(spec: str, name: str, value: str, quantity: Quantity) -> _Range:
    low, separator, high = value.partition("..")
    try:
        found = _Range(float(low), float(high if separator else low))
    except ValueError:
        found = _Range(math.nan, math.nan)
    # This comparison also refuses a nan.
    if not quantity.lowest <= found.low <= found.high <= quantity.highest:
        raise ValueError(
            f"{spec}: {name} is a number or LOW..HIGH from {quantity.lowest:g} to {quantity.highest:g}, not {value!r}"
        )
    return found
