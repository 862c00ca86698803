"""The telemetry record: the one place that knows its fields and how to check them.

``{"v":1,"id":"pump-7","boot":"17-9f3a2c5d8e1b4a70","seq":4211,"ts":1795000000123,"up":912345,"m":{"temp_c":21.4}}``

======  ================================================================================================
field   rule
======  ================================================================================================
v       1
id      device_id: text, 1 to 256 characters, no U+0000; the device of its topic, ``fleet/{device_id}/…``
boot    likewise
seq     whole number, 0 to 2**63 - 1; (id, boot, seq) is the reading's identity
ts      Unix milliseconds, or null while the device's clock was not set; anything up to the year 9999 is kept as it is
up      milliseconds since boot, or null
m       metrics: name → finite number or null; names are not restricted, new ones need no change here; -0 is 0
======  ================================================================================================

The broker lets a client publish on its own topics; nobody checks what it writes into a record. So a record whose id is
not the topic's device goes to quarantine. `trust_ids` takes the record's word: for bridges, and for layouts whose
topics name no device.

Further fields are kept as JSON text (column ``extra``). A metric that breaks its rule is left out of the reading, and
the message is also a row of quarantine, with the reason. What breaks another rule goes to quarantine alone.

:func:`parse` is the rule. :func:`decode` first tries msgspec, seven times as fast, for records that are plainly
good; every record in doubt (a further field, a number beyond what doubles hold, any error) is left to :func:`parse`,
so what comes out is the same.
"""

import gc
import json
import math
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..tables.schemas import (
    EXTRA,
    METRICS,
    PLACE_COLUMNS,
    QUARANTINE_SCHEMA,
    READING_SCHEMA,
    SILVER_SCHEMA,
    TIMESTAMP,
)
from .plain import LONGEST_NAME, SEQ_END, TS_END, VERSION, plain_records

__all__ = [
    "PLACE_COLUMNS",
    "QUARANTINE_SCHEMA",
    "READING_SCHEMA",
    "SILVER_SCHEMA",
    "BadRecord",
    "Decoded",
    "Record",
    "decode",
    "parse",
    "quarantine",
]

_FIELDS = frozenset(("v", "id", "boot", "seq", "ts", "up", "m"))


class BadRecord(ValueError):
    """A payload is not what its topic promises; the message is the quarantine's reason."""


class Record(NamedTuple):
    """A checked record; `ts` and `up` in milliseconds, `extra` name to JSON text.

    `refused`: why metrics were left out; empty when none was.
    """

    device_id: str
    boot: str
    seq: int
    ts: int | None
    up: int | None
    metrics: dict[str, float | None]
    extra: dict[str, str]
    refused: str


class Decoded(NamedTuple):
    """`readings` has READING_SCHEMA, `quarantined` QUARANTINE_SCHEMA; order is kept.

    Each message is in one of them, or in both (`kept`) when some of its metrics were refused.
    """

    readings: pa.Table
    quarantined: pa.Table


def _refuse_constant(name: str) -> float:
    raise BadRecord(f"not JSON: {name} is no JSON number")


_load = json.JSONDecoder(parse_constant=_refuse_constant).decode


def parse(payload: bytes) -> Record:
    """Parse and check one payload.

    :raises BadRecord: with the reason, for people.
    """
    fields = json_object(payload)
    version = fields.get("v")
    if version != VERSION or type(version) is not int:
        raise BadRecord(f"unknown version v={_shown(version)}")
    seq = _whole(fields, "seq", SEQ_END)
    if seq is None:
        raise BadRecord("seq is missing")
    device_id, boot = _name(fields, "id"), _name(fields, "boot")
    ts, up = _whole(fields, "ts", TS_END), _whole(fields, "up", SEQ_END)
    metrics, refused = _metrics(fields.get("m"))
    return Record(device_id, boot, seq, ts, up, metrics, extra_fields(fields, _FIELDS), refused)


def json_object(payload: bytes) -> dict[str, object]:
    """The JSON object in `payload`; raises BadRecord."""
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
    return fields


def extra_fields(fields: dict[str, object], known: frozenset[str]) -> dict[str, str]:
    """The fields that are not `known`, each as JSON text; raises BadRecord when one cannot be written."""
    extra: dict[str, str] = {}
    for name in fields.keys() - known:
        if not _is_unicode(name):
            raise BadRecord(f"a field's name is not Unicode: {_shown(name)}")
        extra[name] = json_text(fields[name], name)
    return dict(sorted(extra.items()))


def json_text(value: object, name: str) -> str:
    """`value` as JSON in ASCII; raises BadRecord."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise BadRecord(f"field {_shown(name)} holds a number beyond doubles, or is nested too deeply") from None


def _shown(value: object) -> str:
    # repr, then ASCII: a lone surrogate may not reach a table, and a reason is one short line.
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(fields: dict[str, object], field: str) -> str:
    value = fields.get(field)
    if type(value) is not str or not value:
        raise BadRecord(f"{field} is missing" if value is None else f"{field} is not a name: {_shown(value)}")
    if len(value) > LONGEST_NAME or "\0" in value or not _is_unicode(value):
        raise BadRecord(f"{field} is too long or holds characters that no name has: {_shown(value)}")
    return value


def _whole(fields: dict[str, object], field: str, end: int) -> int | None:
    value = fields.get(field)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < end:
        raise BadRecord(f"{field} is not a whole number from 0 to {end - 1}: {_shown(value)}")
    return value


def _metrics(value: object) -> tuple[dict[str, float | None], str]:
    """The metrics that are numbers or null, and why the others were refused."""
    if type(value) is not dict:
        raise BadRecord("m is missing" if value is None else f"m is not an object: {_shown(value)}")
    metrics: dict[str, float | None] = {}
    refused: list[str] = []
    for name, number in value.items():
        if not _is_unicode(name):
            refused.append(f"a metric's name is not Unicode: {_shown(name)}")
        elif type(number) is float:
            metrics[name] = number + 0.0 if math.isfinite(number) else None
        elif number is None:
            metrics[name] = None
        elif type(number) is int and -(1 << 1023) < number < 1 << 1023:
            metrics[name] = float(number)
        else:
            refused.append(f"metric {_shown(name)} is not a number: {_shown(number)}")
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return metrics, refused[0] + more if refused else ""


def _is_unicode(text: str) -> bool:
    """JSON's escapes can spell half a surrogate pair, which no table can hold."""
    return text.isascii() or not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def decode(messages: pa.Table, *, trust_ids: bool = False) -> Decoded:
    """Part telemetry messages into readings and what goes to quarantine; never raises for what a device sent.

    :param messages: rows of ``format("mqtt")``; order is kept.
    :param trust_ids: take a record's id whatever topic it came on.
    """
    # Half a million containers live at once here, none in a cycle: looking for cycles takes a quarter of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _decode(messages, trust_ids)
    finally:
        if collecting:
            gc.enable()


def _decode(messages: pa.Table, trust_ids: bool) -> Decoded:
    payloads = messages["payload"].to_pylist()
    records, doubtful = plain_records(payloads)
    reasons: dict[int, str] = {}
    for index in doubtful:
        try:
            records[index] = record = parse(payloads[index])
        except BadRecord as error:
            reasons[index] = str(error)
        else:
            if record.refused:
                reasons[index] = record.refused
    if not trust_ids:
        devices = _devices_of_topics(messages["topic"])
        for index, (record, device) in enumerate(zip(records, devices, strict=True)):
            if record is not None and record[0] != device:
                reasons[index] = _foreign(record[0], device)
                records[index] = None
    if not reasons:
        return Decoded(_readings(records, payloads, messages), QUARANTINE_SCHEMA.empty_table())
    good = [index for index, record in enumerate(records) if record is not None]
    readings = _readings(
        [records[index] for index in good],
        [payloads[index] for index in good],
        messages.take(pa.array(good, pa.int64())),
    )
    refused = messages.take(pa.array(sorted(reasons), pa.int64()))
    why = [reasons[index] for index in sorted(reasons)]
    kept = [records[index] is not None for index in sorted(reasons)]
    return Decoded(readings, quarantine(refused, why, kept, trust_ids=trust_ids))


def _foreign(device_id: str, device: str | None) -> str:
    if device is None:
        return f"the topic is not fleet/DEVICE/..., so nothing vouches for id {_shown(device_id)}: see --trust-ids"
    return f"id {_shown(device_id)} is not the topic's device {_shown(device)}: see --trust-ids"


def _devices_of_topics(topics: pa.ChunkedArray) -> list[str | None]:
    encoded = topics.combine_chunks().dictionary_encode()
    known = [device_of_topic(topic) for topic in encoded.dictionary.to_pylist()]
    return [known[code] for code in encoded.indices.to_pylist()]


def _readings(records: Sequence[tuple], payloads: list[bytes], messages: pa.Table) -> pa.Table:
    if not records:
        return READING_SCHEMA.empty_table()
    plain = max(map(len, records)) == 6
    device_id, boot, seq, ts, up, metrics = zip(*(records if plain else [one[:6] for one in records]), strict=True)
    if plain:
        extra = pa.repeat(pa.scalar([], EXTRA), len(records))
    else:
        extra = pa.array([list(one[6].items()) if len(one) > 6 else () for one in records], EXTRA)
    arrays = {
        "device_id": pa.array(device_id, pa.string()),
        "boot": pa.array(boot, pa.string()),
        "seq": pa.array(seq, pa.int64()),
        "ts": pa.array(ts, pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP),
        "up_ms": pa.array(up, pa.int64()),
        "metrics": _metric_maps(metrics),
        "extra": extra,
        "payload_crc": pa.array([len(payload) << 32 | crc32(payload) for payload in payloads], pa.int64()),
    }
    taken = {name: messages[name].cast(READING_SCHEMA.field(name).type) for name in _FROM_MESSAGE}
    return pa.table([(arrays | taken)[name] for name in READING_SCHEMA.names], schema=READING_SCHEMA)


_FROM_MESSAGE = ("topic", "received_ts", "collector", "spool", "segment", "position")


def _metric_maps(metrics: Sequence[dict[str, float | None]]) -> pa.Array:
    names: list[str] = []
    values: list[float | None] = []
    offsets = np.zeros(len(metrics) + 1, dtype=np.int32)
    np.cumsum([len(one) for one in metrics], out=offsets[1:])
    for one in metrics:
        names.extend(one)
        values.extend(one.values())
    # Plus zero: -0 becomes 0 on both paths.
    numbers = pc.call_function("add", [pa.array(values, pa.float64()), pa.scalar(0.0)])
    return pa.MapArray.from_arrays(pa.array(offsets), pa.array(names, pa.string()), numbers).cast(METRICS)


def quarantine(
    messages: pa.Table, reasons: Sequence[str], kept: Sequence[bool] = (), *, trust_ids: bool = False
) -> pa.Table:
    """`messages` with a reason each, in QUARANTINE_SCHEMA.

    :param kept: which of them are readings all the same; default: none.
    :param trust_ids: see :func:`decode`.
    """
    columns: dict[str, pa.Array] = {"reason": pa.array(reasons, pa.string())}
    columns["kept"] = pa.array(kept or [False] * len(reasons), pa.bool_())
    pairs = zip(messages["topic"].to_pylist(), messages["payload"].to_pylist(), strict=True)
    owners = [_owner(topic, payload, trust_ids) for topic, payload in pairs]
    for name, values in zip(
        ("device_id", "boot", "seq"), zip(*owners, strict=True) if owners else ((),) * 3, strict=True
    ):
        columns[name] = pa.array(values, QUARANTINE_SCHEMA.field(name).type)
    for field in QUARANTINE_SCHEMA:
        if field.name not in columns:
            columns[field.name] = messages[field.name].combine_chunks().cast(field.type)
    return pa.table([columns[name] for name in QUARANTINE_SCHEMA.names], schema=QUARANTINE_SCHEMA)


def device_of_topic(topic: str) -> str | None:
    """The device that ``fleet/{device_id}/…`` names; None for any other topic, and for what is no name."""
    levels = topic.split("/")
    if levels[0] != "fleet" or len(levels) < 3:
        return None
    try:
        return _name({"id": levels[1]}, "id")
    except BadRecord:
        return None


def device_of_record(payload: bytes) -> str | None:
    """The id that a record claims; None where it claims none that can be read."""
    try:
        return _name(json_object(payload), "id")
    except BadRecord:
        return None


def _owner(topic: str, payload: bytes, trust_ids: bool) -> tuple[str | None, str | None, int | None]:
    """The device that a refused message is of, and the boot and seq of the reading it would have been."""
    claimed, device_id = device_of_record(payload), device_of_topic(topic)
    if trust_ids:
        device_id = claimed or device_id
    if claimed is None or claimed != device_id:
        return device_id, None, None
    try:
        fields = json_object(payload)
        boot, seq = _name(fields, "boot"), _whole(fields, "seq", SEQ_END)
    except BadRecord:
        return device_id, None, None
    return (device_id, None, None) if seq is None else (device_id, boot, seq)
