"""Tables of four devices over six hours, small enough to describe: the examples of docs/sql.md run on them.

The watchdog restarts ``pump-7`` at 08:00, ``pump-8`` was cut off from 07:00 to 09:00 and sent everything later,
``well-1`` lost readings 100 to 119, ``gate-3`` is silent since 08:30. They send a reading a minute, 06:00 to 12:00.

Silver and the tables beside it are made by the pipeline's own batch writer, gold by its own engine.
"""

import json
from pathlib import Path

import pyarrow as pa
from gold_tables import HOUR, MINUTE, US

from spark_ingest.gold import Gold
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.source.rows import ARROW_SCHEMA

START = 1_794_981_600 * US
"""2026-11-18 06:00 UTC."""
END = START + 6 * HOUR


def story(folder: Path) -> Path:
    """Write the tables below `folder`/tables; return their folder."""
    _silver(folder, _readings())
    Gold(folder / "tables").update(END)
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
    sent = []
    for one in readings:
        payload = {"v": 1, "id": one["device_id"], "boot": one["boot"], "seq": one["seq"]}
        payload |= {"ts": one["at"] // 1000, "up": one["up"], "m": one["m"]}
        if one["seq"] == 0:
            cause = "watchdog" if one["boot"][0] == "5" else "power on"
            sent.append((f"{one['device_id']}/status", {"online": True, "boot": one["boot"], "cause": cause}, one))
        sent.append((f"{one['device_id']}/telemetry", payload, one))
    messages = []
    for place, (topic, payload, one) in enumerate(sent):
        messages.append(
            {
                "topic": f"fleet/{topic}",
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
