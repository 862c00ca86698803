"""Cayenne LPP: bytes in which each value has a channel and a type, as LoRaWAN devices send them."""

import base64
import binascii
import struct

from .json import shown
from .reading import BadRecord

# Type to (name, struct format, divisor), or to (name, format, ((part, divisor), …)).
_TYPES: dict[int, tuple[str, str, float | tuple[tuple[str, float], ...]]] = {
    0: ("digital_in", "B", 1),
    1: ("digital_out", "B", 1),
    2: ("analog_in", ">h", 100),
    3: ("analog_out", ">h", 100),
    100: ("generic", ">I", 1),
    101: ("luminosity", ">H", 1),
    102: ("presence", "B", 1),
    103: ("temperature", ">h", 10),
    104: ("humidity", "B", 2),
    113: ("accelerometer", ">hhh", (("x", 1000), ("y", 1000), ("z", 1000))),
    115: ("barometer", ">H", 10),
    116: ("voltage", ">H", 100),
    117: ("current", ">H", 1000),
    118: ("frequency", ">I", 1),
    120: ("percentage", "B", 1),
    121: ("altitude", ">h", 1),
    125: ("concentration", ">H", 1),
    128: ("power", ">H", 1),
    130: ("distance", ">I", 1000),
    131: ("energy", ">I", 1000),
    132: ("direction", ">H", 1),
    133: ("unixtime", ">I", 1),
    134: ("gyrometer", ">hhh", (("x", 100), ("y", 100), ("z", 100))),
    135: ("colour", "BBB", (("r", 1), ("g", 1), ("b", 1))),
    # Three whole numbers of three bytes each: see _gps().
    136: ("gps", "9s", (("latitude", 10_000), ("longitude", 10_000), ("altitude", 100))),
    142: ("switch", "B", 1),
}


def cayenne_object(payload: bytes) -> dict[str, object]:
    """Return the values as ``{"temperature_3": 21.5, "gps_1": {"latitude": …}}``; the number is the channel.

    :raises BadRecord: a type is not known, a value is cut off, or a channel has two values of a type.
    """
    found: dict[str, object] = {}
    at = 0
    while at < len(payload):
        if at + 2 > len(payload) or payload[at + 1] not in _TYPES:
            raise BadRecord(f"not Cayenne LPP: no type at byte {at + 1}: {shown(payload[at : at + 2])}")
        name, form, scale = _TYPES[payload[at + 1]]
        key = f"{name}_{payload[at]}"
        at += 2
        if at + struct.calcsize(form) > len(payload):
            raise BadRecord(f"not Cayenne LPP: the value of {key} is cut off")
        if key in found:
            raise BadRecord(f"not Cayenne LPP: {key} is there twice")
        numbers = struct.unpack_from(form, payload, at)
        at += struct.calcsize(form)
        if isinstance(scale, tuple):
            parts = _gps(numbers[0]) if name == "gps" else numbers
            found[key] = {part: number / by for (part, by), number in zip(scale, parts, strict=True)}
        else:
            found[key] = numbers[0] / scale
    return found


def _gps(content: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(content[i : i + 3], signed=True) for i in (0, 3, 6))


def from_base64(text: object, field: str) -> bytes:
    """Return the bytes that a field holds in base64. Raises BadRecord if it does not."""
    if type(text) is not str:
        raise BadRecord(f"the field {field} is missing, or no text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRecord(f"the field {field} is not base64: {shown(text)}") from None
