"""Tables of four devices over six hours, small enough to describe: the examples of docs/sql.md run on them.

The watchdog restarts ``pump-7`` at 08:00, ``pump-8`` was cut off from 07:00 to 09:00 and sent everything later,
``well-1`` lost readings 100 to 119, ``gate-3`` is silent since 08:30. They send a reading a minute, 06:00 to 12:00.

The tables are made by the pipeline's own writers.
"""

from pathlib import Path

from gold_tables import HOUR, MINUTE, US, ingest

START = 1_794_981_600 * US
"""2026-11-18 06:00 UTC."""
END = START + 6 * HOUR


def story(folder: Path) -> Path:
    """Write the tables below `folder`/tables; return their folder."""
    sent = []
    for one in _readings():
        record = {"v": 1, "id": one["device_id"], "boot": one["boot"], "seq": one["seq"]}
        record |= {"ts": one["at"] // 1000, "up": one["up"], "m": one["m"]}
        if one["seq"] == 0:
            born = {"online": True, "boot": one["boot"], "cause": "watchdog" if one["boot"][0] == "5" else "power on"}
            sent.append((f"fleet/{one['device_id']}/status", born, one["received"]))
        sent.append((f"fleet/{one['device_id']}/telemetry", record, one["received"]))
    ingest(folder / "tables", sent, END)
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
