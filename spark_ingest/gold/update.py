"""An update of gold: count what was appended, merge its windows, find alerts, and write the tables."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from deltalake import CommitProperties, Transaction, write_deltalake

from umqtt_cli.escape import remark

from ..alerts.journal import Journal, Opened
from ..alerts.rules import DEFAULT_RULES, RuleSet, rules_from_text
from ..durable import read_checked, replace_checked
from ..errors import FileDamaged
from ..location import Location, may_pass, remove_tree
from ..tables.changes import NOWHERE, LogGone, files_at, newest, steps
from ..tables.delta import WRITER, Delta
from ..tables.schemas import PARTITIONED_BY, SCHEMAS
from . import windows
from .alerts import Alerts
from .database import COUNTED, Database, partitions, schema_of
from .traffic import Traffic
from .windows import APPLICATION_ID, DAY_US, HOUR_US, Counted

STAGES = ("gold folded", "gold windows committed", "gold state saved", "alerts noted", "gold tables written")
"""The stages of an update for which `on_stage` is called, in order."""
MOST_RANGES = 10_000
"""The largest number of ranges of seq that are stored separately for a device, for each of two kinds.

The kinds are announced ranges and ranges that could not be read. If a device has more ranges of a kind, those of each
boot are stored as one, from their first seq to their last.
"""
MOST_TEXTS = 500
"""The largest number of metrics of a device in gold/texts: those with the newest texts."""
KEPT_US = 30 * DAY_US
"""How long an ended alert stays in gold/alerts, in microseconds; data that only older alerts need is dropped."""
_GOLD = ("devices", "windows", "texts", "boots", "gaps", "traffic", "alerts")
# A piece ends with the file that reaches one of these. Its readings take about 100 bytes a row of the engine's memory.
_PIECE_ROWS, _PIECE_BYTES = 400_000, 32 << 20
_AHEAD_US = 300_000_000
_VACUUM_EVERY = 200
# After a kill, at most this much is counted again, on files that no vacuum removed yet.
_SAVE_EVERY_ROWS = 1_000_000
_SAVE_EVERY_S = 600.0


class Stopped(Exception):
    """The update was ended by :meth:`Gold.stop`."""


class Piece(NamedTuple):
    """Files of the tables below gold that are counted at once.

    :ivar files: relative to the table, by table.
    :ivar after: the position of each table after them.
    :ivar rows: number of rows.
    """

    files: dict[str, list[str]]
    after: dict[str, int]
    rows: int


class Gold:
    """The gold tables below `tables`/gold; only one process at a time may write them.

    :param rules: the rules of alerts.
    :param recipients: see :meth:`Journal.take`.
    :param on_stage: called with a name of STAGES when that stage is done; for tests that stop the process there.
    :param report: called with one line for a person.
    :ivar devices: number of devices in the newest update.
    :ivar open_alerts: number of open alerts in the newest update, by rule.
    :ivar last_duration_s: duration of the newest update.
    :raises UsageError: the tables cannot be written.
    """

    def __init__(
        self,
        tables: Location,
        *,
        rules: RuleSet = DEFAULT_RULES,
        recipients: Callable[[Opened], tuple[str, ...]] = lambda _alert: (),
        on_stage: Callable[[str], None] = lambda _stage: None,
        report: Callable[[str], None] = remark,
    ) -> None:
        self.root = tables
        self.last_duration_s = 0.0
        self.devices = 0
        self.open_alerts: dict[str, int] = {}
        self._on_stage = on_stage
        self._report = report
        self._rules = rules
        then_by = {"windows": "window_hour"}
        self._tables = {
            name: Delta(
                tables / "gold" / name, SCHEMAS[f"gold/{name}"], PARTITIONED_BY.get(f"gold/{name}"), then_by.get(name)
            )
            for name in _GOLD
        }
        self._folder = tables / "gold" / ".state"
        self._folder.mkdir(exist_ok=True)
        self.journal = Journal(tables, report=report)
        self._alerts = Alerts(self._tables["windows"], self.journal, rules, recipients)
        self._traffic = Traffic(tables, self._tables["traffic"])
        self._db: Database | None = None
        self._counted = Counted(0, {}, {})
        self._is_stopped = self._knows_written = False
        self._forgot_hour = -1
        self._written = False
        self._unsaved_rows = 0
        self._saved_at = time.monotonic()
        self._digests: dict[str, object] = {}

    def update(self, now_us: int | None = None, *, note_alerts: bool = True) -> bool:
        """Count what has been committed since the last update; return whether there was anything.

        :param now_us: Unix microseconds against which silence is measured; default: the newest received time.
        :param note_alerts: note in the journal which alerts begin and end. False while much of a spool is still to be
            read: until then, devices of another spool seem to be silent.
        """
        began = time.monotonic()
        try:
            try:
                changed = self._update(now_us, note_alerts)
            except LogGone:
                # The log no longer tells which rows are new: count everything again.
                self._forget()
                changed = self._update(now_us, note_alerts)
        except BaseException:
            # What the engine holds may be ahead of the tables: the next update loads what was saved.
            self.close()
            raise
        self.last_duration_s = time.monotonic() - began
        return changed

    def save(self) -> None:
        """Save the state, so that the next process need not count anything again."""
        if self._db is not None and self._unsaved_rows:
            self._save(self._db)

    def stop(self) -> None:
        """End an update that goes on in another thread, as soon as its engine can; that update raises an exception."""
        self._is_stopped = True
        if (db := self._db) is not None:
            db.connection.interrupt()

    def close(self) -> None:
        """Give the memory and the files of the engine back; the next update starts from the saved state."""
        db, self._db, self._written = self._db, None, False
        if db is not None:
            db.close()

    def vacuum(self) -> None:
        """Remove the files of gold that no version of the last hour uses; each update leaves some behind."""
        for table in self._tables.values():
            table.delta.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)

    def _update(self, now_us: int | None, note_alerts: bool) -> bool:
        db, changed = self._opened()
        for piece in _pieces(self.root, self._counted.after, {name: newest(self.root / name) for name in COUNTED}):
            changed |= any(piece.files.values())
            self._take(db, Counted(self._counted.serial, self._counted.after, piece.after), piece)
        if changed or not self._written or now_us is not None:
            self._write(db, now_us, note_alerts)
        return changed

    def _opened(self) -> tuple[Database, bool]:
        """Return the state at the position of the windows, and whether anything was added to these for that."""
        if self._db is not None:
            return self._db, False
        self._knows_written = False
        db = self._db = Database(self._folder if isinstance(self._folder, Path) else None)
        db.set(most_ranges=MOST_RANGES, most_texts=MOST_TEXTS, kept_us=KEPT_US)
        self._alerts.fill(db)
        delta = self._tables["windows"].delta
        counted = Counted.of(delta)
        at = self._loaded(db)
        if counted is None:
            # Made from the beginning; also if somebody has removed the table.
            serial = delta.transaction_version(APPLICATION_ID) or 0
            whole = {name: newest(self.root / name) for name in COUNTED}
            counted = Counted(serial + 1, whole, dict.fromkeys(COUNTED, NOWHERE), is_whole=False)
            windows.begin(self._tables["windows"], counted, serial)
        is_complete = counted.is_whole and counted.groups < 0
        wanted = counted.after if is_complete else counted.before
        if any(at[name] > wanted[name] for name in COUNTED):
            # The state of other windows.
            at = self._empty(db)
        self._counted = counted
        changed = False
        for piece in _pieces(self.root, at, wanted):
            # What complete windows have is not new, though the saved state may lack it.
            changed |= not is_complete and any(piece.files.values())
            self._count(db, piece)
            self._traffic.write(db)
            self._save_if_due(db)
        if not counted.is_whole:
            self._make_windows(db, counted)
        elif counted.groups >= 0:
            (piece,) = _pieces(self.root, counted.before, counted.after, at_once=True)
            self._take(db, counted, piece, counted.groups)
            changed = True
        return db, changed

    def _loaded(self, db: Database) -> dict[str, int]:
        """Load the saved state; return its positions."""
        try:
            if db.load(self._folder / "state"):
                ((silence_us,),) = db.rows("SELECT silence_us FROM facts")
                if silence_us <= self._rules.offline_us:
                    return dict(db.rows("FROM progress"))
        except FileDamaged as error:
            self._report(f"{error}: gold is counted anew")
        return self._empty(db)

    def _empty(self, db: Database) -> dict[str, int]:
        for name in db.state:
            db.connection.execute(f"DELETE FROM {name}")
        db.connection.execute("INSERT INTO facts VALUES (NULL, ?, ?)", [-(1 << 40), self._rules.offline_us])
        at = dict.fromkeys(COUNTED, NOWHERE)
        _note_progress(db, at)
        # Gaps without a day that an earlier state has written are written again.
        db.connection.execute("INSERT INTO pending VALUES ('gaps', NULL)")
        self._digests.clear()
        return at

    def _forget(self) -> None:
        self.close()
        remove_tree(self._folder)
        self._folder.mkdir(exist_ok=True)
        table = self._tables["windows"]
        serial = table.delta.transaction_version(APPLICATION_ID) or 0
        whole = {name: newest(self.root / name) for name in COUNTED}
        windows.begin(table, Counted(serial + 1, whole, dict.fromkeys(COUNTED, NOWHERE), is_whole=False), serial)

    def _count(self, db: Database, piece: Piece) -> None:
        """Add a piece to the state."""
        if self._is_stopped:
            raise Stopped("gold is not up to date: it was stopped")
        db.set(now_us=_now_us())
        db.use_threads(piece.rows)
        db.take(self.root, piece.files)
        db.run("count.sql")
        db.run("steps.sql")
        _note_progress(db, piece.after)
        self._unsaved_rows += piece.rows

    def _take(self, db: Database, counted: Counted, piece: Piece, done: int = 0) -> None:
        """Add a piece to the state and to the windows."""
        self._count(db, piece)
        self._on_stage("gold folded")
        _count_windows(db)
        if db.rows("SELECT count(*) FROM moved")[0][0]:
            self._move(db, piece.after["silver"])
        self._counted = windows.merge(db, self._tables["windows"], counted, done)
        self._on_stage("gold windows committed")
        self._written = False
        self._traffic.write(db)
        self._save_if_due(db)

    def _move(self, db: Database, silver: int) -> None:
        """Count the windows again that a changed anchor moves readings out of or into."""
        ((since_us,),) = db.rows("SELECT min(first_us) FROM boots SEMI JOIN moved USING (device_id, boot)")
        for script in ("moved.sql", "replaced.sql"):
            self._view_silver(db, silver, since_us)
            db.run(script)
            ((since_us,),) = db.rows("SELECT min(window_us) FROM replaced")
            # No reading was taken later than it was received, plus _AHEAD_US.
            since_us = None if since_us is None else since_us - _AHEAD_US

    def _view_silver(self, db: Database, at: int, since_us: int | None) -> None:
        day = "" if since_us is None else f"{datetime.fromtimestamp(since_us / 1e6, UTC):%Y-%m-%d}"
        files = [name for name in files_at(self.root / "silver", at) if name >= f"received_date={day}"]
        db.view("all_silver", self.root / "silver", files, COUNTED["silver"], SCHEMAS["silver"])

    def _make_windows(self, db: Database, counted: Counted) -> None:
        """Make all windows, once everything has been counted up to `before`. So no anchor changes meanwhile."""
        silver = {"silver": counted.before["silver"]}
        db.connection.execute(
            """DELETE FROM anchors;
            INSERT INTO anchors SELECT device_id, boot, anchor.us FROM boots
            WHERE anchor IS NOT NULL AND readings > ok"""
        )
        for piece in _pieces(self.root, {"silver": counted.after["silver"]}, silver):
            db.use_threads(piece.rows)
            db.view("silver", self.root / "silver", piece.files["silver"], COUNTED["silver"], SCHEMAS["silver"])
            _count_windows(db)
            said = counted._replace(serial=self._counted.serial, after={**counted.after, **piece.after}, groups=-1)
            done = max(counted.groups, 0)
            self._counted = windows.merge(db, self._tables["windows"], said, done, counted)
            counted = self._counted
            self._on_stage("gold windows committed")
        said = Counted(self._counted.serial, counted.before, counted.before)
        self._counted = windows.mark(self._tables["windows"], said)
        self._written = False
        self._save(db)

    def _save_if_due(self, db: Database) -> None:
        overdue = time.monotonic() - self._saved_at >= _SAVE_EVERY_S
        if self._unsaved_rows and (overdue or self._unsaved_rows >= _SAVE_EVERY_ROWS):
            self._save(db)

    def _save(self, db: Database) -> None:
        db.save(self._folder / "state")
        self._unsaved_rows, self._saved_at = 0, time.monotonic()
        self._on_stage("gold state saved")

    def _write(self, db: Database, now_us: int | None, note_alerts: bool) -> None:
        ((newest_us,),) = db.rows("SELECT newest_us FROM facts")
        as_of_us = max(newest_us or 0, now_us or 0)
        if not self._knows_written:
            self._find_written(db)
        db.run("write.sql", as_of=as_of_us)
        if as_of_us // HOUR_US != self._forgot_hour:
            db.run("forget.sql")
            self._forgot_hour = as_of_us // HOUR_US
        self._alerts.find(db, as_of_us, note_alerts)
        self._on_stage("alerts noted")
        counts = Counter(dict(db.rows("SELECT name, count(*) FROM found WHERE until IS NULL GROUP BY name")))
        self.open_alerts = {rule.name: counts[rule.name] for rule in self._rules.rules}
        self._write_days(db, "boots")
        self._write_days(db, "gaps")
        self._write_whole(db, "devices", "FROM devices_table")
        self._write_whole(db, "texts", "FROM texts_table")
        alerts = "SELECT device_id, name AS rule, kind, since, until, value, text FROM found ORDER BY ALL"
        self._write_whole(db, "alerts", alerts)
        ((self.devices,),) = db.rows("SELECT count(*) FROM devices")
        self._traffic.write_late(db)
        self._keep_rules()
        self._on_stage("gold tables written")
        self._written = True
        if self._counted.serial % _VACUUM_EVERY == 0:
            self.vacuum()

    def _find_written(self, db: Database) -> None:
        """Note the days that have rows of changed boots, which a process may have written after it had saved."""
        for name in ("boots", "gaps"):
            dataset = self._tables[name].delta.to_pyarrow_dataset()
            columns = ["device_id", "boot", "heard_date"]
            db.connection.register("written_days", dataset.scanner(columns, batch_readahead=2).to_reader())
            db.connection.execute(
                f"""INSERT INTO pending SELECT DISTINCT '{name}', heard_date - DATE '1970-01-01'
                FROM written_days SEMI JOIN changed USING (device_id, boot)"""
            )
            db.connection.unregister("written_days")
        self._knows_written = True

    def _write_days(self, db: Database, name: str) -> None:
        """Write the days of gold/boots or gold/gaps that have changed; each day is a partition.

        A boot is in the partition of the day on which it was last heard. So boots that are over cost nothing, however
        many there are.
        """
        days = [day for (day,) in db.rows("SELECT DISTINCT day FROM pending WHERE name = ?", name)]
        if not days:
            return
        # The table that a new state has not written yet is written as a whole.
        known = self._tables[name].delta.transaction_version(APPLICATION_ID)
        predicate = None if known is None else " OR ".join(partitions(days))
        source = f"FROM {name}_table t"
        if predicate is not None:
            source += f" SEMI JOIN pending p ON p.name = '{name}' AND p.day IS NOT DISTINCT FROM t.heard_date"
        # Sorting 100,000 rows by all their columns would take a third of writing them.
        order = "t.device_id, t.boot, t.first" if name == "gaps" else "t.device_id, t.boot"
        self._overwrite(db, name, f"{source} ORDER BY {order}", predicate)
        db.connection.execute("DELETE FROM pending WHERE name = ?", [name])

    def _write_whole(self, db: Database, name: str, query: str) -> None:
        """Write a table unless its rows are those that were written last. Each commit is two files."""
        schema = schema_of(name)
        columns = ", ".join(f'"{column}"' for column in schema.names)
        db.connection.execute(f"CREATE OR REPLACE TEMP TABLE written_rows AS SELECT {columns} FROM ({query})")
        (digest,) = db.rows("SELECT count(*), sum(hash(written_rows)) FROM written_rows")
        if digest != self._digests.get(name):
            self._overwrite(db, name, "FROM written_rows", None)
            self._digests[name] = digest

    def _overwrite(self, db: Database, name: str, query: str, predicate: str | None) -> None:
        write_deltalake(
            self._tables[name].delta,
            db.reader(query, schema_of(name)),
            mode="overwrite",
            predicate=predicate,
            writer_properties=WRITER,
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION_ID, self._counted.serial)]),
        )

    def _keep_rules(self) -> None:
        """Keep the rules, so that a later recount finds them."""
        text = self._rules.as_text()
        if self._digests.get("rules") != text:
            replace_checked(self._folder / "rules", text.encode())
            self._digests["rules"] = text


def remembered_rules(tables: Location) -> RuleSet:
    """Return the rules of alerts with which the newest gold was counted; the default rules if there is no gold."""
    try:
        return rules_from_text(bytes(read_checked(tables / "gold" / ".state" / "rules")).decode())
    except (OSError, FileDamaged, ValueError) as error:
        if may_pass(error):
            raise
    return DEFAULT_RULES


def _note_progress(db: Database, at: Mapping[str, int]) -> None:
    values = ", ".join(f"('{name}', {position})" for name, position in at.items())
    db.connection.execute(f"DELETE FROM progress; INSERT INTO progress VALUES {values}")


def _count_windows(db: Database) -> None:
    db.connection.execute("CREATE OR REPLACE TEMP TABLE fresh_windows AS FROM windows_of('taken')")
    db.connection.execute("CREATE OR REPLACE TEMP TABLE replaced (device_id VARCHAR, window_us BIGINT)")


def _pieces(
    root: Location, at: Mapping[str, int], up_to: Mapping[str, int], *, at_once: bool = False
) -> Iterator[Piece]:
    """Yield what lies between two positions, in pieces of bounded size."""
    ways = {name: steps(root / name, at[name], up_to[name]) for name in up_to}
    reached = dict(at)
    while ways:
        files: dict[str, list[str]] = {name: [] for name in up_to}
        total = 0
        for name, way in list(ways.items()):
            rows = size = 0
            while at_once or (rows < _PIECE_ROWS and size < _PIECE_BYTES):
                step = next(way, None)
                if step is None:
                    del ways[name]
                    break
                reached[name] = step.at
                files[name] += step.files
                rows += step.rows
                size += step.size
            total += rows
        if reached != dict(at) or any(files.values()):
            at = dict(reached)
            yield Piece(files, dict(reached), total)


def _now_us() -> int:
    return time.time_ns() // 1000
