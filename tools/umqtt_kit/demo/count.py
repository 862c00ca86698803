"""Compares the readings made with the rows stored, by identity: the ground truth with the silver table.

The table is read with delta-rs, as a user would, and not with the pipeline's own code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_kit.ground_truth import ReadingId, read_ground_truth

_NAMED = 20


@dataclass(frozen=True)
class Count:
    """The result of a count.

    made: readings made; stored: rows of silver; lost: readings without a row; duplicated: rows beyond the first of a
    reading; not_made: rows whose reading no device made; unnoted: rows whose reading may be the one after the last
    that its device noted, in a boot whose power was cut just then; quarantined: rows of quarantine.
    """

    made: int
    stored: int
    lost: int
    duplicated: int
    not_made: int
    unnoted: int
    quarantined: int
    # How many of the lost readings lie before, between and after the stored ones of their boot.
    where_lost: dict[str, int] = field(default_factory=dict)
    # How many each device lost.
    lost_of: dict[str, int] = field(default_factory=dict)
    # Up to 20 identities (device_id, boot, seq) of each kind, to find out why.
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every reading made is in the table exactly once, and nothing else."""
        return not (self.lost or self.duplicated or self.not_made or self.unnoted)


def count(ground_truth: Path, tables: Path) -> Count:
    """Count readings and rows by identity. Raises GroundTruthError; a table that does not exist has no rows."""
    made = Counter(read_ground_truth(ground_truth))
    stored = Counter(_identities(tables / "silver"))
    lost = made.keys() - stored.keys()
    # Two readings with one identity: the table keeps one of them, so the other is lost.
    repeated = [identity for identity, times in made.items() if times > 1]
    newest: defaultdict[tuple[str, str], int] = defaultdict(lambda: -1)
    for reading in made:
        newest[reading[:2]] = max(newest[reading[:2]], reading.seq)
    unnoted = {reading for reading in stored.keys() - made.keys() if reading.seq == newest[reading[:2]] + 1}
    not_made = stored.keys() - made.keys() - unnoted
    duplicated = [identity for identity, rows in stored.items() if rows > 1]
    return Count(
        made=made.total(),
        stored=stored.total(),
        lost=len(lost) + made.total() - len(made),
        duplicated=stored.total() - len(stored),
        not_made=len(not_made),
        unnoted=len(unnoted),
        quarantined=_rows(tables / "quarantine"),
        where_lost=_where(lost, stored),
        lost_of=dict(Counter(reading.device_id for reading in (*lost, *(made - Counter(set(made))).elements()))),
        examples={
            name: [f"{one.device_id} {one.boot} {one.seq}" for one in sorted(identities)[:_NAMED]]
            for name, identities in (
                ("lost", lost),
                ("made twice under one identity", repeated),
                ("duplicated", duplicated),
                ("not_made", not_made),
            )
            if identities
        },
    )


def _where(lost: Iterable[ReadingId], stored: Iterable[ReadingId]) -> dict[str, int]:
    kept: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for reading in stored:
        kept[reading[:2]].append(reading.seq)
    places: Counter[str] = Counter()
    for reading in lost:
        of_boot = kept.get(reading[:2])
        if not of_boot:
            places["of a whole boot"] += 1
        elif reading.seq < min(of_boot):
            places["at the beginning"] += 1
        else:
            places["at the end" if reading.seq > max(of_boot) else "in the middle"] += 1
    return dict(places)


def _identities(table: Path) -> list[ReadingId]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return []
    columns = DeltaTable(table).to_pyarrow_table(columns=["device_id", "boot", "seq"])
    return [ReadingId(*row) for row in zip(*(column.to_pylist() for column in columns.columns), strict=True)]


def _rows(table: Path) -> int:
    from deltalake import DeltaTable

    return DeltaTable(table).count() if DeltaTable.is_deltatable(str(table)) else 0
