"""Gold tables of an invented fleet, the same for the same seed, for the report's tests and screenshots.

.venv/bin/python host_tests/spark/report/gold_tables.py FOLDER [DEVICES [DAYS]]
"""

import base64
import json
import random
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from spark_ingest.gold import Gold
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.source.rows import ARROW_SCHEMA
from spark_ingest.tables.schemas import SCHEMAS, TIMESTAMP

US = 1_000_000
MINUTE, HOUR, DAY = 60 * US, 3600 * US, 86_400 * US
WINDOW = 5 * MINUTE
END_US = 1_795_000_200 * US
MADE_AT = 1_795_090_000
"""When the page of these tables is made, in Unix seconds."""
"""When the newest reading came: 2026-11-18 11:10 UTC, a multiple of the windows' length."""

_CAUSES = ("power on", "power on", "watchdog", "hard reset", "brown out", "soft reset")
_PLACES = ("pump", "greenhouse", "cellar", "well", "gate", "silo", "tank", "roof")


def write_rows(folder: Path, name: str, rows: Iterable[dict]) -> None:
    """Write gold table `name`; times are Unix microseconds, columns left out are null."""
    write_table(folder, name, pa.Table.from_pylist(list(rows), SCHEMAS[f"gold/{name}"]))


def write_table(folder: Path, name: str, rows: pa.Table) -> None:
    write_deltalake(str(folder / "gold" / name), rows, mode="overwrite")


def empty(folder: Path) -> Path:
    """Write all gold tables, without rows."""
    for name in SCHEMAS:
        if name.startswith("gold/"):
            write_rows(folder, name.removeprefix("gold/"), [])
    return folder


def fleet(folder: Path, devices: int = 40, days: float = 3, seed: int = 7, names: Iterable[str] = ()) -> Path:
    """Write gold tables of `devices` devices over `days`; `names` replaces the first ids.

    Every ninth is offline, every seventh restarts too often, every eleventh has gaps, and an outage in the middle
    delays everything by an hour.
    """
    ids = [f"{_PLACES[i % len(_PLACES)]}-{i // len(_PLACES) + 1:02d}" for i in range(devices)]
    names = list(names)
    ids[: len(names)] = names
    dice = random.Random(seed)
    start = END_US - round(days * DAY)
    boots = [_boots(dice, i, name, start) for i, name in enumerate(ids)]
    gaps = [_gaps(dice, one[-1]) if i % 11 == 3 else [] for i, one in enumerate(boots)]
    write_rows(folder, "devices", [_device(dice, i, boots[i], gaps[i]) for i in range(devices)])
    write_table(folder, "windows", _windows(np.random.default_rng(seed), ids, start))
    write_rows(folder, "boots", [row for rows in boots for row in rows])
    write_rows(folder, "gaps", [row for rows in gaps for row in rows])
    write_table(folder, "traffic", _traffic(np.random.default_rng(seed + 1), devices, start))
    write_rows(folder, "alerts", _alerts(dice, ids))
    return folder


OUTAGE_S = range(50, 55)
"""Seconds of :func:`outage` in which nothing arrives."""


def outage(folder: Path, devices: int = 12, seconds: int = 100) -> list[dict]:
    """Write tables of a fleet that reads four times a second and is cut off for five seconds.

    The backlog arrives within three seconds. Two devices said goodbye, one is lost, one has no status. Returns the
    readings, with times in Unix microseconds.
    """
    start, rows, sent = END_US - seconds * US, [], []
    names = [f"pump-{device + 1:02d}" for device in range(devices)]
    for seq in range(seconds * 4):
        for device, name in enumerate(names):
            taken = start + seq * US // 4 + device * 1000
            cut = (taken - start) // US in OUTAGE_S
            received = start + 55 * US + (taken - start - 50 * US) * 3 // 5 if cut else taken + 20_000 + 900 * device
            metrics = {"temp_c": 20.0 + device + seq / 100, "outbox": 0.0}
            record = {"v": 1, "id": name, "boot": "1-x", "seq": seq, "ts": taken // 1000, "m": metrics}
            rows.append({"device_id": name, "taken": taken, "received": received})
            sent.append((f"fleet/{name}/telemetry", record, received))
    said = dict(zip(names, [(False, "stopped"), (False, "sleeping"), (False, "gone"), None], strict=False))
    for name in names:
        online = said.get(name, (True, "boot"))
        status = {"online": online[0], "reason": online[1], "boot": "1-x"} if online else None
        sent += [(f"fleet/{name}/status", status, END_US - US)] if status else []
    ingest(folder, sorted(sent, key=lambda one: one[2]))
    return rows


def ingest(folder: Path, sent: list[tuple[str, dict, int]], now_us: int | None = None) -> None:
    """Write the tables of messages (topic, content, received in Unix microseconds), by the pipeline's own writers."""
    messages = [
        {
            "topic": topic,
            "payload": json.dumps(content).encode(),
            "received_ts": received,
            "qos": 1,
            "retain": False,
            "dup": False,
            "collector": "north",
            "spool": "0" * 32,
            "segment": 1,
            "position": 200 * place,
        }
        for place, (topic, content, received) in enumerate(sent)
    ]
    table = pa.Table.from_pylist(messages, ARROW_SCHEMA).select(MESSAGE_COLUMNS)
    writer = BatchWriter(folder, folder / ".state", report=print)
    half = len(messages) // 2
    # Two micro-batches, so that there is more than one file.
    writer.write(table.slice(0, half), 0, "story")
    writer.write(table.slice(half), 1, "story")
    Gold(folder).update(now_us)


def decoded(written: list, count: int) -> list[float | None]:
    """Decode a line of the report's data to numbers; the page's own reader is in page.js."""
    low, high, text = written
    levels = struct.unpack(f"<{count}H", base64.b64decode(text))
    return [None if level == 0xFFFF else low + (high - low) * level / 0xFFFE for level in levels]


def _boots(dice: random.Random, device: int, name: str, start: int) -> list[dict]:
    restarts = dice.randrange(12, 30) if device % 7 == 5 else dice.choice((0, 0, 0, 1, 2))
    # Many restarts count as a loop: all of them happen within three hours.
    earliest = END_US - 3 * HOUR if restarts > 10 else start
    begins = [start - HOUR, *sorted(dice.randrange(earliest, END_US) for _ in range(restarts))]
    return [
        {
            "device_id": name,
            "boot": f"{number}-{dice.getrandbits(64):016x}",
            "boot_number": number,
            "first_seen": begin + 4 * US,
            "last_seen": end,
            "first_seq": 0,
            "highest_seq": (end - begin) // MINUTE,
            "readings": (end - begin) // MINUTE + 1,
            "cause": dice.choice(_CAUSES),
            "anchor_ts_us": begin if number % 3 else None,
            "clock": "ts",
        }
        for number, (begin, end) in enumerate(zip(begins, [*begins[1:], END_US], strict=True), 1)
    ]


def _gaps(dice: random.Random, boot: dict) -> list[dict]:
    rows, seq = [], 5
    for _ in range(dice.randrange(1, 4)):
        seq += dice.randrange(10, 400)
        missing, announced = dice.randrange(1, 60), dice.random() < 0.4
        rows.append(
            {
                **{name: boot[name] for name in ("device_id", "boot")},
                "first": seq,
                "last": seq + missing - 1,
                "missing": missing,
                "announced": announced,
                "open": not announced,
                "since": END_US - dice.randrange(2 * DAY),
            }
        )
        seq += missing
    return rows


def _device(dice: random.Random, i: int, boots: list[dict], gaps: list[dict]) -> dict:
    offline = i % 9 == 4
    age = END_US - boots[0]["first_seen"]
    seen = END_US - (min(dice.randrange(2, 30) * HOUR, age // 2) if offline else dice.randrange(MINUTE))
    missing = sum(gap["missing"] for gap in gaps if gap["open"])
    late = i % 13 == 2
    loop = len(boots) > 10
    health = "offline" if offline else "rebooting" if loop else "gaps" if missing else "late" if late else "ok"
    delay = float(dice.randrange(80, 400) * (20 if late else 1))
    newest = {
        "supply_v": 3.3 + dice.random() * 0.8,
        "temp_c": 8 + dice.random() * 20,
        "mem_free": float(dice.randrange(38_000, 120_000)),
        "rssi": None if i % 10 == 9 else -45.0 - dice.randrange(40),
    }
    return {
        "device_id": boots[-1]["device_id"],
        "health": health,
        "last_seen": seen,
        "last_event_ts": seen - US,
        "online": None if i % 20 == 19 else not offline,
        "boot": boots[-1]["boot"],
        "boots": len(boots),
        "reboots_24h": sum(boot["first_seen"] > END_US - DAY for boot in boots[1:]),
        "fw": "0.1.0" if i % 5 else "0.0.9",
        "readings": sum(boot["readings"] for boot in boots),
        "duplicates": dice.randrange(30),
        "missing": missing,
        "dropped_announced": sum(gap["missing"] for gap in gaps if gap["announced"]),
        "open_gaps": sum(gap["open"] for gap in gaps),
        "clock_ok_share": 0.91 if i % 17 == 0 else 1.0,
        "delay_p50_ms": delay,
        "delay_p95_ms": delay * 3.5,
        **newest,
        **{f"{name}_p50": value for name, value in newest.items()},
    }


def _windows(dice: np.random.Generator, ids: list[str], start: int) -> pa.Table:
    at = np.arange(start // WINDOW * WINDOW, END_US, WINDOW)
    count, hours, days = len(ids), (at / HOUR)[None, :], ((at - at[0]) / DAY)[None, :]
    own = dice.random((count, 1))
    noise = dice.standard_normal((4, count, len(at)))
    values = {
        "supply_v": 3.62 + 0.35 * own + 0.12 * np.sin(hours * np.pi / 12 - 2) - 0.03 * days + 0.01 * noise[0],
        "temp_c": 14 + 9 * own + 6 * np.sin(hours * np.pi / 12 - 2.4) + 0.4 * noise[1],
        "mem_free": 60_000 + 60_000 * own - 4000 * days * (own > 0.9) + 700 * noise[2],
        "rssi": -58 - 24 * own + 2.5 * noise[3],
    }
    away = (np.arange(count) % 9 == 4)[:, None] & (at > END_US - 8 * HOUR)[None, :]
    wired = (np.arange(count) % 10 == 9)[:, None]
    return pa.concat_tables(
        _metric_windows(ids, at, metric, cells, ~away & ~(wired & (metric == "rssi")))
        for metric, cells in values.items()
    )


def _metric_windows(ids: list[str], at: np.ndarray, metric: str, cells: np.ndarray, known: np.ndarray) -> pa.Table:
    device, window = np.nonzero(known)
    mean = cells[device, window].round(3)
    n = 1 + (device * 7 + window * 3) % 6
    columns = {
        "device_id": pa.array(ids).take(pa.array(device)),
        "window_start": pa.array(at[window]).cast(TIMESTAMP),
        "metric": pa.array(np.full(len(mean), metric), pa.string()),
        "n": pa.array(n),
        "min": pa.array(mean - 0.2),
        "max": pa.array(mean + 0.2),
        "mean": pa.array(mean),
        "sum": pa.array(mean * n),
        "last": pa.array(mean),
        "last_ts": pa.array(at[window] + WINDOW - US).cast(TIMESTAMP),
        "last_place": pa.array(window, pa.int64()),
        "window_date": pa.array(at[window]).cast(TIMESTAMP).cast(pa.date32()),
        "window_hour": pa.array(at[window] // HOUR % 24),
    }
    schema = SCHEMAS["gold/windows"]
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _traffic(dice: np.random.Generator, devices: int, start: int) -> pa.Table:
    at = np.arange(start // MINUTE * MINUTE, END_US, MINUTE)
    share = np.linspace(0, 1, len(at))
    outage, catch_up = (share > 0.5) & (share < 0.52), (share >= 0.52) & (share < 0.525)
    readings = dice.poisson(devices * (1 + 0.15 * np.sin(share * 19)))
    readings = np.where(outage, 0, np.where(catch_up, readings * 4, readings))
    delay = np.where(catch_up, 2_400_000, 120 + 60 * dice.random(len(at)) + 90 * (np.sin(share * 19) > 0.6))
    columns = {
        "minute": at,
        "readings": readings,
        "duplicates": dice.poisson(np.where(catch_up, devices, 0.02 * devices)),
        "quarantined": dice.poisson(0.004, len(at)),
        "bytes": readings * 142,
        "devices": np.minimum(readings, devices),
        "delay_p50_ms": delay,
        "delay_p95_ms": delay * (2.2 + dice.random(len(at))),
    }
    schema = SCHEMAS["gold/traffic"]
    kept = readings > 0
    return pa.table([pa.array(columns[one.name][kept]).cast(one.type) for one in schema], schema=schema)


def _alerts(dice: random.Random, ids: list[str]) -> list[dict]:
    rows = []
    for i, name in enumerate(ids):
        since = END_US - dice.randrange(1, 20) * HOUR
        usual = {"device_id": name, "since": since}
        if i % 9 == 4:
            rows.append({**usual, "kind": "offline", "value": 3600.0, "text": "nothing for an hour"})
        if i % 7 == 5:
            rows.append({**usual, "kind": "reboot_loop", "value": 14.0, "text": "14 boots in 24 hours"})
        if i % 11 == 3:
            until = since + HOUR // 2
            rows.append({**usual, "until": until, "kind": "gap", "value": 31.0, "text": "31 readings missing"})
    return rows


if __name__ == "__main__":
    fleet(Path(sys.argv[1]), *[int(one) for one in sys.argv[2:]])
