"""A fleet's messages with every kind of fault, written piece by piece, and gold's rows for comparison."""

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from spark_helpers import RECEIVED_MS

from spark_ingest.gold import STAGES, Gold
from spark_ingest.pipeline.change.rebuild import rebuild
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.source.rows import ARROW_SCHEMA

QUERY = "0b7e"
GOLD = ("devices", "windows", "texts", "boots", "gaps", "traffic", "alerts")
SECOND = 1000


class Killed(BaseException):
    """The process ends here."""


def telemetry(
    device: str, boot: str, seq: int, ts: int | None, up: int | None, door: str = "", **metrics: float
) -> tuple[str, bytes]:
    """Return a record. `door`: a text of it, if it has one."""
    content = {"v": 1, "id": device, "boot": boot, "seq": seq, "ts": ts, "up": up, "m": metrics}
    content |= {"door": door} if door else {}
    return f"fleet/{device}/telemetry", json.dumps(content).encode()


def table_of(messages: list[tuple[str, bytes, int]], start: int = 0) -> pa.Table:
    """Return messages (topic, payload, received ms) as a micro-batch."""
    rows = [
        {
            "topic": topic,
            "payload": payload,
            "received_ts": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=received),
            "qos": 1,
            "retain": False,
            "dup": False,
            "collector": "north",
            "spool": "00" * 16,
            "segment": 0,
            "position": start + i,
        }
        for i, (topic, payload, received) in enumerate(messages)
    ]
    return pa.Table.from_pylist(rows, schema=ARROW_SCHEMA).select(MESSAGE_COLUMNS)


def status(boot: str, at: int, *, device: str, **fields: object) -> tuple[str, bytes, int]:
    return f"fleet/{device}/status", json.dumps({"boot": boot, **fields}).encode(), RECEIVED_MS + at


# Device -> reason of its goodbyes, and whether each boot is woken once more after its goodbye, and crashes.
LEAVING = {"sleeps": ("sleeping", False), "stops": ("stopped", False), "crashes": ("sleeping", True)}


def leaving(device: str, boots: int, rng: random.Random) -> list[tuple[str, bytes, int]]:
    """Return the messages of a device of LEAVING, whose boots begin at most ten minutes after one another."""
    reason, woken = LEAVING[device]
    sent, at = [], rng.randrange(60 * SECOND)
    for boot in (f"{n}-x" for n in range(boots)):
        sent.append(status(boot, at, device=device, online=True, reason="boot", cause="wdt"))
        for seq in range(1 + woken):
            at += rng.choice([SECOND, 20 * SECOND])
            reading = telemetry(device, boot, seq, RECEIVED_MS + at, None, t=1.0)
            sent.append((*reading, RECEIVED_MS + at))
            if rng.random() < 0.2:
                sent.append((*reading, RECEIVED_MS + at + rng.randrange(3600 * SECOND)))
            if seq == 0:
                sent.append(status(boot, at + rng.randrange(2), device=device, online=False, reason=reason))
            at += rng.choice([SECOND, 60 * SECOND, 240 * SECOND])
    return sent


def fleet(
    seed: int, devices: int = 6, most_boots: int = 6, latest_h: int = 3, also: Iterable[str] = LEAVING
) -> list[pa.Table]:
    """Make micro-batches over some hours with every kind of fault.

    They contain late, shuffled, repeated, corrupt, clockless and conflicting messages, resets, silences, announced
    drops and gaps.

    :param also: names of further devices, of LEAVING.
    """
    rng = random.Random(seed)
    sent: list[tuple[str, bytes, int]] = []
    for d in range(devices):
        device, at = f"d{d}", RECEIVED_MS + rng.randrange(60 * SECOND)
        for b in range(rng.randint(1, most_boots)):
            boot, booted = f"{b}-{d:x}", at
            clock_from = rng.choice([0, 0, 3, 8, 10**9])
            status = {
                "online": True,
                "boot": boot,
                "fw": f"0.{b}",
                "reason": "boot",
                "cause": rng.choice(["power", "wdt"]),
            }
            sent.append((f"fleet/{device}/status", json.dumps(status).encode(), at))
            for seq in range(rng.randrange(1, 40)):
                at += rng.choice([SECOND, 20 * SECOND, 20 * SECOND, 1200 * SECOND])
                ts = at if seq >= clock_from else rng.choice([None, 0, 946684800000])
                up = None if rng.random() < 0.05 else at - booted
                latest = latest_h * 3600 * SECOND if rng.random() < 0.1 else SECOND
                received = at + rng.randrange(latest)
                values = {"mem_free": 100_000 * 0.9**seq, "t": rng.uniform(-5, 30), "rssi": -60.0 - rng.randrange(9)}
                if rng.random() > 0.06:
                    payload = telemetry(device, boot, seq, ts, up, f"open {seq}" if seq % 4 == 0 else "", **values)
                    sent.append((*payload, received))
                    if rng.random() < 0.1:
                        sent.append((*payload, received + rng.randrange(3600 * SECOND)))
                    if rng.random() < 0.02:
                        sent.append((*telemetry(device, boot, seq, ts, up, t=99.0), received + 5))
                elif rng.random() < 0.4:
                    log = {
                        "level": "warning",
                        "text": "dropped",
                        "boot": boot,
                        "dropped_seq": [[seq, seq + rng.randrange(2)]],
                    }
                    sent.append((f"fleet/{device}/log", json.dumps(log).encode(), received))
        sent.append((f"fleet/{device}/status", b'{"online":false,"reason":"connection lost"}', at + SECOND))
    sent += [("fleet/d0/telemetry", b"corrupt %d" % i, RECEIVED_MS + rng.randrange(10**7)) for i in range(5)]
    for device in also:
        sent += leaving(device, rng.randint(5, 12), rng)
    sent.sort(key=lambda message: message[2])
    batches, start = [], 0
    while start < len(sent):
        size = rng.choice([1, 5, 40, 150])
        batches.append(table_of(sent[start : start + size], start))
        start += size
    return batches


def written(folder: Path, batches: list[pa.Table], rng: random.Random, kill: bool = True) -> None:
    """Write the micro-batches with gold updates between them; some are replayed, and some updates killed or saved."""
    dying = {"stage": ""}

    def on_stage(stage: str) -> None:
        if stage == dying["stage"]:
            raise Killed(stage)

    writer = BatchWriter(folder, folder / "state", report=lambda _line: None)
    gold = Gold(folder, on_stage=on_stage)
    for batch_id, batch in enumerate(batches):
        writer.write(batch, batch_id, QUERY)
        if rng.random() < 0.3:
            writer = BatchWriter(folder, folder / "state", report=lambda _line: None)
            writer.write(batch, batch_id, QUERY)
        while rng.random() < 0.4:
            dying["stage"] = rng.choice([*STAGES, "", ""]) if kill else ""
            try:
                gold.update()
                if rng.random() < 0.3:
                    gold.save()
            except Killed:
                gold = Gold(folder, on_stage=on_stage)
    dying["stage"] = ""
    gold.update()


def rows_of(folder: Path) -> dict[str, list[tuple]]:
    """Return the rows of every gold table, in order.

    Numbers are rounded to nine digits, because the last bits of a sum depend on its order.
    """

    def plain(value: object) -> object:
        return float(f"{value:.9g}") if isinstance(value, float) else value

    tables = {}
    for name in GOLD:
        rows = DeltaTable(str(folder / "gold" / name)).to_pyarrow_table().to_pylist()
        tables[name] = sorted((tuple(map(plain, row.values())) for row in rows), key=repr)
    return tables


def assert_law(folder: Path, seed: int) -> dict[str, list[tuple]]:
    bit_by_bit = rows_of(folder)
    rebuild(folder)
    anew = rows_of(folder)
    for name in GOLD:
        if bit_by_bit[name] != anew[name]:
            extra = [row for row in bit_by_bit[name] if row not in anew[name]]
            lacking = [row for row in anew[name] if row not in bit_by_bit[name]]
            raise AssertionError(f"seed {seed}, {name}: gathered {extra[:3]}, anew {lacking[:3]}")
    return anew
