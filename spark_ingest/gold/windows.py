"""Merges windows into gold/windows: only what is touched is read and written, in commits of bounded size.

Windows that have a row already are replaced with the sum of both; all others are appended, so a device that returns
after days rewrites nothing. A piece may take several commits. The last one says that the piece is complete; each of the
others says how many of its groups are committed, so that the next process goes on from there.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from urllib.parse import unquote

from deltalake import ColumnProperties, CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from ..tables.changes import NOWHERE
from ..tables.delta import Delta
from .database import COUNTED, Database, schema_of

APPLICATION_ID = "umqtt/gold"
WINDOW_US = 300_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
_EPOCH = date(1970, 1, 1)
_COMPLETE = -1
# A group is what one commit writes: at most so many spans of time, for so many late devices.
_MOST_SPANS, _FEW_DEVICES = 48, 200
# The writer holds the rows of a commit, encoded, until each of its files is complete: about 200 bytes a row.
_MOST_ROWS = 400_000
# Rows are sorted by device, so a reader of one device skips most row groups.
_WRITER = WriterProperties(
    compression="ZSTD",
    compression_level=1,
    max_row_group_size=1 << 17,
    column_properties={"last_place": ColumnProperties(dictionary_enabled=False)},
)
_COLUMNS = ["device_id", "window_start", "metric", "n", "min", "max", "sum", "last", "last_ts", "last_place"]


class Counted(NamedTuple):
    """What the newest commit of gold/windows says.

    :ivar serial: rises with each commit.
    :ivar before: the position of each table before the last piece.
    :ivar after: the position after it; for a table that is made from its beginning, up to where windows are complete.
    :ivar groups: how many groups of the last piece are committed; _COMPLETE: all.
    :ivar is_whole: False while the table is made from its beginning, up to `before`.
    """

    serial: int
    before: Mapping[str, int]
    after: Mapping[str, int]
    groups: int = _COMPLETE
    is_whole: bool = True

    @classmethod
    def of(cls, delta: DeltaTable) -> "Counted | None":
        """Return what the newest commit says; None if there is none."""

        def number(name: str) -> int | None:
            return delta.transaction_version(f"{APPLICATION_ID}{name}")

        serial, groups, is_whole = number(""), number("/groups"), number("/whole")
        before, after = ({name: number(f"/{which}/{name}") for name in COUNTED} for which in ("before", "after"))
        if serial is None or groups is None or None in (*before.values(), *after.values()):
            return None
        return cls(serial, _numbers(before), _numbers(after), groups, is_whole == 1)

    def properties(self) -> CommitProperties:
        """Return the properties of a commit that says this."""
        numbers = {"": self.serial, "/groups": self.groups, "/whole": int(self.is_whole)}
        numbers |= {f"/before/{name}": at for name, at in self.before.items()}
        numbers |= {f"/after/{name}": at for name, at in self.after.items()}
        return CommitProperties(app_transactions=[Transaction(APPLICATION_ID + name, n) for name, n in numbers.items()])


class _Group(NamedTuple):
    """Windows for one commit: spans of time (begin, end) in microseconds, and devices; no devices: all."""

    spans: list[tuple[int, int]]
    devices: list[str]

    def where(self, start: str, literal: Callable[[int], str]) -> str:
        """Return a condition on the windows, with times written by `literal`."""
        spans = (f"({start} >= {literal(begin)} AND {start} < {literal(end)})" for begin, end in self.spans)
        names = ", ".join("'" + name.replace("'", "''") + "'" for name in self.devices)
        return f"({' OR '.join(spans)})" + (f" AND device_id IN ({names})" if names else "")


def merge(db: Database, table: Delta, counted: Counted, done: int, unfinished: Counted | None = None) -> Counted:
    """Merge the windows of a piece into the table: tables fresh_windows and, if any, replaced.

    :param counted: what the last commit of the piece says; serial: what the table says now.
    :param done: how many groups of the piece are committed already.
    :param unfinished: what the other commits say, besides their number of groups; None: as the last one.
    :returns: what the table says in the end.
    :raises TablesTaken: the table has another serial.
    """
    groups = list(_groups(db))
    serial, said = counted.serial, counted
    for number, group in enumerate(groups[done:], done + 1):
        said = counted._replace(serial=serial + 1)
        if number < len(groups):
            said = (unfinished or counted)._replace(serial=serial + 1, groups=number)
        _write(db, table, group, serial, said)
        serial += 1
    return said if groups[done:] else mark(table, counted)


def mark(table: Delta, counted: Counted) -> Counted:
    """Commit what is said of the table, without any window; return it with the table's new serial."""
    said = counted._replace(serial=counted.serial + 1)
    delta = table.upon(APPLICATION_ID, counted.serial)
    partitions = delta.metadata().partition_columns
    delta.create_write_transaction([], "append", delta.schema(), partitions, commit_properties=said.properties())
    return said


def begin(table: Delta, said: Counted, was: int) -> None:
    """Remove all windows, to make the table from its beginning."""
    empty = schema_of("windows").empty_table()
    write_deltalake(table.upon(APPLICATION_ID, was), empty, mode="overwrite", commit_properties=said.properties())


def _numbers(numbers: Mapping[str, int | None]) -> dict[str, int]:
    return {name: NOWHERE if number is None else number for name, number in numbers.items()}


def _groups(db: Database) -> Iterator[_Group]:
    """Yield the groups of a piece, in an order that depends on its rows only."""
    db.connection.execute(
        """CREATE OR REPLACE TEMP TABLE touched_windows AS
        SELECT device_id, window_us, count(*) AS n FROM fresh_windows GROUP BY ALL
        UNION SELECT device_id, window_us, 0 FROM replaced"""
    )
    # Windows of the last hour, and of many devices, are of all devices.
    db.connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE wide AS
        SELECT window_us, sum(n) AS n FROM touched_windows GROUP BY window_us
        HAVING count(DISTINCT device_id) > {_FEW_DEVICES}
            OR window_us >= (SELECT max(window_us) FROM touched_windows) - {HOUR_US}"""
    )
    yield from _chunks(db.rows("FROM wide ORDER BY window_us"), [], 0)
    late = "FROM touched_windows ANTI JOIN wide USING (window_us)"
    devices = [row[0] for row in db.rows(f"SELECT DISTINCT device_id {late} ORDER BY ALL")]
    for start in range(0, len(devices), _FEW_DEVICES):
        some = devices[start : start + _FEW_DEVICES]
        of_some = f"{late} WHERE device_id BETWEEN ? AND ?"
        rows = db.rows(f"SELECT window_us, sum(n) {of_some} GROUP BY ALL ORDER BY ALL", some[0], some[-1])
        # For few devices it costs little to read the windows between as well.
        yield from _chunks(rows, some, DAY_US if len(some) <= 20 else 0)


def _chunks(starts: list[tuple[int, int]], devices: list[str], between_us: int) -> Iterator[_Group]:
    spans: list[tuple[int, int]] = []
    rows = 0
    for begin, n in starts:
        if spans and begin - spans[-1][1] <= between_us and rows < _MOST_ROWS:
            spans[-1] = spans[-1][0], begin + WINDOW_US
        else:
            if len(spans) >= _MOST_SPANS or rows >= _MOST_ROWS:
                yield _Group(spans, devices)
                spans, rows = [], 0
            spans.append((begin, begin + WINDOW_US))
        rows += n
    if spans:
        yield _Group(spans, devices)


def _write(db: Database, table: Delta, group: _Group, was: int, said: Counted) -> None:
    where = group.where("window_us", str)
    # A span of a few devices may cover windows that belong to another group.
    mine = "ANTI JOIN wide USING (window_us)" if group.devices else ""
    view(db, table, "written", group.spans)
    db.connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE held AS
        SELECT device_id, epoch_us(window_start) AS window_us, metric, n, "min" AS low, "max" AS high, "sum" AS total,
               {{'us': epoch_us(last_ts), 'place': last_place, 'value': "last"}} AS newest
        FROM written WHERE {group.where("epoch_us(window_start)", str)}"""
    )
    held = db.rows("SELECT count(*) FROM held SEMI JOIN touched_windows USING (device_id, window_us)")[0][0]
    if not held:
        db.connection.execute("DELETE FROM held")
    db.connection.execute(
        f"""CREATE OR REPLACE TEMP VIEW of_group AS
        SELECT * FROM fresh_windows {mine} WHERE {where}
        UNION ALL BY NAME FROM held ANTI JOIN (FROM replaced {mine}) USING (device_id, window_us)"""
    )
    # The values are finite, but their sum may be beyond the doubles: then the nearest double stands for it.
    rows = db.reader(
        """SELECT device_id, window_us AS window_start, metric, n, low AS "min", high AS "max",
               least(greatest(total / n, low), high) AS mean, total AS "sum", newest."value" AS "last",
               newest.us AS last_ts, newest.place AS last_place, window_us // 86400000000 AS window_date,
               window_us // 3600000000 % 24 AS window_hour
        FROM (SELECT * REPLACE (CASE WHEN isnan(total) THEN 0 ELSE least(greatest(total, -1.7976931348623157e308),
                                1.7976931348623157e308) END AS total) FROM merged('of_group'))
        ORDER BY window_us // 3600000000, device_id, window_us""",
        schema_of("windows"),
    )
    delta = table.upon(APPLICATION_ID, was)
    properties = said.properties()
    if held:
        where = group.where("window_start", timestamp)
        write_deltalake(
            delta, rows, mode="overwrite", predicate=where, writer_properties=_WRITER, commit_properties=properties
        )
    else:
        write_deltalake(delta, rows, mode="append", writer_properties=_WRITER, commit_properties=properties)


def view(db: Database, table: Delta, name: str, spans: list[tuple[int, int]]) -> None:
    """Make a view of the files of the table that may have windows in these spans of time."""
    delta = table.delta
    hours = {hour for begin, end in spans for hour in range(begin // HOUR_US, (end - 1) // HOUR_US + 1)}
    actions = delta.get_add_actions(flatten=True)
    columns = ("path", "partition.window_date", "partition.window_hour")
    files = [
        path
        for path, day, hour in zip(*(actions.column(one).to_pylist() for one in columns), strict=True)
        if (day - _EPOCH).days * 24 + hour in hours
    ]
    db.view(name, table.path, [unquote(file) for file in files], _COLUMNS, schema_of("windows"))


def timestamp(us: int) -> str:
    """Return a time as a literal in a predicate of Delta."""
    return f"'{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us):%Y-%m-%dT%H:%M:%SZ}'"
