"""What the tables of a run say besides the count: the order of readings, and alerts; read by delta-rs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

from umqtt_kit.ground_truth import read_ground_truth
from umqtt_kit.prove.updates import BROKEN, UNSIGNED

# The default rule `reboot_loop`: so many boots within an hour.
_LOOP_BOOTS = 5


def out_of_order(tables: Path) -> Iterator[str]:
    """Yield the devices of which a reading first reached the collector after a later one of its boot."""
    from cbor2 import loads

    places = ("collector", "segment", "position")
    rows = _rows(tables / "bronze", "topic", "payload", *places)
    newest: dict[tuple[str, str], int] = {}
    known = set()
    for row in sorted(rows, key=lambda row: tuple(row[name] for name in places)):
        if not row["topic"].endswith("/telemetry"):
            continue
        payload = row["payload"]
        reading = json.loads(payload) if payload[:1] == b"{" else loads(payload)
        boot, seq = (reading["id"], reading["boot"]), reading["seq"]
        if (boot, seq) not in known and seq < newest.get(boot, -1):
            yield reading["id"]
        known.add((boot, seq))
        newest[boot] = max(seq, newest.get(boot, -1))


def wrong_alerts(tables: Path, ground_truth: Path, undated: Collection[str], incomplete: bool) -> list[str]:
    """Return the alerts that are missing, or should not be there, as "device: rule and why".

    undated: devices whose boots are not dated by a right clock; "*" stands for all. incomplete: whether readings are
    lost or could not be read, which are alerts of their own.
    """
    boots: defaultdict[str, set[str]] = defaultdict(set)
    heard: defaultdict[str, set[str]] = defaultdict(set)
    for reading in read_ground_truth(ground_truth):
        boots[reading.device_id].add(reading.boot)
    for table in ("silver", "status"):
        for row in _rows(tables / table, "device_id", "boot"):
            heard[row["device_id"]].add(row["boot"])
    alerts = _rows(tables / "gold" / "alerts", "device_id", "kind", "until", "text")
    looping = {row["device_id"] for row in alerts if row["kind"] == "reboot_loop"}
    wrong = [
        f"{row['device_id']}: {row['kind']} is open: {row['text']}"
        for row in alerts
        if row["until"] is None and row["kind"] != "reboot_loop" and not incomplete
    ]
    for device_id, begun in boots.items():
        # The first boot of all may have been before the first reading of it, so one more than the rule asks for.
        if len(begun) > _LOOP_BOOTS and device_id not in looping and not {device_id, "*"} & set(undated):
            wrong.append(f"{device_id}: no reboot_loop, with {len(begun)} boots")
    wrong += [
        f"{device_id}: reboot_loop, with {len(heard[device_id])} boots"
        for device_id in sorted(looping)
        if len(heard[device_id]) < _LOOP_BOOTS
    ]
    return wrong


def wrong_versions(tables: Path) -> list[str]:
    """Return the versions that boards ran and never should have, as "device: version"."""
    ran = {(row["device_id"], row["fw"]) for row in _rows(tables / "status", "device_id", "fw")}
    return sorted(f"{device_id}: {version}" for device_id, version in ran if version in (BROKEN, UNSIGNED))


def _rows(table: Path, *columns: str) -> list[dict]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return []
    return DeltaTable(table).to_pyarrow_table(columns=list(columns)).to_pylist()
