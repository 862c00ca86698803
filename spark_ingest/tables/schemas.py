"""The columns of every table. Times are UTC in microseconds; `*_ms` are milliseconds; `seq` counts from 0."""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
METRICS = pa.map_(pa.string(), pa.float64())
EXTRA = pa.map_(pa.string(), pa.string())
"""Fields without a column of their own, and texts: the JSON text by name. A metric's name holds the exact whole number
that a double rounds, or "NaN"."""

PLACE_COLUMNS = ("spool", "segment", "position")
"""The place of a message in its spool: the key of bronze, duplicates, status, logs and, with the reason, quarantine."""

_PLACE = "collector string, spool string, segment bigint, position bigint"
_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "metrics": METRICS,
    "extra": EXTRA,
    "ranges": pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())])),
}


def _columns(text: str) -> pa.Schema:
    """Return a schema from names and types, as SQL lists them; a type is one of _TYPES."""
    pairs = (column.split() for column in text.split(","))
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


BRONZE_SCHEMA = _columns(
    f"""topic string, payload binary, received_ts timestamp, qos byte, retain boolean, dup boolean, {_PLACE},
    received_date date"""
)
"""Every message, as it was received. Partitioned by received_date."""

READING_SCHEMA = _columns(
    f"""device_id string, boot string, seq bigint, ts timestamp, up_ms bigint, received_ts timestamp,
    metrics metrics, extra extra, payload_crc bigint, {_PLACE}, topic string, retain boolean"""
)
"""What :func:`spark_ingest.pipeline.decode.record.decode` returns for a valid record."""

SILVER_SCHEMA = _columns(
    f"""device_id string, boot string, seq bigint, ts timestamp, up_ms bigint, event_ts timestamp, clock_ok boolean,
    event_ts_from string, received_ts timestamp, metrics metrics, extra extra, payload_crc bigint, {_PLACE},
    received_date date, topic string, retain boolean"""
)
"""One row per reading: (device_id, boot, seq) is unique. Partitioned by received_date.

A negative seq means that the device does not number its readings: `boot` is the spool then, and seq rises with the
position in it.

retain: the broker had retained the message, so it may be old, and may come again with each new session.
payload_crc: the payload's length * 2**32 + its CRC-32, which reveals another
payload under the same identity.
"""

DUPLICATES_SCHEMA = _columns(
    f"""device_id string, boot string, seq bigint, received_ts timestamp, payload_crc bigint, {_PLACE}"""
)
"""Readings that silver already had with the same payload: dropped there, counted here."""

QUARANTINE_SCHEMA = _columns(
    f"""reason string, topic string, payload binary, received_ts timestamp, {_PLACE}, device_id string, boot string,
    seq bigint, kept boolean"""
)
"""Messages that could not be read, and readings whose identity is known with another payload.

device_id: the device of the topic; with --trust-ids the id in the message. boot and seq: of the reading, where known.
kept: the reading is in silver, without what the reason names.
"""

STATUS_SCHEMA = _columns(
    f"""device_id string, boot string, online boolean, fw string, reason string, extra extra, retain boolean,
    received_ts timestamp, {_PLACE}"""
)
"""``fleet/{device_id}/status``, and what rules of ingest.toml read as a status; one row per message.

`retain`: the broker had retained it, so it may be old.
"""

LOGS_SCHEMA = _columns(
    f"""device_id string, level string, text string, boot string, dropped_seq ranges, crash string, extra extra,
    received_ts timestamp, {_PLACE}"""
)
"""``fleet/{device_id}/log``, one row per message. `crash` is JSON text; `dropped_seq`: readings that never come."""

DEVICES_SCHEMA = _columns(
    """device_id string, health string, last_seen timestamp, last_event_ts timestamp, online boolean,
    status_reason string, boot string, boots bigint, reboots_24h bigint, fw string, readings bigint,
    duplicates bigint, missing bigint, dropped_announced bigint, open_gaps bigint, clock_ok_share double,
    clock_behind_h bigint, delay_p50_ms double, delay_p95_ms double, mem_free double, mem_free_p50 double,
    rssi double, rssi_p50 double, temp_c double, temp_c_p50 double, supply_v double, supply_v_p50 double,
    quarantined bigint, device_group string, site string"""
)
"""One row per device. health: see HEALTH. `online` is the newest status, null without one.

missing: number of seqs in gaps of the state missing; dropped_announced: of the state dropped. Percentiles are over all
readings, at most 5 % off. `mem_free` … are the newest values, null where the device has no such metric. quarantined:
rows of quarantine from its topics. clock_behind_h: by how many whole hours the device's clock is behind, null if it is
not. duplicates, missing, dropped_announced, open_gaps: null if the device does not number its readings. device_group
and site: from groups.csv, null where that has none.
"""

WINDOWS_SCHEMA = _columns(
    """device_id string, window_start timestamp, metric string, n bigint, min double, max double, mean double,
    sum double, last double, last_ts timestamp, last_place bigint, window_date date, window_hour bigint"""
)
"""One row per device, metric and five minutes of (repaired) event time; rows are merged and never final.

last: the value of the newest event time; of equal times, that of the last place in the spool, `last_place`
(segment * 2**40 + position).

Partitioned by window_date and window_hour, the hour of the day, so that a late reading rewrites one hour only.
"""

TEXTS_SCHEMA = _columns("device_id string, metric string, text string, last_ts timestamp, retain boolean")
"""One row per device and metric whose values are texts, such as the state of a door: the newest text.

text: at most its first 1,000 characters. last_ts: the reading's time, or when it was received if its clock was not set.
retain: the broker had retained it, so it may be older than last_ts. Of a device, the 500 metrics with the newest texts.
"""

BOOTS_SCHEMA = _columns(
    """device_id string, boot string, boot_number bigint, first_seen timestamp, last_seen timestamp,
    first_seq bigint, highest_seq bigint, readings bigint, missing bigint, fw string, cause string,
    reason string, anchor_ts_us bigint, clock string, heard_date date"""
)
"""One row per boot. anchor_ts_us: time of the boot, Unix microseconds, from the lowest seq with a good clock and `up`.

Partitioned by heard_date: the date of last_seen, or of first_seen in a boot without readings.

clock: ts (set from the first reading on), anchor (set later, which dates the earlier readings), received (never set).
"""

GAPS_SCHEMA = _columns(
    """device_id string, boot string, first bigint, last bigint, missing bigint, announced boolean, open boolean,
    since timestamp, state string, heard_date date"""
)
"""Ranges of seq missing from silver; `since`: when the first reading above the range was received.

heard_date: that of the boot in gold/boots; null if only log messages tell of the boot.

state: missing (the readings may still come, and are `open`), dropped (the device reported it: `announced`), quarantined
(they came and could not be read), earlier (of a boot that began before the collector's first message).
"""

TRAFFIC_SCHEMA = _columns(
    """minute timestamp, readings bigint, duplicates bigint, quarantined bigint, bytes bigint, devices bigint,
    delay_p50_ms double, delay_p95_ms double"""
)
"""One row per minute of received time. bytes: payloads of readings, duplicates and quarantined messages."""

ALERTS_SCHEMA = _columns(
    """device_id string, rule string, kind string, since timestamp, until timestamp, value double, text string"""
)
"""One row per alert. device_id: empty for quarantined messages that belong to no device. kind: see KINDS in
spark_ingest/alerts/rules.py; rule: its name; until: null while it lasts."""

HEALTH = ("offline", "rebooting", "quarantined", "memory", "gaps", "late", "ok")
"""Values of health in gold/devices, worst first: the first that applies counts."""

GOODBYES = ("sleeping", "restarting", "stopped")
"""Reasons in an offline status that mean that the device left on purpose; any other reason is a lost link."""

SCHEMAS = {
    "bronze": BRONZE_SCHEMA,
    "silver": SILVER_SCHEMA,
    "duplicates": DUPLICATES_SCHEMA,
    "quarantine": QUARANTINE_SCHEMA,
    "status": STATUS_SCHEMA,
    "logs": LOGS_SCHEMA,
    "gold/devices": DEVICES_SCHEMA,
    "gold/windows": WINDOWS_SCHEMA,
    "gold/texts": TEXTS_SCHEMA,
    "gold/boots": BOOTS_SCHEMA,
    "gold/gaps": GAPS_SCHEMA,
    "gold/traffic": TRAFFIC_SCHEMA,
    "gold/alerts": ALERTS_SCHEMA,
}
"""Schemas by folder below --tables; commands process the tables in this order."""

PARTITIONED_BY = {
    "bronze": "received_date",
    "silver": "received_date",
    "gold/windows": "window_date",
    "gold/boots": "heard_date",
    "gold/gaps": "heard_date",
}
