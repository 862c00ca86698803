"""SenML (RFC 8428), in JSON or CBOR: a pack of records, each with a name, a time and a value."""

import math
from collections.abc import Callable

from .cbor import cbor_value
from .json import json_value, shown
from .names import level
from .reading import BadRecord, Reading, Topic

# Label in CBOR (section 6) to the name of the field.
_LABELS = {
    "-1": "bver",
    "-2": "bn",
    "-3": "bt",
    "-4": "bu",
    "-5": "bv",
    "-6": "bs",
    "0": "n",
    "1": "u",
    "2": "v",
    "3": "vs",
    "4": "vb",
    "5": "s",
    "6": "t",
    "7": "ut",
    "8": "vd",
}
_NEWEST_VERSION = 10
# A smaller time is relative to now (section 4.5.3), in seconds.
_ABSOLUTE_FROM = 1 << 28


def senml_reader(device_is_base_name: bool, variable_levels: bool) -> Callable[[Topic, bytes], list[Reading]]:
    """Return a decoder of packs.

    :param device_is_base_name: the device is the base name, and a metric is named by `n`. Otherwise the topic has the
        device, and a metric is named by both: the same `n` under two base names is two series.
    :param variable_levels: the number of the topic's levels in names varies: a slash in a name is written with a
        backslash.
    """

    def read(topic: Topic, payload: bytes) -> list[Reading]:
        times: dict[tuple[str | None, float], Reading] = {}
        base: dict[str, object] = {}
        for record in _records(payload):
            base |= {name: value for name, value in record.items() if name in ("bn", "bt", "bu", "bv", "bs", "bver")}
            if not record.keys() & {"n", "v", "vs", "vb", "vd", "s"}:
                continue
            base_name, own = _text(base, "bn"), _text(record, "n")
            device, name = (base_name, own) if device_is_base_name else (None, base_name + own)
            if not name and not device:
                raise BadRecord("a SenML record without a name")
            time = _number(base, "bt") + _number(record, "t")
            reading = times.get((device, time)) or _reading(device, time)
            times[device, time] = reading
            prefix = "" if topic.metric is None else f"{topic.metric}/"
            _take(reading, prefix + (level(name or "value") if variable_levels else name or "value"), record, base)
        return list(times.values())

    return read


def _reading(device: str | None, time: float) -> Reading:
    milliseconds = math.floor(time * 1000)
    is_absolute = time >= _ABSOLUTE_FROM
    ts, ago = (milliseconds, None) if is_absolute else (None, -milliseconds)
    return Reading({}, device, ts=ts, ago=ago, extra={}, refused=[])


def _take(reading: Reading, name: str, record: dict[str, object], base: dict[str, object]) -> None:
    metrics: dict = reading.metrics  # pyrefly: ignore[bad-assignment] - those of _reading()
    extra: dict = reading.extra  # pyrefly: ignore[bad-assignment]
    refused: list = reading.refused  # pyrefly: ignore[bad-assignment]
    found: dict[str, object] = {}
    if "v" in record or ("bv" in base and not record.keys() & {"vs", "vb", "vd", "s"}):
        found[name] = _sum(base, "bv", record, "v")
    if "s" in record or "bs" in base:
        found[f"{name} sum"] = _sum(base, "bs", record, "s")
    if "vb" in record:
        found[name] = float(record["vb"]) if isinstance(record["vb"], bool) else record["vb"]
    for key in ("vs", "vd"):
        if key in record:
            found[name] = _kept(record[key])
    unit = record.get("u", base.get("bu"))
    if isinstance(unit, str):
        extra[f"{name} unit"] = unit
    for key, value in found.items():
        if key in metrics or (key in extra and key != f"{name} unit"):
            refused.append(f"metric {shown(key)} has several values of one time: {shown(value)}")
        elif isinstance(value, str):
            extra[key] = value
        else:
            metrics[key] = value


def _kept(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _records(payload: bytes) -> list[dict[str, object]]:
    # A CBOR array, or the tag that says that CBOR follows; no JSON begins with these bytes.
    is_cbor = b"\x80" <= payload[:1] <= b"\x9f" or payload[:1] == b"\xd9"
    pack = cbor_value(payload) if is_cbor else json_value(payload)
    if not isinstance(pack, list) or not all(isinstance(one, dict) for one in pack):
        raise BadRecord("not a SenML pack: an array of records")
    records: list[dict[str, object]] = []
    for one in pack:
        record = {_LABELS.get(name, name): value for name, value in one.items()} if is_cbor else one
        strange = sorted(name for name in record if name.endswith("_"))
        if strange:
            raise BadRecord(f"a SenML field that must be understood, and is not known: {shown(strange[0])}")
        version = record.get("bver", _NEWEST_VERSION)
        if type(version) is not int or version > _NEWEST_VERSION:
            raise BadRecord(f"SenML of version {shown(version)}: known up to {_NEWEST_VERSION}")
        records.append(record)
    return records


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name, "")
    if type(value) is not str:
        raise BadRecord(f"the SenML field {name} is no text: {shown(value)}")
    return value


def _number(fields: dict[str, object], name: str) -> int | float:
    value = fields.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e13 < value < 1e13:
        raise BadRecord(f"the SenML field {name} is no number: {shown(value)}")
    return value


def _sum(base: dict[str, object], base_name: str, record: dict[str, object], name: str) -> object:
    """Return the sum of a base field and a field; what is no number is returned, to be refused."""
    one, other = base.get(base_name, 0), record.get(name, 0)
    for value in (one, other):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"no number: {shown(value)}" if isinstance(value, str) else value
    return one + other  # pyrefly: ignore[unsupported-operation]
