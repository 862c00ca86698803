"""The columns of every table. Times are UTC in microseconds; `*_ms` are milliseconds; `seq` counts from 0."""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
METRICS = pa.map_(pa.string(), pa.float64())
EXTRA = pa.map_(pa.string(), pa.string())
"""Fields without a column of their own, and texts: the JSON text by name. A metric's name holds the exact whole number
that a double rounds, or "NaN"."""

PLACE_COLUMNS = ("spool", "segment", "position")
"""The place of a message in its spool: the key of bronze, duplicates, status, logs and, with the reason, quarantine."""

_PLACE = [("collector", pa.string()), ("spool", pa.string()), ("segment", pa.int64()), ("position", pa.int64())]

BRONZE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("received_ts", TIMESTAMP),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("dup", pa.bool_()),
        *_PLACE,
        ("received_date", pa.date32()),
    ]
)
"""Every message, as it was received. Partitioned by received_date."""

READING_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("seq", pa.int64()),
        ("ts", TIMESTAMP),
        ("up_ms", pa.int64()),
        ("received_ts", TIMESTAMP),
        ("metrics", METRICS),
        ("extra", EXTRA),
        ("payload_crc", pa.int64()),
        *_PLACE,
        ("topic", pa.string()),
        ("retain", pa.bool_()),
    ]
)
"""What :func:`spark_ingest.pipeline.decode.record.decode` returns for a valid record."""

SILVER_SCHEMA = pa.schema(
    [
        *(READING_SCHEMA.field(name) for name in ("device_id", "boot", "seq", "ts", "up_ms")),
        ("event_ts", TIMESTAMP),
        ("clock_ok", pa.bool_()),
        ("event_ts_from", pa.string()),
        *(READING_SCHEMA.field(name) for name in ("received_ts", "metrics", "extra", "payload_crc")),
        *_PLACE,
        ("received_date", pa.date32()),
        ("topic", pa.string()),
        ("retain", pa.bool_()),
    ]
)
"""One row per reading: (device_id, boot, seq) is unique. Partitioned by received_date.

A negative seq means that the device does not number its readings: `boot` is the spool then, and seq rises with the
position in it.

retain: the broker had retained the message, so it may be old, and may come again with each new session.
payload_crc: the payload's length * 2**32 + its CRC-32, which reveals another
payload under the same identity.
"""

DUPLICATES_SCHEMA = pa.schema(
    [
        *(READING_SCHEMA.field(name) for name in ("device_id", "boot", "seq", "received_ts", "payload_crc")),
        *_PLACE,
    ]
)
"""Readings that silver already had with the same payload: dropped there, counted here."""

QUARANTINE_SCHEMA = pa.schema(
    [
        *(("reason", pa.string()), ("topic", pa.string()), ("payload", pa.binary()), ("received_ts", TIMESTAMP)),
        *_PLACE,
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("seq", pa.int64()),
        ("kept", pa.bool_()),
    ]
)
"""Messages that could not be read, and readings whose identity is known with another payload.

device_id: the device of the topic; with --trust-ids the id in the message. boot and seq: of the reading, where known.
kept: the reading is in silver, without what the reason names.
"""

STATUS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("online", pa.bool_()),
        ("fw", pa.string()),
        ("reason", pa.string()),
        ("extra", EXTRA),
        ("retain", pa.bool_()),
        ("received_ts", TIMESTAMP),
        *_PLACE,
    ]
)
"""``fleet/{device_id}/status``, and what rules of ingest.toml read as a status; one row per message.

`retain`: the broker had retained it, so it may be old.
"""

LOGS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("level", pa.string()),
        ("text", pa.string()),
        ("boot", pa.string()),
        ("dropped_seq", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
        ("crash", pa.string()),
        ("extra", EXTRA),
        ("received_ts", TIMESTAMP),
        *_PLACE,
    ]
)
"""``fleet/{device_id}/log``, one row per message. `crash` is JSON text; `dropped_seq`: readings that never come."""

_SHOWN = [(name + end, pa.float64()) for name in ("mem_free", "rssi", "temp_c", "supply_v") for end in ("", "_p50")]

DEVICES_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("health", pa.string()),
        ("last_seen", TIMESTAMP),
        ("last_event_ts", TIMESTAMP),
        ("online", pa.bool_()),
        ("status_reason", pa.string()),
        ("boot", pa.string()),
        ("boots", pa.int64()),
        ("reboots_24h", pa.int64()),
        ("fw", pa.string()),
        ("readings", pa.int64()),
        ("duplicates", pa.int64()),
        ("missing", pa.int64()),
        ("dropped_announced", pa.int64()),
        ("open_gaps", pa.int64()),
        ("clock_ok_share", pa.float64()),
        ("clock_behind_h", pa.int64()),
        ("delay_p50_ms", pa.float64()),
        ("delay_p95_ms", pa.float64()),
        *_SHOWN,
        ("quarantined", pa.int64()),
        ("device_group", pa.string()),
        ("site", pa.string()),
    ]
)
"""One row per device. health: see HEALTH. `online` is the newest status, null without one.

missing: number of seqs in gaps of the state missing; dropped_announced: of the state dropped. Percentiles are over all
readings, at most 5 % off. `mem_free` … are the newest values, null where the device has no such metric. quarantined:
rows of quarantine from its topics. clock_behind_h: by how many whole hours the device's clock is behind, null if it is
not. duplicates, missing, dropped_announced, open_gaps: null if the device does not number its readings. device_group
and site: from groups.csv, null where that has none.
"""

WINDOWS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("window_start", TIMESTAMP),
        ("metric", pa.string()),
        ("n", pa.int64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("mean", pa.float64()),
        ("sum", pa.float64()),
        ("last", pa.float64()),
        ("last_ts", TIMESTAMP),
        ("last_place", pa.int64()),
        ("window_date", pa.date32()),
        ("window_hour", pa.int64()),
    ]
)
"""One row per device, metric and five minutes of (repaired) event time; rows are merged and never final.

last: the value of the newest event time; of equal times, that of the last place in the spool, `last_place`
(segment * 2**40 + position).

Partitioned by window_date and window_hour, the hour of the day, so that a late reading rewrites one hour only.
"""

TEXTS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("metric", pa.string()),
        ("text", pa.string()),
        ("last_ts", TIMESTAMP),
        ("retain", pa.bool_()),
    ]
)
"""One row per device and metric whose values are texts, such as the state of a door: the newest text.

text: at most its first 1,000 characters. last_ts: the reading's time, or when it was received if its clock was not set.
retain: the broker had retained it, so it may be older than last_ts. Of a device, the 500 metrics with the newest texts.
"""

BOOTS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("boot_number", pa.int64()),
        ("first_seen", TIMESTAMP),
        ("last_seen", TIMESTAMP),
        ("first_seq", pa.int64()),
        ("highest_seq", pa.int64()),
        ("readings", pa.int64()),
        ("missing", pa.int64()),
        ("fw", pa.string()),
        ("cause", pa.string()),
        ("reason", pa.string()),
        ("anchor_ts_us", pa.int64()),
        ("clock", pa.string()),
        ("heard_date", pa.date32()),
    ]
)
"""One row per boot. anchor_ts_us: time of the boot, Unix microseconds, from the lowest seq with a good clock and `up`.

Partitioned by heard_date: the date of last_seen, or of first_seen in a boot without readings.

clock: ts (set from the first reading on), anchor (set later, which dates the earlier readings), received (never set).
"""

GAPS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("missing", pa.int64()),
        ("announced", pa.bool_()),
        ("open", pa.bool_()),
        ("since", TIMESTAMP),
        ("state", pa.string()),
        ("heard_date", pa.date32()),
    ]
)
"""Ranges of seq missing from silver; `since`: when the first reading above the range was received.

heard_date: that of the boot in gold/boots; null if only log messages tell of the boot.

state: missing (the readings may still come, and are `open`), dropped (the device reported it: `announced`), quarantined
(they came and could not be read), earlier (of a boot that began before the collector's first message).
"""

TRAFFIC_SCHEMA = pa.schema(
    [
        ("minute", TIMESTAMP),
        ("readings", pa.int64()),
        ("duplicates", pa.int64()),
        ("quarantined", pa.int64()),
        ("bytes", pa.int64()),
        ("devices", pa.int64()),
        ("delay_p50_ms", pa.float64()),
        ("delay_p95_ms", pa.float64()),
    ]
)
"""One row per minute of received time. bytes: payloads of readings, duplicates and quarantined messages."""

ALERTS_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("rule", pa.string()),
        ("kind", pa.string()),
        ("since", TIMESTAMP),
        ("until", TIMESTAMP),
        ("value", pa.float64()),
        ("text", pa.string()),
    ]
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
