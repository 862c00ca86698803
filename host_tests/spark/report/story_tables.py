"""Tables of four devices over six hours, small enough to describe: the examples of docs/sql.md run on them.

The watchdog restarts ``pump-7`` at 08:00, ``pump-8`` was cut off from 07:00 to 09:00 and sent everything later,
``well-1`` lost readings 100 to 119, ``gate-3`` is silent since 08:30. They send a reading a minute, 06:00 to 12:00.

Silver and the tables beside it are made by the pipeline's own batch writer; gold by the loops below, from the same
rows.
"""

import json
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
from gold_tables import HOUR, MINUTE, US, write_rows

from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.source.rows import ARROW_SCHEMA

START = 1_794_981_600 * US
"""2026-11-18 06:00 UTC."""
END = START + 6 * HOUR
_WINDOW = 5 * MINUTE


def story(folder: Path) -> Path:
    """Write the tables below `folder`/tables; return their folder."""
    readings = _readings()
    _silver(folder, readings)
    _gold(folder / "tables", readings)
    return folder / "tables"


def _readings() -> list[dict]:
    """Return what arrived, in the order of arrival; times in Unix microseconds."""
    found = []
    for device, number in (("pump-7", 0), ("pump-8", 1), ("well-1", 2), ("gate-3", 3)):
        for minute in range(360):
            at = START + minute * MINUTE
            second = device == "pump-7" and minute >= 120
            seq = minute - 120 if second else minute
            if (device == "well-1" and 100 <= seq < 120) or (device == "gate-3" and minute >= 150):
                continue
            cut = device == "pump-8" and 60 <= minute < 180
            found.append(
                {
                    "device_id": device,
                    "boot": f"{5 if second else 4}-{number:016x}",
                    "seq": seq,
                    "at": at,
                    "received": START + 3 * HOUR + seq * US // 10 if cut else at + 250_000,
                    "up": 5000 + 60_000 * seq,
                    "m": {
                        "temp_c": 10 + number + minute // 60,
                        "supply_v": 3.9 - minute / 1000,
                        "mem_free": 90_000 - (400 * minute if device == "pump-7" and not second else 0),
                    },
                }
            )
    return sorted(found, key=lambda one: (one["received"], one["device_id"], one["seq"]))


def _silver(folder: Path, readings: list[dict]) -> None:
    messages = []
    for place, one in enumerate(readings):
        payload = {"v": 1, "id": one["device_id"], "boot": one["boot"], "seq": one["seq"]}
        payload |= {"ts": one["at"] // 1000, "up": one["up"], "m": one["m"]}
        messages.append(
            {
                "topic": f"fleet/{one['device_id']}/telemetry",
                "payload": json.dumps(payload).encode(),
                "received_ts": one["received"],
                "qos": 1,
                "retain": False,
                "dup": False,
                "collector": "north",
                "spool": "0" * 32,
                "segment": 1,
                "position": 200 * place,
            }
        )
    table = pa.Table.from_pylist(messages, ARROW_SCHEMA).select(MESSAGE_COLUMNS)
    writer = BatchWriter(folder / "tables", folder / "state", report=print)
    half = len(messages) // 2
    # Two micro-batches, so that there is more than one file.
    writer.write(table.slice(0, half), 0, "story")
    writer.write(table.slice(half), 1, "story")


def _gold(tables: Path, readings: list[dict]) -> None:
    windows, boots, devices = defaultdict(list), defaultdict(list), defaultdict(list)
    for one in sorted(readings, key=lambda each: each["at"]):
        devices[one["device_id"]].append(one)
        boots[one["device_id"], one["boot"]].append(one)
        for metric, value in one["m"].items():
            windows[one["device_id"], one["at"] // _WINDOW * _WINDOW, metric].append(value)
    write_rows(tables, "windows", (_window(*key, values) for key, values in windows.items()))
    write_rows(tables, "boots", (_boot(*key, rows) for key, rows in boots.items()))
    write_rows(tables, "devices", (_device(name, rows) for name, rows in devices.items()))
    gap = {"device_id": "well-1", "boot": "4-0000000000000002", "first": 100, "last": 119, "missing": 20}
    write_rows(tables, "gaps", [gap | {"announced": False, "open": True, "since": START + 120 * MINUTE}])
    offline = {"device_id": "gate-3", "kind": "offline", "since": START + 150 * MINUTE, "value": 12_600.0}
    write_rows(tables, "alerts", [offline | {"text": "nothing for 3.5 h"}])
    write_rows(tables, "traffic", [])


def _window(device: str, start: int, metric: str, values: list[float]) -> dict:
    total = float(sum(values))
    figures = {"n": len(values), "min": min(values), "max": max(values), "mean": total / len(values), "sum": total}
    return {"device_id": device, "window_start": start, "metric": metric, "last": values[-1], **figures}


def _boot(device: str, boot: str, rows: list[dict]) -> dict:
    number = int(boot.partition("-")[0])
    return {
        "device_id": device,
        "boot": boot,
        "boot_number": number,
        "first_seen": min(row["received"] for row in rows),
        "last_seen": max(row["received"] for row in rows),
        "first_seq": rows[0]["seq"],
        "highest_seq": rows[-1]["seq"],
        "readings": len(rows),
        "cause": "watchdog" if number == 5 else "power on",
    }


def _device(device: str, rows: list[dict]) -> dict:
    seen = max(row["received"] for row in rows)
    health = {"gate-3": "offline", "well-1": "gaps"}.get(device, "ok")
    newest = {name: float(value) for name, value in rows[-1]["m"].items()}
    return {"device_id": device, "health": health, "last_seen": seen, "readings": len(rows), **newest}
