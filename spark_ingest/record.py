"""The telemetry record: the one place that knows its fields, how to check them, and the tables' schemas.

``{"v":1,"id":"pump-7","boot":"17-9f3a2c5d8e1b4a70","seq":4211,"ts":1795000000123,"up":912345,"m":{"temp_c":21.4}}``

======  ================================================================================================
field   rule
======  ================================================================================================
v       1
id      device_id: text, 1 to 256 characters, no U+0000
boot    likewise
seq     whole number, 0 to 2**63 - 1; (id, boot, seq) is the reading's identity
ts      Unix milliseconds, or null while the device's clock was not set; anything up to the year 9999 is
kept as it is up      milliseconds since boot, or null m       metrics: name → finite number or null; names
are not restricted, new ones need no change here
======  ================================================================================================

Further fields are ignored. Whatever breaks a rule goes to quarantine whole, with the reason: a table of
half-read records would hide the fault.
"""

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

VERSION = 1
_LONGEST_NAME = 256
_SEQ_END = 1 << 63
_TS_END = 253_402_300_800_000  # 10000-01-01: no table format or data frame can show what comes after.

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_METRICS = pa.map_(pa.string(), pa.float64())

READING_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("seq", pa.int64()),
        ("ts", _TIMESTAMP),
        ("up_ms", pa.int64()),
        ("received_ts", _TIMESTAMP),
        ("metrics", _METRICS),
    ]
)
"""What :func:`decode` makes of a good record; the silver table adds what :mod:`clock` finds out."""

SILVER_SCHEMA = pa.schema(
    [
        *(READING_SCHEMA.field(name) for name in ("device_id", "boot", "seq", "ts", "up_ms")),
        ("event_ts", _TIMESTAMP),
        ("clock_ok", pa.bool_()),
        ("event_ts_from", pa.string()),
        *(READING_SCHEMA.field(name) for name in ("received_ts", "metrics")),
    ]
)

PLACE_COLUMNS = ("spool", "segment", "position")
"""Where a message lies in the spool: the key of the quarantine table."""

QUARANTINE_SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("received_ts", _TIMESTAMP),
        ("collector", pa.string()),
        ("spool", pa.string()),
        ("segment", pa.int64()),
        ("position", pa.int64()),
    ]
)


class BadRecord(ValueError):
    """A payload is not a telemetry record; the message is the quarantine's reason."""


class Record(NamedTuple):
    """A checked record; `ts` and `up` in milliseconds."""

    device_id: str
    boot: str
    seq: int
    ts: int | None
    up: int | None
    metrics: dict[str, float | None]


class Decoded(NamedTuple):
    """A micro-batch's messages, parted: `readings` has READING_SCHEMA, `quarantined` QUARANTINE_SCHEMA."""

    readings: pa.Table
    quarantined: pa.Table


def _refuse_constant(name: str) -> float:
    raise BadRecord(f"not JSON: {name} is no JSON number")


_load = json.JSONDecoder(parse_constant=_refuse_constant).decode


def parse(payload: bytes) -> Record:
    """Parse and check one payload.

    :raises BadRecord: with the reason, for people.
    """
    try:
        fields = _load(payload.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 at byte {error.start}") from None
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from None
    if type(fields) is not dict:
        raise BadRecord("not a JSON object")
    version = fields.get("v")
    if version != VERSION or type(version) is not int:
        raise BadRecord(f"unknown version v={_shown(version)}")
    seq = _whole(fields, "seq", _SEQ_END)
    if seq is None:
        raise BadRecord("seq is missing")
    return Record(
        _name(fields, "id"),
        _name(fields, "boot"),
        seq,
        _whole(fields, "ts", _TS_END),
        _whole(fields, "up", _SEQ_END),
        _metrics(fields.get("m")),
    )


def _shown(value: object) -> str:
    # repr, then ASCII: a lone surrogate may not reach a table, and a reason is one short line.
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(fields: dict[str, object], field: str) -> str:
    value = fields.get(field)
    if type(value) is not str or not value:
        raise BadRecord(f"{field} is missing" if value is None else f"{field} is not a name: {_shown(value)}")
    if len(value) > _LONGEST_NAME or "\0" in value or not _is_unicode(value):
        raise BadRecord(f"{field} is too long or holds characters that no name has: {_shown(value)}")
    return value


def _whole(fields: dict[str, object], field: str, end: int) -> int | None:
    value = fields.get(field)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < end:
        raise BadRecord(f"{field} is not a whole number from 0 to {end - 1}: {_shown(value)}")
    return value


def _metrics(value: object) -> dict[str, float | None]:
    if type(value) is not dict:
        raise BadRecord("m is missing" if value is None else f"m is not an object: {_shown(value)}")
    metrics: dict[str, float | None] = {}
    for name, number in value.items():
        if not _is_unicode(name):
            raise BadRecord(f"a metric's name is not Unicode: {_shown(name)}")
        if type(number) is float:
            metrics[name] = number if math.isfinite(number) else None
        elif number is None:
            metrics[name] = None
        elif type(number) is int and -(1 << 1023) < number < 1 << 1023:
            metrics[name] = float(number)
        else:
            raise BadRecord(f"metric {_shown(name)} is not a number: {_shown(number)}")
    return metrics


def _is_unicode(text: str) -> bool:
    """JSON's escapes can spell half a surrogate pair, which no table can hold."""
    return text.isascii() or not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def decode(messages: pa.Table) -> Decoded:
    """Part a micro-batch into readings and what goes to quarantine; never raises for what a device sent.

    :param messages: rows of ``format("mqtt")``; order is kept.
    """
    records: list[Record] = []
    good: list[int] = []
    bad: list[int] = []
    reasons: list[str] = []
    for index, payload in enumerate(messages["payload"].to_pylist()):
        try:
            records.append(parse(payload))
            good.append(index)
        except BadRecord as error:
            bad.append(index)
            reasons.append(str(error))
    received = messages["received_ts"].combine_chunks().cast(_TIMESTAMP)
    return Decoded(
        _readings(records, received if not bad else received.take(pa.array(good, pa.int64()))),
        _quarantined(messages, bad, reasons),
    )


def _readings(records: Sequence[Record], received_ts: pa.Array) -> pa.Table:
    device_id, boot, seq, ts, up, metrics = zip(*records, strict=True) if records else ((),) * 6
    offsets, names, values = [0], [], []
    for one in metrics:
        names.extend(one)
        values.extend(one.values())
        offsets.append(len(names))
    arrays = [
        pa.array(device_id, pa.string()),
        pa.array(boot, pa.string()),
        pa.array(seq, pa.int64()),
        pa.array(ts, pa.timestamp("ms", tz="UTC")).cast(_TIMESTAMP),
        pa.array(up, pa.int64()),
        received_ts,
        pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.float64())
        ),
    ]
    return pa.Table.from_arrays(arrays, schema=READING_SCHEMA)


def _quarantined(messages: pa.Table, rows: list[int], reasons: list[str]) -> pa.Table:
    if not rows:
        return QUARANTINE_SCHEMA.empty_table()
    taken = messages.take(pa.array(rows, pa.int64()))
    columns = [pa.array(reasons, pa.string())]
    columns += [taken[field.name].combine_chunks().cast(field.type) for field in list(QUARANTINE_SCHEMA)[1:]]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)
