"""Writes gold/traffic: the newest minutes from the state, and earlier ones, for which something came late, anew."""

from deltalake import CommitProperties, Transaction, write_deltalake

from ..location import Location
from ..tables.changes import files_at, newest
from ..tables.delta import WRITER, Delta
from ..tables.schemas import SCHEMAS
from .database import COUNTED, Database, schema_of
from .windows import APPLICATION_ID, timestamp

MINUTE_US = 60_000_000
DAY_MINUTES = 1440
HOT_MINUTES = 60
"""Number of newest minutes whose traffic is in the state."""
_SOURCES = ("silver", "duplicates", "quarantine")


class Traffic:
    """The writer of gold/traffic below `tables`."""

    def __init__(self, tables: Location, table: Delta) -> None:
        self._root = tables
        self._table = table

    def write(self, db: Database) -> None:
        """Write the minutes that are in the state, and drop those that are over."""
        ((frozen, newest_us),) = db.rows("SELECT frozen, newest_us FROM facts")
        self._write(db, "minutes", "minute_delays", None if frozen < 0 else (frozen, None))
        bound = (newest_us or 0) // MINUTE_US - HOT_MINUTES
        if bound > frozen:
            db.connection.execute("UPDATE facts SET frozen = ?", [bound])
            for name in ("minutes", "minute_delays"):
                db.connection.execute(f"DELETE FROM {name} WHERE minute < ?", [bound])

    def write_late(self, db: Database) -> None:
        """Count the earlier minutes for which something came again, from the tables: day by day."""
        days = db.rows(
            f"SELECT minute // {DAY_MINUTES}, min(minute), max(minute) + 1 FROM late GROUP BY ALL ORDER BY ALL"
        )
        for day, first, end in days:
            self._view(db, day, first * MINUTE_US, end * MINUTE_US)
            db.run("rows.sql")
            db.connection.execute("CREATE OR REPLACE TEMP TABLE late_minutes AS FROM traffic_of_rows")
            db.connection.execute("CREATE OR REPLACE TEMP TABLE late_delays AS FROM delays_of_rows")
            self._write(db, "late_minutes", "late_delays", (first, end))
            db.connection.execute(f"DELETE FROM late WHERE minute // {DAY_MINUTES} = ?", [day])

    def _view(self, db: Database, day: int, begin_us: int, end_us: int) -> None:
        within = f"epoch_us(received_ts) >= {begin_us} AND epoch_us(received_ts) < {end_us}"
        partition = f"received_date={timestamp(begin_us)[1:11]}/"
        for name in COUNTED:
            path = self._root / name
            files = files_at(path, newest(path)) if name in _SOURCES else []
            if name == "silver":
                files = [file for file in files if file.startswith(partition)]
            db.view(name, path, files, COUNTED[name], SCHEMAS[name], within)

    def _write(self, db: Database, minutes: str, delays: str, span: tuple[int, int | None] | None) -> None:
        db.connection.execute("DELETE FROM minute_bins")
        db.connection.execute(f"INSERT INTO minute_bins SELECT minute, 'delay', bin, sum(n) FROM {delays} GROUP BY ALL")
        predicate = None
        if span is not None:
            predicate = f"minute >= {timestamp(span[0] * MINUTE_US)}"
            if span[1] is not None:
                predicate += f" AND minute < {timestamp(span[1] * MINUTE_US)}"
        write_deltalake(
            self._table.delta,
            db.reader(f"FROM traffic_table('{minutes}')", schema_of("traffic")),
            mode="overwrite",
            predicate=predicate,
            writer_properties=WRITER,
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION_ID, 1)]),
        )
