"""The telemetry record: its fields, defined only here, and the checks that the fields of every reading pass.

``{"v":1,"id":"pump-7","boot":"17-9f3a2c5d8e1b4a70","seq":4211,"ts":1795000000123,"up":912345,"m":{"temp_c":21.4}}``

======  ================================================================================================
field   rule
======  ================================================================================================
v       1
id      device_id: text, 1 to 256 characters, no U+0000; the device of its topic, ``fleet/{device_id}/…``
boot    text, 1 to 256 characters, no U+0000
seq     whole number, 0 to 2**53 - 1; (id, boot, seq) is the reading's identity
ts      Unix milliseconds from 1970 to 2261, or null while the device's clock was not set
up      milliseconds since boot, 0 to 2**53 - 1, or null
m       metrics: name → finite number or null; names are not restricted, new ones need no change here; -0 is 0
======  ================================================================================================

A metric is stored as a double. A whole number that a double rounds is also kept exactly, in column ``extra`` under
the metric's name; NaN is stored as null, with "NaN" there. A number beyond doubles breaks its rule.

A record is a JSON object, or a CBOR map with the same fields. Additional fields are kept as JSON text (column
``extra``). A metric that breaks its rule is left out of the reading, and so is a ts or up that is a whole number out of
its range; the message is also stored in quarantine, with the reason. A record that breaks any other rule is stored in
quarantine only.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from .cbor import cbor_object
from .fast_decode import EXACT_END, LONGEST_NAME, SEQ_END, TS_END, VERSION
from .json import json_object, json_text, shown
from .reading import BadRecord, Reading

_FIELDS = frozenset(("v", "id", "boot", "seq", "ts", "up", "m"))


class Record(NamedTuple):
    """A checked reading. `ts` and `up` are in milliseconds; `extra` maps a name to JSON text.

    `boot` and `seq` are both None if the reading is identified by its place in the spool. `refused` says why metrics,
    `ts` or `up` were left out; it is empty if nothing was.
    """

    device_id: str
    boot: str | None
    seq: int | None
    ts: int | None
    up: int | None
    metrics: dict[str, float | None]
    extra: dict[str, str]
    refused: str


def parse(payload: bytes) -> Record:
    """Parse and check one telemetry record.

    :raises BadRecord: the record breaks a rule; the message is the reason, for people.
    """
    reading = read_record(payload)
    return checked(reading, reading.device_id)


def record_fields(payload: bytes) -> dict[str, object]:
    """Return the fields of a record in JSON or CBOR. Raises BadRecord if it is neither."""
    # A CBOR map begins with one of these bytes; no UTF-8 text does.
    return cbor_object(payload) if b"\xa0" <= payload[:1] <= b"\xbf" else json_object(payload)


def read_record(payload: bytes) -> Reading:
    """Return the record as an unchecked reading. Raises BadRecord if it is malformed or lacks a required field."""
    fields = record_fields(payload)
    version = fields.get("v")
    if version != VERSION or type(version) is not int:
        raise BadRecord(f"unknown version v={shown(version)}")
    for name in ("seq", "id", "boot", "m"):
        if fields.get(name) is None:
            raise BadRecord(f"{name} is missing")
    extra = {name: fields[name] for name in fields.keys() - _FIELDS}
    # checked() verifies the types.
    known: dict[str, Any] = {name: fields.get(name) for name in ("boot", "seq", "ts", "up")}
    m: Any = fields["m"]
    device_id: Any = fields["id"]
    return Reading(m, device_id, **known, extra=extra)


def checked(reading: Reading, device_id: object) -> Record:
    """Return a device's reading as a checked record. Raises BadRecord if a field outside `m` breaks its rule."""
    boot = seq = up = None
    refused = [*reading.refused]
    if reading.boot is not None or reading.seq is not None:
        seq, up = whole(reading.seq, "seq", SEQ_END), _in_range(reading.up, "up", SEQ_END, refused)
        if seq is None:
            raise BadRecord("seq is missing")
        boot = a_name(reading.boot, "boot")
    ts = _in_range(reading.ts, "ts", TS_END, refused)
    beside: dict[str, object] = {}
    metrics = _metrics(reading.metrics, beside, refused)
    extra = {} if type(reading.extra) is dict and not reading.extra else extra_fields(reading.extra)
    for name, value in beside.items():
        if extra.setdefault(name, text := json_text(value, name)) != text:
            refused.append(f"metric {shown(name)} is rounded, and another value has its place in extra: {shown(value)}")
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    why = f"{refused[0]}{more}" if refused else ""
    return Record(a_name(device_id, "id"), boot, seq, ts, up, metrics, extra, why)


def extra_fields(fields: Mapping[str, object], known: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the fields that are not `known`, each as JSON text. Raises BadRecord if JSON cannot represent one."""
    extra: dict[str, str] = {}
    for name in fields.keys() - known:
        if type(name) is not str or not _is_unicode(name):
            raise BadRecord(f"a field's name is not Unicode: {shown(name)}")
        extra[name] = json_text(fields[name], name)
    return dict(sorted(extra.items()))


def a_name(value: object, field: str) -> str:
    """Return `value`, a name. Raises BadRecord unless it is text of 1 to LONGEST_NAME characters without U+0000."""
    if type(value) is not str or not value:
        raise BadRecord(f"{field} is missing" if value is None else f"{field} is not a name: {shown(value)}")
    if len(value) > LONGEST_NAME or "\0" in value or not _is_unicode(value):
        raise BadRecord(f"{field} is too long or holds characters that no name has: {shown(value)}")
    return value


def whole(value: object, field: str, end: int) -> int | None:
    """Return `value`. Raises BadRecord unless it is a whole number from 0 to `end` - 1, or None."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < end:
        raise BadRecord(f"{field} is not a whole number from 0 to {end - 1}: {shown(value)}")
    return value


def _in_range(value: object, field: str, end: int, refused: list[str]) -> int | None:
    """Return `value`, or None if it is a whole number outside of 0 to `end` - 1, with the reason added to `refused`.

    Raises BadRecord if it is neither a whole number nor None.
    """
    if type(value) is int and not 0 <= value < end:
        refused.append(f"{field} is not from 0 to {end - 1}: {shown(value)}")
        return None
    return whole(value, field, end)


def _metrics(value: object, beside: dict[str, object], refused: list[str]) -> dict[str, float | None]:
    """Return the metrics that are numbers or null.

    :param beside: gets what a double does not show, by metric: a whole number that is rounded, "NaN".
    :param refused: gets the reason why each of the others is refused.
    """
    if not isinstance(value, Mapping):
        raise BadRecord(f"m is not an object: {shown(value)}")
    metrics: dict[str, float | None] = {}
    for name, number in value.items():
        if type(name) is not str or not (name.isascii() or _is_unicode(name)):
            refused.append(f"a metric's name is not Unicode: {shown(name)}")
        elif isinstance(number, float):
            if math.isfinite(number):
                # A subclass of float may have a + of its own.
                metrics[name] = float(number) + 0.0
            elif math.isnan(number):
                metrics[name], beside[name] = None, "NaN"
            else:
                refused.append(f"metric {shown(name)} is beyond doubles: {shown(number)}")
        elif number is None:
            metrics[name] = None
        elif type(number) is int and -(1 << 1023) < number < 1 << 1023:
            metrics[name] = rounded = float(number)
            if not -EXACT_END <= number <= EXACT_END and int(rounded) != number:
                beside[name] = number
        else:
            refused.append(f"metric {shown(name)} is not a number: {shown(number)}")
    return metrics


def _is_unicode(text: str) -> bool:
    """Return whether a table can hold `text`. JSON escapes can spell half a surrogate pair, which no table can hold."""
    return text.isascii() or not any(0xD800 <= ord(character) <= 0xDFFF for character in text)
