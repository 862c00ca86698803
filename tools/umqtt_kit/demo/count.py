"""Compares the readings made with the rows stored, by identity: the witness files with the silver table.

The table is read with delta-rs, as a user would, and not with the pipeline's own code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_kit.witness import ReadingId, read_witnesses

_NAMED = 20


@dataclass(frozen=True)
class Count:
    """The result of a count.

    made: readings witnessed; stored: rows of silver; unwitnessed: rows whose reading no device made.
    """

    made: int
    stored: int
    lost: int
    duplicated: int
    unwitnessed: int
    quarantined: int
    # Some identities of each kind, to find out why.
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every reading made is in the table exactly once, and nothing else."""
        return not (self.lost or self.duplicated or self.unwitnessed)


def count(witness: Path, tables: Path) -> Count:
    """Count readings and rows by identity. Raises WitnessError; a table that does not exist has no rows."""
    made = Counter(read_witnesses(witness))
    stored = Counter(_identities(tables / "silver"))
    lost = made.keys() - stored.keys()
    # Two readings with one identity: the table keeps one of them, so the other is lost.
    repeated = [identity for identity, times in made.items() if times > 1]
    unwitnessed = stored.keys() - made.keys()
    duplicated = [identity for identity, rows in stored.items() if rows > 1]
    return Count(
        made=made.total(),
        stored=stored.total(),
        lost=len(lost) + made.total() - len(made),
        duplicated=stored.total() - len(stored),
        unwitnessed=len(unwitnessed),
        quarantined=_rows(tables / "quarantine"),
        examples={
            name: [f"{one.device_id} {one.boot} {one.seq}" for one in sorted(identities)[:_NAMED]]
            for name, identities in (
                ("lost", lost),
                ("made twice under one identity", repeated),
                ("duplicated", duplicated),
                ("unwitnessed", unwitnessed),
            )
            if identities
        },
    )


def _identities(table: Path) -> list[ReadingId]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return []
    columns = DeltaTable(table).to_pyarrow_table(columns=["device_id", "boot", "seq"])
    return [ReadingId(*row) for row in zip(*(column.to_pylist() for column in columns.columns), strict=True)]


def _rows(table: Path) -> int:
    from deltalake import DeltaTable

    return DeltaTable(table).count() if DeltaTable.is_deltatable(str(table)) else 0
