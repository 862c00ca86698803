"""One device: what the tables say of it, its charts, and where one of its readings is."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from spark_ingest.spool.view import Spools, SpoolView

from .tables import Tables

US = 1_000_000
MOST_POINTS = 2000
# A span up to this long, in seconds, is drawn from the readings themselves, a longer one from the five-minute windows.
FINEST_S = 6 * 3600
OWN_SERIES = ("delay", "waiting")
"""Series that are no metrics: seconds from a reading to its receipt, and readings taken and not yet received."""
_MOST_ROWS = 100
_SAMPLE_BYTES = 1024
_MOST_DEVICES = 50
# A hole is shown where this many times the usual distance of points is passed.
_HOLE = 3.5


def facts(tables: Tables, device: str) -> dict[str, Any]:
    """Return boots, gaps, alerts, texts, newest status, samples of quarantine and metrics of a device."""

    def rows(table: str, columns: str, order: str, where: str = "device_id = ?") -> list[dict[str, Any]]:
        query = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} LIMIT {_MOST_ROWS}"
        return tables.rows([table], query, device)

    status = rows(
        "status", 'online, boot, fw, reason, extra, epoch_ms(received_ts) AS "at"', "received_ts DESC, position DESC"
    )
    return {
        "boots": rows(
            "boots",
            """boot, boot_number AS number, epoch_ms(first_seen) AS first_seen, epoch_ms(last_seen) AS last_seen,
            readings, missing, fw, cause, reason, clock""",
            "coalesce(last_seen, first_seen) DESC",
        ),
        "gaps": rows("gaps", 'boot, "first", "last", missing, state, open, epoch_ms(since) AS since', "since DESC"),
        "alerts": rows(
            "alerts",
            'rule, kind, text, epoch_ms(since) AS since, epoch_ms(until) AS until, "value"',
            "until IS NOT NULL, since DESC",
        ),
        "texts": rows("texts", 'metric, text, epoch_ms(last_ts) AS "at"', "metric"),
        "statuses": [one | {"extra": _extra(one["extra"])} for one in status],
        "quarantine": samples(tables, device),
        "metrics": [row["metric"] for row in rows("windows", "DISTINCT metric", "metric")],
    }


def samples(tables: Tables, device: str | None = None) -> list[dict[str, Any]]:
    """Return the newest quarantined messages, of one device or of all."""
    found = tables.rows(
        ["quarantine"],
        f"""SELECT reason, topic, device_id AS device, boot, seq, kept, epoch_ms(received_ts) AS "at",
            octet_length(payload) AS size, payload[1:{_SAMPLE_BYTES}] AS payload
        FROM quarantine WHERE ? IS NULL OR device_id = ? ORDER BY received_ts DESC LIMIT {_MOST_ROWS}""",
        device,
        device,
    )
    return [row | {"payload": shown(row["payload"] or b"")} for row in found]


def logs(tables: Tables, device: str, level: str, before_ms: int) -> list[dict[str, Any]]:
    """Return the newest lines of a device's log before a time. level: "" for all."""
    found = tables.rows(
        ["logs"],
        f"""SELECT level, text, boot, crash, epoch_ms(received_ts) AS "at" FROM logs
        WHERE device_id = ? AND (? = '' OR level = ?) AND epoch_ms(received_ts) < ?
        ORDER BY received_ts DESC, position DESC LIMIT {2 * _MOST_ROWS}""",
        device,
        level,
        level,
        before_ms,
    )
    return [row | {"crash": _json(row["crash"])} for row in found]


def crashes(tables: Tables) -> list[dict[str, Any]]:
    """Return the crashes of the fleet by cause: the last line of the traceback, and where it was raised."""
    found = tables.rows(
        ["logs"],
        """SELECT device_id AS device, crash, boot, epoch_ms(received_ts) AS "at" FROM logs
        WHERE crash IS NOT NULL ORDER BY received_ts DESC LIMIT 20000""",
    )
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found:
        crash = _json(row["crash"])
        text = str(crash.get("traceback") or "") if isinstance(crash, dict) else str(crash)
        lines = text.strip().splitlines() or ["no traceback"]
        where = next((line.strip() for line in reversed(lines) if line.strip().startswith("File ")), "")
        group = groups.setdefault(
            (lines[-1], where),
            {"cause": lines[-1], "where": where, "n": 0, "devices": {}, "first": row["at"], "last": row["at"],
             "traceback": text},
        )  # fmt: skip
        group["n"] += 1
        group["first"] = row["at"]
        group["devices"][row["device"]] = group["devices"].get(row["device"], 0) + 1
    found_groups = sorted(groups.values(), key=lambda one: int(one["n"]), reverse=True)[:_MOST_ROWS]
    for one in found_groups:
        most = sorted(one["devices"].items(), key=lambda pair: pair[1], reverse=True)
        one["device_count"], one["devices"] = len(most), most[:_MOST_DEVICES]
    return found_groups


def series(tables: Tables, device: str, name: str, start_ms: int, end_ms: int) -> dict[str, Any]:
    """Return a chart's line: times in milliseconds and values, with a null where there is a hole.

    low and high: the least and greatest value of each point, where a point stands for several readings.
    """
    if name == "waiting":
        return _waiting(tables, device, start_ms, end_ms)
    span_s = (end_ms - start_ms) / 1000
    if name == "delay":
        rows = _readings(
            tables, device, "epoch_ms(received_ts)", "(epoch_us(received_ts) - epoch_us(event_ts)) / 1e6",
            "received_ts", start_ms, end_ms,
        )  # fmt: skip
        return _line(rows, "readings")
    if span_s <= FINEST_S:
        rows = _readings(tables, device, "epoch_ms(event_ts)", "metrics[?]", "event_ts", start_ms, end_ms, name)
        if rows:
            return _line(rows, "readings")
    step_s = max(300, math.ceil(span_s / MOST_POINTS / 300) * 300)
    rows = tables.rows(
        ["windows"],
        f"""SELECT epoch_ms(window_start) // {step_s * 1000} * {step_s * 1000} AS "at",
            sum("sum") / sum(n) AS "value", min("min") AS low, max("max") AS high FROM windows
        WHERE device_id = ? AND metric = ? AND n > 0
          AND window_start BETWEEN make_timestamptz(?) AND make_timestamptz(?)
          AND window_date BETWEEN make_timestamp(?)::DATE AND make_timestamp(?)::DATE
        GROUP BY ALL ORDER BY 1""",
        device, name, *_us(start_ms, end_ms), *_us(start_ms, end_ms),
    )  # fmt: skip
    return _line(rows, "windows", step_s * 1000)


def span(tables: Tables, device: str) -> tuple[int, int]:
    """Return when the first boot and the newest message of a device came, in milliseconds; zeros for a stranger."""
    rows = tables.rows(
        ["boots", "devices"],
        """SELECT (SELECT min(epoch_ms(first_seen)) FROM boots WHERE device_id = ?) AS first,
            (SELECT max(epoch_ms(last_seen)) FROM devices WHERE device_id = ?) AS last""",
        device,
        device,
    )
    return rows[0]["first"] or rows[0]["last"] or 0, rows[0]["last"] or 0


def trace(
    tables: Tables, spools: Spools | None, queued: Mapping[str, int] | None, device: str, boot: str, seq: int
) -> list[dict[str, Any]]:
    """Return where a reading is and was: a step for each place, with `state` there, passed, not there or unknown.

    spools: where the collectors write. queued: messages that wait at the broker, by client; None if nobody knows.
    """
    identity = (device, boot, seq)
    of_reading = "device_id = ? AND boot = ? AND seq = ?"
    silver = tables.rows(
        ["silver"],
        f"""SELECT epoch_ms(event_ts) AS taken, epoch_ms(received_ts) AS received, collector, spool, segment, position,
            clock_ok FROM silver WHERE {of_reading} LIMIT 1""",
        *identity,
    )
    copies = tables.rows(
        ["duplicates"],
        f"SELECT epoch_ms(received_ts) AS received FROM duplicates WHERE {of_reading} ORDER BY received_ts LIMIT 20",
        *identity,
    )
    refused = tables.rows(
        ["quarantine"],
        f"SELECT reason, epoch_ms(received_ts) AS received, kept FROM quarantine WHERE {of_reading} LIMIT 20",
        *identity,
    )
    gap = tables.rows(
        ["gaps"],
        """SELECT state, epoch_ms(since) AS since FROM gaps
        WHERE device_id = ? AND boot = ? AND ? BETWEEN "first" AND "last" """,
        *identity,
    )
    known = tables.rows(
        ["boots"],
        "SELECT first_seq, highest_seq FROM boots WHERE device_id = ? AND boot = ?",
        device,
        boot,
    )
    place = silver[0] if silver else None
    bronze = []
    if place is not None:
        bronze = tables.rows(
            ["bronze"],
            """SELECT topic, qos, retain, dup FROM bronze
            WHERE spool = ? AND segment = ? AND position = ? AND received_date = make_timestamp(?)::DATE LIMIT 1""",
            place["spool"], place["segment"], place["position"], place["received"] * 1000,
        )  # fmt: skip
    spool = None
    if spools is not None and place is not None and place["collector"] in spools.names():
        spool = spools.view(place["collector"])
    return list(_steps(place, bronze, copies, refused, gap, known, spool, queued, seq))


def _steps(
    place: Mapping[str, Any] | None, bronze: Sequence[Mapping[str, Any]], copies: Sequence[Mapping[str, Any]],
    refused: Sequence[Mapping[str, Any]], gap: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]],
    spool: SpoolView | None, queued: Mapping[str, int] | None, seq: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    def step(where: str, state: str, text: str, at: int | None = None) -> dict[str, Any]:
        return {"place": where, "state": state, "text": text, "at": at}

    arrived = place is not None or bool(refused)
    highest = known[0]["highest_seq"] if known else None
    if arrived:
        taken = place["taken"] if place else None
        yield step("Device", "passed", "Taken, and deleted from flash after the broker's acknowledgement.", taken)
    elif gap and gap[0]["state"] == "dropped":
        yield step("Device", "lost", "The device reported that its outbox was full and that it dropped this reading.")
    elif gap and gap[0]["state"] == "earlier":
        yield step("Device", "unknown", "It was taken before the collector's first message of this boot.")
    elif gap:
        yield step("Device", "likely", "It has not come, and later readings have: it waits in flash or in the broker.")
    elif not known:
        yield step("Device", "unknown", "Nothing is known of this boot: compare it with the boots above.")
    else:
        above = f"The highest seq that came of this boot is {highest}." if highest is not None and seq > highest else ""
        yield step("Device", "likely", f"It has not come. {above} If it was taken, it waits in the device's flash.")
    if arrived:
        yield step("Broker", "passed", "Delivered to the collector.")
    elif queued is None:
        yield step(
            "Broker", "unknown", "The broker's queues are not known here: give --broker-http and --broker-token."
        )
    else:
        waiting = sum(queued.values())
        yield step("Broker", "likely" if waiting else "absent", f"{waiting:,} messages wait for clients that are away.")
    came = place or (refused[0] if refused else None)
    if place is not None:
        where = f"segment {place['segment']}, position {place['position']} of {place['collector']}"
        kept = spool is not None and place["segment"] in spool.segments()
        rest = "; the segment is still there" if kept else "; the segment has been removed" if spool else ""
        yield step("Spool", "there" if kept else "passed", f"Written at {where}{rest}.", place["received"])
        one = bronze[0] if bronze else None
        said = f"Topic {one['topic']}, QoS {one['qos']}{', sent again (DUP)' if one['dup'] else ''}." if one else ""
        yield step("Bronze", "there" if one else "absent", said or "Removed by retention, or not in this folder.")
        clock = "" if place["clock_ok"] else " Its clock was not set; the time is computed."
        yield step("Silver", "there", f"Stored once.{clock}", place["taken"])
    elif came is not None:
        yield step("Spool", "passed", "Written.", came["received"])
        yield step("Silver", "absent", "Not in silver: it is in quarantine.")
    else:
        yield step("Spool", "absent", "Not received yet.")
        yield step("Silver", "absent", "Not in silver.")
    for row in refused:
        yield step("Quarantine", "there", row["reason"] + (" (kept in silver)" if row["kept"] else ""), row["received"])
    for row in copies:
        yield step("Duplicate", "passed", "It came again, and was dropped.", row["received"])


def shown(payload: bytes) -> dict[str, str]:
    """Return a payload for a page: as UTF-8 text, or in hex."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        if error.start < len(payload) - 4 or error.reason != "unexpected end of data":
            return {"encoding": "hex", "text": payload.hex(" ")}
        text = payload[: error.start].decode()
    return {"encoding": "text", "text": text}


def _readings(
    tables: Tables, device: str, at: str, value: str, ordered_by: str, start_ms: int, end_ms: int, *values: object
) -> list[dict[str, Any]]:
    """Return points from silver, means of several readings where there are more than MOST_POINTS."""
    # A reading may have been received up to days after it was taken, and a clock may be ahead: look a week further.
    week = 7 * 86_400_000
    step = max(1, (end_ms - start_ms) // MOST_POINTS)
    return tables.rows(
        ["silver"],
        f"""SELECT avg(ms)::BIGINT AS "at", avg("value") AS "value", min("value") AS low, max("value") AS high FROM (
            SELECT {at} AS ms, {value} AS "value" FROM silver
            WHERE device_id = ? AND {ordered_by} BETWEEN make_timestamptz(?) AND make_timestamptz(?)
              AND received_date BETWEEN make_timestamp(?)::DATE AND make_timestamp(?)::DATE)
        WHERE "value" IS NOT NULL AND isfinite("value") GROUP BY ms // {step} ORDER BY 1""",
        *values,
        device,
        *_us(start_ms, end_ms),
        *_us(start_ms - 86_400_000, end_ms + week),
    )


def _waiting(tables: Tables, device: str, start_ms: int, end_ms: int) -> dict[str, Any]:
    """Return how many readings had been taken and not yet received: the backlog, and its drain."""
    step = max(1000, (end_ms - start_ms) // 400)
    rows = tables.rows(
        ["silver"],
        f"""WITH own AS (SELECT epoch_ms(event_ts) AS taken, epoch_ms(received_ts) AS came FROM silver
            WHERE device_id = ? AND epoch_ms(received_ts) >= ? AND epoch_ms(event_ts) <= ?
              AND received_date >= make_timestamp(?)::DATE)
        SELECT step * {step} AS "at", sum(change)::BIGINT AS change FROM (
            SELECT least(taken, came) // {step} AS step, 1 AS change FROM own
            UNION ALL SELECT came // {step}, -1 FROM own)
        GROUP BY step ORDER BY step""",
        device, start_ms, end_ms, (start_ms - 86_400_000) * 1000,
    )  # fmt: skip
    changes = {row["at"]: row["change"] for row in rows}
    xs, ys, level = [], [], sum(change for at, change in changes.items() if at < start_ms // step * step)
    for at in range(start_ms // step * step, end_ms + 1, step):
        level += changes.get(at, 0)
        xs.append(at)
        ys.append(max(0, level))
    return {"x": xs, "y": ys, "low": None, "high": None, "from": "readings"}


def _line(rows: Sequence[Mapping[str, Any]], source: str, step_ms: int | None = None) -> dict[str, Any]:
    """Return a chart's line, with a null in each hole."""
    times = [row["at"] for row in rows]
    apart = [b - a for a, b in pairwise(times)]
    usual = step_ms or (statistics.median(apart) if apart else 0)
    found: dict[str, list[Any]] = {"x": [], "y": [], "low": [], "high": []}
    before = None
    for row in rows:
        if before is not None and usual and row["at"] - before > _HOLE * usual:
            for key, value in (("x", (before + row["at"]) // 2), ("y", None), ("low", None), ("high", None)):
                found[key].append(value)
        before = row["at"]
        for key, name in (("x", "at"), ("y", "value"), ("low", "low"), ("high", "high")):
            found[key].append(row[name])
    return {**found, "from": source}


def _us(*times_ms: int) -> list[int]:
    return [ms * 1000 for ms in times_ms]


def _extra(pairs: Any) -> dict[str, Any]:
    """Return the fields of a status without a column of their own."""
    return {name: _json(text) for name, text in (pairs or {}).items()}


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
