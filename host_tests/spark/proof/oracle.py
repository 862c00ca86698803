"""Compares what the publishers had acknowledged with the spool, and the spool with the tables.

It reads the spool with independent code: otherwise a mistake of the source would hide itself.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_ingest.gold import Gold
from spark_ingest.pipeline.change.rebuild import rebuild
from spark_ingest.tables.schemas import SCHEMAS

from .fleet import ELSEWHERE, Published
from .kinds import DENSE_METRICS

_BLOCK = struct.Struct("<4sIIIQ")
_POSITION = struct.Struct("<4s16sQQ")
_SHOWN = 3
_LONGEST_SHOWN = 200
_IDENTITY, _PLACE = ("device_id", "boot", "seq"), ("spool", "segment", "position")
GOLD = ("devices", "windows", "texts", "boots", "gaps", "traffic", "alerts")
# What does not depend on the clock of the collector.
_TIMELESS = {
    "devices": ("device_id", "boots", "readings", "duplicates", "missing", "quarantined"),
    "boots": ("device_id", "boot", "readings", "highest_seq"),
    "gaps": ("device_id", "boot", "first", "last", "missing"),
}


@dataclass
class Tally:
    """The counts of runs. `failures` describes the same in words; `other` counts laws broken in another way."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    quarantine_wrong: int = 0
    bronze_wrong: int = 0
    gold_wrong: int | None = None
    out_of_order: int = 0
    other: int = 0
    failures: list[str] = field(default_factory=list)

    COUNTS = (
        "lost", "duplicated", "wrong", "quarantine_wrong", "bronze_wrong", "gold_wrong", "out_of_order", "other",
    )  # fmt: skip

    @property
    def broken(self) -> int:
        """Return how often a law was broken, in all."""
        return sum(getattr(self, name) or 0 for name in self.COUNTS)

    def add(self, found: Tally) -> None:
        """Add what was found in one folder."""
        self.messages += found.messages
        for name in self.COUNTS:
            mine, more = getattr(self, name), getattr(found, name)
            setattr(self, name, mine if more is None else (mine or 0) + more)
        self.failures += found.failures


class _Row(NamedTuple):
    """A row of silver. number: its metric ``n``; payload: its message's, if that has no identity of its own."""

    identity: tuple[str, str, int]
    place: tuple[str, int, int]
    number: float | None
    metrics: int
    payload: bytes | None


class Stored(NamedTuple):
    """A PUBLISH in the spool, and its position there."""

    place: tuple[str, int, int]
    topic: bytes
    payload: bytes


def read_spool(folder: Path) -> Iterator[Stored]:
    """Yield everything below the durable position of one spool, in the order of receipt."""
    _, newest, last, end = _POSITION.unpack_from((folder / "pos").read_bytes())
    # The first line is its checksum.
    spool = json.loads((folder / "spool.json").read_bytes().partition(b"\n")[2])["spool"]
    # Each later start of the collector has its own UUID, from its first segment on: SEGMENT.UUID.run.
    begins = {int(path.name[:10]): path.name[11:43] for path in folder.glob("*.run")}
    for path in sorted(folder.glob("*.seg")):
        segment, data, at = int(path.stem), path.read_bytes(), 0
        spool = begins.get(segment, spool)
        assert segment != last or spool == newest.hex(), f"{folder}: pos is of {newest.hex()}"
        stop = end if segment == last else len(data)
        while at < stop and segment <= last:
            magic, length, count, _, _ = _BLOCK.unpack_from(data, at)
            assert magic == b"MQB1", f"{path} at {at}"
            at += _BLOCK.size
            found = list(_packets(data, at, at + length))
            assert len(found) == count, f"{path} at {at}: {len(found)} messages instead of {count}"
            yield from (Stored((spool, segment, place), topic, payload) for place, topic, payload in found)
            at += length


def _packets(data: bytes, at: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    while at < end:
        length = shift = 0
        after = at + 1
        while True:
            length |= (data[after] & 127) << shift
            shift, after = shift + 7, after + 1
            if data[after - 1] < 128:
                break
        topic = after + 2 + int.from_bytes(data[after : after + 2])
        payload = topic + (2 if data[at] & 6 else 0)
        yield at, data[after + 2 : topic], data[payload : after + length]
        at = after + length


class Oracle:
    """Counts for one folder.

    published: what every publisher sent.
    config: the pipeline's `ingest.toml`, or None.
    is_clock_right: whether the collector's clock was right all the time.
    """

    def __init__(
        self,
        spool: Path,
        tables: Path,
        published: list[Published],
        tally: Tally,
        config: Path | None = None,
        *,
        is_clock_right: bool = True,
    ) -> None:
        self._spool = spool
        self._tables = tables
        self._published = published
        self._tally = tally
        self._config = config
        self._is_clock_right = is_clock_right
        self._rows: list[_Row] | None = None
        self.stored = list(read_spool(spool / "north"))

    def count(self) -> None:
        """Count everything that can be checked in the tables."""
        self.count_spool()
        self.count_silver()
        for name in ELSEWHERE:
            self.count_elsewhere(name)
        self.count_bronze()
        self.count_offline()
        self.count_gold()

    def count_spool(self) -> None:
        """Check that everything acknowledged is in the spool, in each publisher's order."""
        tally = self._tally
        tally.messages += len(self.stored)
        first: dict[bytes, int] = {}
        for number, stored in enumerate(self.stored):
            first.setdefault(stored.payload, number)
        for published in self._published:
            missing = [payload for payload in published.order if payload not in first]
            if missing:
                tally.lost += len(missing)
                tally.failures.append(f"spool: lost {len(missing)}, {_some(missing)}")
            arrived = [first[payload] for payload in published.order if payload in first]
            swapped = sum(1 for before, after in pairwise(arrived) if before > after)
            if swapped:
                tally.out_of_order += swapped
                tally.failures.append(f"spool: {swapped} messages before one that was published earlier")

    def count_silver(self) -> None:
        """Check that each reading is there once, with the numbers that it was published with."""
        self.count_kinds()
        wanted = {identity: number for one in self._published for identity, number in one.readings.items()}
        rows = [row for row in self._silver() if row.payload is None]
        found = Counter(row.identity for row in rows)
        self._failed("lost", "silver: lost", [identity for identity in wanted if identity not in found])
        self._failed("duplicated", "silver: twice", [identity for identity, count in found.items() if count > 1])
        self._failed("wrong", "silver: never published", [identity for identity in found if identity not in wanted])
        dense = {identity for one in self._published for identity in one.dense}
        other = [
            row.identity
            for row in rows
            if row.number != wanted.get(row.identity, row.number)
            or (row.identity in dense and row.metrics != DENSE_METRICS)
        ]
        self._failed("wrong", "silver: another value", other)

    def count_kinds(self) -> None:
        """Check the readings without an identity of their own: each is there for each PUBLISH of it, or at all."""
        placed = {payload: of for one in self._published for payload, of in one.placed.items()}
        repeatable = {payload: of for one in self._published for payload, of in one.repeatable.items()}
        rows = [row for row in self._silver() if row.payload is not None]
        found = Counter(row.place for row in rows)
        wanted = [stored.place for stored in self.stored if stored.payload in placed]
        self._failed("lost", "silver: no row for the place", [place for place in wanted if place not in found])
        seen = {row.payload for row in rows}
        self._failed("lost", "silver: no row of a node", [one for one in repeatable if one not in seen])
        self._failed("duplicated", "silver: place twice", [place for place, count in found.items() if count > 1])
        identities = Counter(row.identity for row in rows)
        self._failed("duplicated", "silver: twice", [one for one, count in identities.items() if count > 1])
        published = placed | repeatable
        other = [row for row in rows if row.payload and published[row.payload] != (row.identity[0], row.number)]
        self._failed("wrong", "silver: another value", other)

    def _silver(self) -> list[_Row]:
        """Return the rows of silver, once read."""
        if self._rows is None:
            payloads = {payload for one in self._published for payload in (*one.placed, *one.repeatable)}
            places = {stored.place: stored.payload for stored in self.stored if stored.payload in payloads}
            table = self._read("silver", [*_IDENTITY, *_PLACE, "metrics"])
            metrics = table["metrics"].combine_chunks()
            columns = (
                *(zip(*(table[name].to_pylist() for name in names), strict=True) for names in (_IDENTITY, _PLACE)),
                pc.call_function("map_lookup", [metrics], pc.MapLookupOptions(pa.scalar("n"), "first")).to_pylist(),
                np.diff(metrics.offsets.to_numpy()).tolist(),
            )
            self._rows = [_Row(*row, places.get(row[1])) for row in zip(*columns, strict=True)]
        return self._rows

    def count_elsewhere(self, name: str) -> None:
        """Check quarantine, status or logs: each PUBLISH of the spool that belongs there once, and nothing else."""
        payloads = {payload for one in self._published for payload in one.elsewhere[name]}
        wanted = {stored.place: stored.payload for stored in self.stored if stored.payload in payloads}
        self._same_places("quarantine_wrong" if name == "quarantine" else "other", name, wanted)

    def count_bronze(self) -> None:
        """Check that each PUBLISH of the spool is there once."""
        self._same_places("bronze_wrong", "bronze", {stored.place: stored.payload for stored in self.stored})

    def count_offline(self) -> None:
        """Check that no device is offline: every one has sent something a moment ago, and was so counted."""
        self._tally.gold_wrong = 0
        path = self._tables / "gold" / "devices"
        rows = DeltaTable(str(path)).to_pyarrow_table(columns=["device_id", "health", "last_seen"]).to_pylist()
        now = datetime.now(UTC)
        self._failed("gold_wrong", "gold/devices: offline", [row for row in rows if row["health"] == "offline"])
        self._failed("gold_wrong", "gold/devices: seen in future", [row for row in rows if row["last_seen"] > now])

    def count_gold(self) -> None:
        """Check that gold, kept up to date over every kill, equals one pass over bronze. No pipeline may run."""
        # Update once more, as of the newest reading and not as of now, as a rebuild does.
        Gold(self._tables).update()
        copy = self._tables.with_name("rebuilt")
        shutil.copytree(self._tables, copy)
        rebuild(copy, config=self._config)
        # A time ahead of now counts as the time of counting, and a rebuild counts later.
        compared = dict.fromkeys(GOLD) if self._is_clock_right else _TIMELESS
        for name, columns in compared.items():
            kept, anew = (_gold_rows(tables / "gold" / name, columns) for tables in (self._tables, copy))
            self._failed("gold_wrong", f"gold/{name}: not in one pass over bronze:", list((kept - anew).elements()))
            self._failed("gold_wrong", f"gold/{name}: in one pass over bronze only:", list((anew - kept).elements()))
        shutil.rmtree(copy)

    def _same_places(self, count: str, name: str, wanted: dict[tuple[str, int, int], bytes]) -> None:
        with_payload = name in ("bronze", "quarantine")
        table = self._read(name, [*_PLACE, *(["payload"] if with_payload else [])])
        places = list(zip(*(table[column].to_pylist() for column in _PLACE), strict=True))
        found = Counter(places)
        self._failed(count, f"{name}: lost", [place for place in wanted if place not in found])
        self._failed(count, f"{name}: twice", [place for place, times in found.items() if times > 1])
        self._failed(count, f"{name}: not wanted", [place for place in found if place not in wanted])
        if with_payload:
            payloads = zip(places, table["payload"].to_pylist(), strict=True)
            self._failed(count, f"{name}: another payload", [at for at, is_ in payloads if wanted.get(at, is_) != is_])

    def _read(self, name: str, columns: list[str]) -> pa.Table:
        path = str(self._tables / name)
        if not DeltaTable.is_deltatable(path):
            return pa.schema([SCHEMAS[name].field(column) for column in columns]).empty_table()
        return DeltaTable(path).to_pyarrow_table(columns=columns)

    def _failed(self, count: str, what: str, cases: list) -> None:
        if cases:
            setattr(self._tally, count, getattr(self._tally, count) + len(cases))
            self._tally.failures.append(f"{what} {len(cases)}, {_some(cases)}")


def _gold_rows(path: Path, columns: Sequence[str] | None) -> Counter[str]:
    """Return the rows of a gold table; numbers to nine digits, since the last bits of a sum depend on its order."""
    if not DeltaTable.is_deltatable(str(path)):
        return Counter()
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=columns and list(columns)).to_pylist()
    plain = (
        {name: float(f"{value:.9g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    )
    return Counter(repr(row) for row in plain)


def _some(cases: list) -> str:
    return ", ".join(repr(case)[:_LONGEST_SHOWN] for case in cases[:_SHOWN]) + (" …" if len(cases) > _SHOWN else "")


def durable_position(spool: Path) -> tuple[int, int]:
    """Return the segment and the position below which the spool is durable."""
    return _POSITION.unpack_from((spool / "north" / "pos").read_bytes())[2:]


def is_read(spool: Path, checkpoint: Path) -> bool:
    """Return whether the checkpoint has committed everything durable in the spool, according to Spark's own files."""
    commits = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdecimal()]
    if not commits:
        return False
    offsets = (checkpoint / "offsets" / str(max(commits))).read_text().splitlines()
    place = json.loads(offsets[-1]).get("north")
    return place is not None and (place["segment"], place["position"]) == durable_position(spool)
