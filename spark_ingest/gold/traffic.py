"""Writes gold/traffic: the newest minutes from the state, and earlier ones, for which something came late, anew."""

from deltalake import CommitProperties, Transaction, write_deltalake

from ..location import Location
from ..tables.changes import files_at, newest
from ..tables.delta import WRITER, Delta
from .database import Database, schema_of
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
        """Write the minutes of the state from the first that the newest piece has, and drop those that are over."""
        ((frozen, newest_us, first),) = db.rows(
            "SELECT frozen, newest_us, (SELECT min(minute) FROM traffic_rows) FROM facts"
        )
        if frozen < 0 or first is not None:
            since = frozen if first is None else max(frozen, first)
            self._write(db, "minutes", "minute_bins", since, None, is_whole=frozen < 0)
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
            within = f"epoch_us(received_ts) >= {first * MINUTE_US} AND epoch_us(received_ts) < {end * MINUTE_US}"
            db.take(self._root, self._files(first * MINUTE_US), within)
            db.connection.execute("CREATE OR REPLACE TEMP TABLE late_minutes AS FROM traffic_of_rows")
            db.connection.execute(
                """CREATE OR REPLACE TEMP TABLE late_bins AS
                SELECT minute AS "key", 'delay' AS metric, bin, n FROM delays_of_rows"""
            )
            self._write(db, "late_minutes", "late_bins", first, end)
            db.connection.execute(f"DELETE FROM late WHERE minute // {DAY_MINUTES} = ?", [day])

    def _files(self, begin_us: int) -> dict[str, list[str]]:
        files = {name: files_at(self._root / name, newest(self._root / name)) for name in _SOURCES}
        partition = f"received_date={timestamp(begin_us)[1:11]}/"
        return {**files, "silver": [file for file in files["silver"] if file.startswith(partition)]}

    def _write(
        self, db: Database, minutes: str, bins: str, since: int, end: int | None, *, is_whole: bool = False
    ) -> None:
        predicate = f"minute >= {timestamp(since * MINUTE_US)}" if not is_whole else None
        if end is not None:
            predicate = f"{predicate} AND minute < {timestamp(end * MINUTE_US)}"
        write_deltalake(
            self._table.delta,
            db.reader(f"FROM traffic_table('{minutes}', '{bins}', {since})", schema_of("traffic")),
            mode="overwrite",
            predicate=predicate,
            writer_properties=WRITER,
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION_ID, 1)]),
        )
