"""Turn telemetry records (:mod:`spark_ingest.decoders.record`) into rows of tables.

The broker lets a client publish only on its own topics, but nobody checks the id in a record. So a record whose id is
not the topic's device goes to quarantine. With `trust_ids`, the record's id is accepted: for bridges, and for layouts
whose topics name no device.

:func:`parse` defines the rules. :func:`decode` first tries msgspec, ten times as fast, for ordinary records.
Doubtful records (an additional field, a number that doubles round, any error) are left to :func:`parse`, so the
result is the same.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from umqtt_cli.escape import printable

from ...decoders.fast_decode import SEQ_END, PlainRecords, plain_records
from ...decoders.json import shown
from ...decoders.reading import BadRecord
from ...decoders.record import Record, a_name, parse, record_fields, whole
from ...tables.schemas import EXTRA, METRICS, PLACE_COLUMNS, QUARANTINE_SCHEMA, READING_SCHEMA, SILVER_SCHEMA, TIMESTAMP

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

_LONGEST_TOPIC = 200
# How the reasons begin for what was never meant to be a telemetry record.
_NO_RECORD = ("not ", "unknown version v=None")

Owner = tuple[str | None, str | None, int | None]
"""The device of a refused message, and the boot and seq of the reading in it."""


class Decoded(NamedTuple):
    """Decoded messages: `readings` in READING_SCHEMA, `quarantined` in QUARANTINE_SCHEMA; order is kept.

    Each message is in one of them, or in both (`kept` is true) if some of its metrics were refused.
    """

    readings: pa.Table
    quarantined: pa.Table


def decode(messages: pa.Table, *, trust_ids: bool = False) -> Decoded:
    """Divide telemetry messages into readings and rows of quarantine. Never raises because of what a device sent.

    :param messages: rows of ``format("mqtt")``; order is kept.
    :param trust_ids: accept a record's id, whatever topic it came on.
    """
    with without_garbage_collection():
        return _decode(messages, trust_ids)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Decode without garbage collection: half a million containers exist at once, none of them in a reference cycle.

    Decoding takes a quarter less time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _decode(messages: pa.Table, trust_ids: bool) -> Decoded:
    payloads = messages["payload"].to_pylist()
    plain, doubtful = plain_records(payloads)
    reasons: dict[int, str] = {}
    records: dict[int, Record] = {}
    unread: list[int] = []
    for index in doubtful:
        try:
            records[index] = record = parse(payloads[index])
        except BadRecord as error:
            reasons[index] = str(error)
            unread.append(index)
        else:
            if record.refused:
                reasons[index] = record.refused
    rows, own, theirs = np.arange(len(payloads)), payloads, messages
    if doubtful:
        rows = np.delete(rows, doubtful)
        own, theirs = [payloads[row] for row in rows.tolist()], messages.take(pa.array(rows))
    readings = _readings(plain, None, own, theirs)
    if records:
        others = messages.take(pa.array(list(records)))
        others = readings_table(list(records.values()), [payloads[index] for index in records], others)
        rows = np.concatenate([rows, [*records]])
        order = np.argsort(rows)
        readings, rows = pa.concat_tables([readings, others]).combine_chunks().take(pa.array(order)), rows[order]
    if not trust_ids:
        stays = np.ones(len(rows), dtype=bool)
        for row, device in _on_other_topics(readings):
            stays[row] = False
            reasons[int(rows[row])] = _foreign(readings["device_id"][row].as_py(), device)
        if not stays.all():
            readings, rows = readings.filter(pa.array(stays)), rows[stays]
    if not reasons:
        return Decoded(readings, QUARANTINE_SCHEMA.empty_table())
    topics = messages["topic"].take(pa.array(unread, pa.int64())).to_pylist()
    for index, topic in zip(unread, topics, strict=True):
        if not topic.startswith("fleet/") and reasons[index].startswith(_NO_RECORD):
            reasons[index] = f"no rule matches {printable(topic)[:_LONGEST_TOPIC]}: see umqtt ingest --config"
    refused = messages.take(pa.array(sorted(reasons), pa.int64()))
    why = [reasons[index] for index in sorted(reasons)]
    kept = np.isin(sorted(reasons), rows).tolist()
    owners = owners_of(refused, lambda topic, payload: owner_of_record(topic, payload, trust_ids=trust_ids))
    return Decoded(readings, quarantine(refused, why, owners, kept))


def _foreign(device_id: str, device: str | None) -> str:
    if device is None:
        return f"the topic is not fleet/DEVICE/..., so nothing vouches for id {shown(device_id)}: see --trust-ids"
    return f"id {shown(device_id)} is not the topic's device {shown(device)}: see --trust-ids"


def _on_other_topics(readings: pa.Table) -> list[tuple[int, str | None]]:
    """Return the row of each reading that came on a topic of another device or of none, and the topic's device."""
    ids, topics = readings["device_id"].combine_chunks(), readings["topic"].combine_chunks()
    # Nearly every topic is fleet/DEVICE/telemetry. Arrow compares those, so a device costs no step in Python.
    parts = [pa.scalar("fleet"), ids, pa.scalar("telemetry"), pa.scalar("/")]
    usual = pc.call_function("equal", [pc.call_function("binary_join_element_wise", parts), topics])
    # A level of a topic has no slash, so no topic names a device whose id has one.
    has_slash = pc.call_function("match_substring", [ids], pc.MatchSubstringOptions("/"))
    is_own = pc.call_function("and_not", [usual, has_slash])
    if not is_own.false_count:
        return []
    rows = np.flatnonzero(~is_own.to_numpy(zero_copy_only=False))
    names, encoded = ids.take(pa.array(rows)).to_pylist(), topics.take(pa.array(rows)).dictionary_encode()
    known = [device_of_topic(topic) for topic in encoded.dictionary.to_pylist()]
    devices = [known[code] for code in encoded.indices.to_pylist()]
    return [(row, device) for row, name, device in zip(rows.tolist(), names, devices, strict=True) if name != device]


def readings_table(records: Sequence[Record], payloads: list[bytes], messages: pa.Table) -> pa.Table:
    """Return checked records as rows of READING_SCHEMA.

    :param records: each has a boot and a seq.
    :param payloads: the payload of each record.
    :param messages: the message of each record.
    """
    if not records:
        return READING_SCHEMA.empty_table()
    *others, metrics, extra = (list(column) for column in zip(*(one[:7] for one in records), strict=True))
    names, values = chain.from_iterable(metrics), chain.from_iterable([one.values() for one in metrics])
    columns = PlainRecords._make([*others, [len(one) for one in metrics], [*names], [*values]])
    return _readings(columns, pa.array([list(one.items()) for one in extra], EXTRA), payloads, messages)


def _readings(records: PlainRecords, extra: pa.Array | None, payloads: list[bytes], messages: pa.Table) -> pa.Table:
    offsets = np.zeros(len(records.sizes) + 1, dtype=np.int32)
    np.cumsum(records.sizes, out=offsets[1:])
    metrics = metric_maps(offsets, pa.array(records.names, pa.string()), records.values)
    columns = {
        "device_id": pa.array(records.device_id, pa.string()),
        "boot": pa.array(records.boot, pa.string()),
        "seq": pa.array(records.seq, pa.int64()),
        "up_ms": pa.array(records.up, pa.int64()),
    }
    return readings_of(columns, records.ts, metrics, payloads, messages, extra)


def readings_of(
    columns: dict[str, pa.Array],
    ts: Sequence[int | None],
    metrics: pa.Array,
    payloads: list[bytes],
    messages: pa.Table,
    extra: pa.Array | None = None,
) -> pa.Table:
    """Return columns as rows of READING_SCHEMA.

    :param columns: those that are not named here; one that is missing is null in every row.
    :param ts: Unix milliseconds.
    :param extra: None: empty in every row.
    """
    if extra is None:
        # Fifty times as fast as repeating an empty map.
        nothing = pa.array([], pa.string())
        extra = pa.MapArray.from_arrays(pa.array(np.zeros(len(payloads) + 1, dtype=np.int32)), nothing, nothing)
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    arrays = {
        **{name: pa.nulls(len(payloads), READING_SCHEMA.field(name).type) for name in ("boot", "seq", "up_ms")},
        **columns,
        "ts": pa.array(ts, pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP),
        "metrics": metrics,
        "extra": extra.cast(EXTRA),
        "payload_crc": pa.array(sizes << 32 | np.fromiter(map(crc32, payloads), np.int64, len(payloads))),
    }
    taken = {name: messages[name].cast(READING_SCHEMA.field(name).type) for name in _FROM_MESSAGE}
    return pa.table([(arrays | taken)[name] for name in READING_SCHEMA.names], schema=READING_SCHEMA)


_FROM_MESSAGE = ("topic", "received_ts", "retain", "collector", "spool", "segment", "position")


def metric_maps(offsets: np.ndarray, names: pa.Array, values: Sequence[float | None]) -> pa.Array:
    """Return metrics as maps. `offsets`: where each row's names and values begin, and the end."""
    # Adding zero turns -0 into 0, as parse() does.
    numbers = pc.call_function("add", [pa.array(values, pa.float64()), pa.scalar(0.0)])
    return pa.MapArray.from_arrays(pa.array(offsets), names, numbers).cast(METRICS)


def quarantine(
    messages: pa.Table, reasons: Sequence[str], owners: Sequence[Owner], kept: Sequence[bool] = ()
) -> pa.Table:
    """Return `messages` as rows of QUARANTINE_SCHEMA.

    :param reasons: why each message is refused.
    :param owners: the device, boot and seq of each message.
    :param kept: for each message, whether it is stored as a reading nevertheless; default: none is.
    """
    columns: dict[str, pa.Array] = {"reason": pa.array(reasons, pa.string())}
    columns["kept"] = pa.array(kept or [False] * len(reasons), pa.bool_())
    for name, values in zip(
        ("device_id", "boot", "seq"), zip(*owners, strict=True) if owners else ((),) * 3, strict=True
    ):
        columns[name] = pa.array(values, QUARANTINE_SCHEMA.field(name).type)
    for field in QUARANTINE_SCHEMA:
        if field.name not in columns:
            columns[field.name] = messages[field.name].combine_chunks().cast(field.type)
    return pa.table([columns[name] for name in QUARANTINE_SCHEMA.names], schema=QUARANTINE_SCHEMA)


def owners_of(messages: pa.Table, owner: Callable[[str, bytes], Owner]) -> list[Owner]:
    """Return the owner of each message.

    :param owner: finds the owner from a topic and a payload.
    """
    pairs = zip(messages["topic"].to_pylist(), messages["payload"].to_pylist(), strict=True)
    return [owner(topic, payload) for topic, payload in pairs]


def device_of_topic(topic: str) -> str | None:
    """Return the device that ``fleet/{device_id}/…`` names, or None for other topics and invalid names."""
    levels = topic.split("/")
    if levels[0] != "fleet" or len(levels) < 3:
        return None
    try:
        return a_name(levels[1], "id")
    except BadRecord:
        return None


def device_of_record(payload: bytes) -> str | None:
    """Return the id in a record, or None if the record has no valid id or cannot be read."""
    try:
        return a_name(record_fields(payload).get("id"), "id")
    except BadRecord:
        return None


def owner_of_record(topic: str, payload: bytes, *, trust_ids: bool = False) -> Owner:
    """Return the owner of a message that was refused.

    Boot and seq are None unless the record's id is the device that the message belongs to, and both are valid.
    """
    claimed, device_id = device_of_record(payload), device_of_topic(topic)
    if trust_ids:
        device_id = claimed or device_id
    if claimed is None or claimed != device_id:
        return device_id, None, None
    try:
        fields = record_fields(payload)
        boot, seq = a_name(fields.get("boot"), "boot"), whole(fields.get("seq"), "seq", SEQ_END)
    except BadRecord:
        return device_id, None, None
    return (device_id, None, None) if seq is None else (device_id, boot, seq)
