"""Keep gold, the tables that people look at, up to date with what silver and the tables beside it have committed.

An update reads the rows that were appended since the previous update, adds them to the state of gold
(:mod:`gold_state`), and writes the gold tables. It is not part of a micro-batch: committed versions never change, so
each row is counted once, whatever Spark replays.

A number, `serial`, connects the parts of an update. First the windows are merged, in a commit whose application
transactions hold the serial S and the version of each table up to which the windows have counted. This commit makes
update S valid. Then the rules of alerts are applied, and alerts that begin or end are noted in the journal. Last, the
other tables are written, which are functions of the state and the journal.

The state is a function of the versions too, and several times as large as what an update changes. So it is saved only
now and then, as ``gold/.state/S``. If the process is killed at any point, the next one loads the last saved state,
adds what the windows have counted since, applies the rules again to the alerts in the journal, and writes the other
tables again.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from ..alerts.journal import Journal, Opened
from ..alerts.rules import DEFAULT_RULES, RuleSet, rules_from_text
from ..errors import FileDamaged
from ..escape import remark
from ..location import Location, is_table, may_pass, open_table, remove_tree
from ..tables.changes import Appended, LogGone, appended
from ..tables.delta import WRITER, Delta
from ..tables.schemas import PARTITIONED_BY, SCHEMAS, TIMESTAMP
from .clock import AHEAD_US
from .dedup import SEPARATOR, boot_keys
from .gold_alerts import Alert, alerts_table, state_alerts, verdicts_of
from .gold_archive import archive, is_archived, put_back, returning
from .gold_boots import heard_days
from .gold_state import DAY_US, MINUTE_US, SILVER_COLUMNS, State, load, save
from .gold_tables import boots_table, devices_table, gaps_table, traffic_table
from .gold_windows import APPLICATION_ID, WINDOW_US, merge_into, windows_of
from .metric_alerts import MetricAlerts

STAGES = ("gold folded", "gold windows committed", "gold state saved", "alerts noted", "gold tables written")
"""The stages of an update for which `on_stage` is called, in order."""

COUNTED = {
    "silver": SILVER_COLUMNS,
    "duplicates": ["device_id", "received_ts", "payload_crc", "collector"],
    "quarantine": [
        *("reason", "payload", "received_ts", "segment", "position", "collector"),
        *("device_id", "boot", "seq", "kept"),
    ],
    "status": [
        *("device_id", "boot", "online", "fw", "reason", "extra", "retain"),
        *("received_ts", "segment", "position", "collector"),
    ],
    "logs": ["device_id", "boot", "dropped_seq", "received_ts", "collector"],
}
"""The columns of each table that gold counts."""
_SOURCES = tuple(COUNTED)
_OF_BOOTS = ("silver", "quarantine", "status", "logs")
_GOLD = ("devices", "windows", "boots", "gaps", "traffic", "alerts")
# The rows that are counted at once take about this much. A metric takes more than its own bytes: it becomes a window.
_CHUNK_BYTES = 128 << 20
_METRIC_BYTES = 200
_EPOCH = date(1970, 1, 1)
_VACUUM_EVERY = 200
# After a kill, at most this much is counted again: about ten seconds of work, on files that no vacuum removed yet.
_SAVE_EVERY_ROWS = 1_000_000
_SAVE_EVERY_S = 600.0


class _WrittenBoots(NamedTuple):
    """The basis of gold/boots as last written: the day each boot was last heard, and when each collector began."""

    days: np.ndarray
    started_us: np.ndarray


class Gold:
    """The gold tables below `tables`/gold; only one process at a time may write them.

    :param rules: the rules of alerts.
    :param recipients: see :meth:`Journal.take`.
    :param on_stage: called with a name of STAGES when that stage is done; for tests that stop the process there.
    :param report: called with one line for a person.
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
        self._recipients = recipients
        self._folder = tables / "gold" / ".state"
        for name in _GOLD:
            path, by = tables / "gold" / name, PARTITIONED_BY.get(f"gold/{name}")
            if is_table(path) and open_table(path).metadata().partition_columns[:1] != ([by] if by else []):
                report(f"{path} was made by an older release: gold is counted anew")
                remove_tree(self._folder)
                remove_tree(path)
        then_by = {"windows": "window_hour"}
        self._tables = {
            name: Delta(
                tables / "gold" / name, SCHEMAS[f"gold/{name}"], PARTITIONED_BY.get(f"gold/{name}"), then_by.get(name)
            )
            for name in _GOLD
        }
        self._folder.mkdir(exist_ok=True)
        self.journal = Journal(tables, report=report)
        self._metrics = MetricAlerts(self._tables["windows"], rules)
        self._state: State | None = None
        self._versions: dict[str, int] = {}
        self._serial = 0
        self._unsaved_rows = 0
        self._saved_at = time.monotonic()
        self._written = False
        self._digests: dict[str, bytes] = {}
        self._boots: _WrittenBoots | None = None
        # Of gold/gaps as last written: a hash of the rows of each day that the state has.
        self._gaps: dict[int | None, bytes] | None = None
        self._archived_on: int | None = None

    def update(self, now_us: int | None = None, *, note_alerts: bool = True) -> bool:
        """Count what has been committed since the last update; return whether there was anything.

        :param now_us: Unix microseconds against which silence is measured; default: the newest received time.
        :param note_alerts: note in the journal which alerts begin and end. False while much of a spool is still to be
            read: until then, devices of another spool seem to be silent.
        """
        began = time.monotonic()
        try:
            state = self._current()
            sources = self._new_rows()
            changed = any(source.files for source in sources.values())
            if not changed and self._written and now_us is None:
                return False
            if changed:
                if not self._written:
                    # The previous update may have failed before it wrote the traffic, and _count drops the minutes
                    # that are over.
                    self._write_traffic(state)
                self._count(state, sources)
        except LogGone:
            # The log no longer tells which rows are new: count everything again.
            self._forget()
            return self.update(now_us, note_alerts=note_alerts)
        self._write_whole(state, now_us, note_alerts)
        self.last_duration_s = time.monotonic() - began
        return changed

    def save(self) -> None:
        """Save the state, so that the next process need not count anything again."""
        if self._state is not None and self._unsaved_rows:
            self._save(self._state)

    def _save(self, state: State) -> None:
        save(state, self._folder / str(self._serial), self._versions)
        self._unsaved_rows, self._saved_at = 0, time.monotonic()
        for old in self._folder.iterdir():
            if old.name != str(self._serial):
                old.unlink()
        self._on_stage("gold state saved")

    def _current(self) -> State:
        """Return the state for the versions that the windows have counted."""
        if self._state is None:
            windows = self._tables["windows"].delta
            self._serial = windows.transaction_version(APPLICATION_ID) or 0
            state = self._resumed(windows)
            if state is None:
                self._forget()
                state = State(self._rules.offline_us)
            state.rules = self._rules.as_text()
            self._state, self._boots, self._gaps = state, None, None
        return self._state

    def _resumed(self, windows: DeltaTable) -> State | None:
        """Return the last saved state plus what the windows have counted since; None if no saved state is usable."""
        # A state of an older release that was killed may be ahead of the windows.
        serial = max((one for one in _serials(self._folder) if one <= self._serial), default=None)
        if serial is None:
            return None
        try:
            state, saved = load(self._folder / str(serial))
        except (OSError, FileDamaged) as error:
            if may_pass(error):  # the object store is unreachable for now
                raise
            self._report(f"{error}: gold is counted anew")
            return None
        if state.offline_us != self._rules.offline_us:
            return None
        counted = {name: windows.transaction_version(_application_id(name)) for name in _SOURCES}
        # An older release noted no versions in the windows; it saved the state of every serial.
        self._versions = {name: saved[name] if version is None else version for name, version in counted.items()}
        sources = {name: appended(self.root / name, saved[name], self._versions[name]) for name in _SOURCES}
        self._put_back(state, self._boots_of(state, sources), saved)
        self._take(state, sources)
        # If the rules have changed, mark the state as unsaved, so that a later recount finds the current rules.
        self._unsaved_rows += state.rules != self._rules.as_text()
        return state

    def _forget(self) -> None:
        remove_tree(self._folder)
        self._folder.mkdir(exist_ok=True)
        self._state, self._versions, self._written = None, {}, False

    def _new_rows(self) -> dict[str, Appended]:
        return {name: appended(self.root / name, self._versions.get(name)) for name in _SOURCES}

    def _count(self, state: State, sources: dict[str, Appended]) -> None:
        # Until the windows are committed, the state in memory is not valid.
        self._state = None
        from_scratch = not self._versions
        if self._written:
            self._archive(state)
        self._put_back(state, self._boots_of(state, sources), self._versions)
        state.freeze()
        before = {name: state.boots[name].copy() for name in ("anchor_seq", "anchor_us", "readings", "ok")}
        kept = self._take(state, sources)
        self._on_stage("gold folded")
        serial = abs(self._serial) + 1
        versions = {name: source.version for name, source in sources.items()}
        transactions = _transactions(serial, versions)
        if from_scratch:
            self._windows_from_scratch(state, sources["silver"], serial, versions)
        else:
            chunks = kept if len(kept) < 2 else _chunks(sources["silver"], "silver")
            self._windows(state, chunks, before, versions["silver"], transactions)
        self._on_stage("gold windows committed")
        self._state, self._serial, self._versions, self._written = state, serial, versions, False
        overdue = time.monotonic() - self._saved_at >= _SAVE_EVERY_S
        if from_scratch or overdue or self._unsaved_rows >= _SAVE_EVERY_ROWS:
            self._save(state)

    def _archive(self, state: State) -> None:
        """Once a day, let the boots leave the state that are over. Their rows must have been written."""
        day = state.newest_us // DAY_US
        stay = archive(state, self._rules) if day != self._archived_on else None
        self._archived_on = day
        if stay is not None and self._boots is not None:
            self._boots = self._boots._replace(days=self._boots.days[stay])

    def _boots_of(self, state: State, sources: dict[str, Appended]) -> set[str]:
        """Return the keys of the boots of which `sources` have rows; none while all boots are in the state."""
        keys: set[str] = set()
        for name in _OF_BOOTS if len(state.archived) else ():
            for batch in sources[name].batches(["device_id", "boot"], SCHEMAS[name]):
                rows = pa.Table.from_batches([batch])
                keys.update(boot_keys(rows.filter(rows["boot"].is_valid())).dictionary.to_pylist())
        return keys

    def _put_back(self, state: State, keys: Iterable[str], versions: dict[str, int]) -> None:
        """Put those of these boots back into the state that have left it.

        :param versions: the versions of the tables up to which the state has counted what they have of these boots.
        """
        back = sorted(returning(state, keys))
        if not back:
            return
        names = [key.split(SEPARATOR) for key in back]
        field = pa_dataset.field
        of_these = field("device_id").isin([one[0] for one in names]) & field("boot").isin([one[1] for one in names])
        counted = State(self._rules.offline_us)
        counted.now_us = _now_us()
        takes = counted.take_readings, counted.take_quarantined, counted.take_status, counted.take_logs
        for name, take in zip(_OF_BOOTS, takes, strict=True):
            if versions[name] >= 0:
                table = open_table(self.root / name, versions[name]).to_pyarrow_dataset()
                rows = table.to_table(COUNTED[name], filter=of_these)
                mine = np.isin(_keys(rows), back)
                take(rows.filter(pa.array(mine)).combine_chunks())
        put_back(state, counted, back)
        if self._boots is not None:
            written = self._tables["boots"].delta.to_pyarrow_dataset().to_table(filter=of_these)
            days = dict(zip(_keys(written), written["heard_date"].cast(pa.int32()).to_pylist(), strict=True))
            self._boots = self._boots._replace(days=np.append(self._boots.days, [days.get(key, 0) for key in back]))

    def _take(self, state: State, sources: dict[str, Appended]) -> list[pa.Table]:
        """Add rows to the state; return the last chunks of silver, at most two."""
        state.now_us = _now_us()
        kept: list[pa.Table] = []
        takes = (
            *(state.take_readings, state.take_duplicates, state.take_quarantined),
            *(state.take_status, state.take_logs),
        )
        for name, take in zip(_SOURCES, takes, strict=True):
            for rows in _chunks(sources[name], name):
                take(rows)
                self._unsaved_rows += rows.num_rows
                kept = [*kept, rows][-2:] if name == "silver" else kept
        state.assign_goodbyes()
        state.forget_old()
        return kept

    def _windows_from_scratch(self, state: State, silver: Appended, serial: int, versions: dict[str, int]) -> None:
        """Write all windows again. Only the last commit has the serial, so a partial result never looks complete."""
        table = self._tables["windows"]
        delta = table.upon(APPLICATION_ID, self._serial)
        # No state has a negative number, so a process that finds one starts from scratch.
        unfinished = -serial
        empty = SCHEMAS["gold/windows"].empty_table()
        write_deltalake(delta, empty, mode="overwrite", commit_properties=_transactions(unfinished, {}))
        nothing = _none_replaced()
        for rows in _chunks(silver, "silver"):
            merge_into(table, windows_of(rows, state.placed(rows)), nothing, unfinished, _transactions(unfinished, {}))
        merge_into(table, empty, nothing, unfinished, _transactions(serial, versions))

    def _windows(
        self, state: State, chunks, before: dict[str, np.ndarray], version: int, transactions: CommitProperties
    ) -> None:
        """Add new readings to their windows, and recount from silver the windows that a changed anchor affects."""
        replaced, recounted = self._moved(state, before, version)
        parts = [recounted]
        for rows in chunks:
            new = windows_of(rows, state.placed(rows))
            if replaced.num_rows:
                new = new.join(replaced, keys=["device_id", "window_start"], join_type="left anti")
            parts.append(new.select(SCHEMAS["gold/windows"].names))
        merge_into(self._tables["windows"], pa.concat_tables(parts), replaced, self._serial, transactions)

    def _moved(self, state: State, before: dict[str, np.ndarray], version: int) -> tuple[pa.Table, pa.Table]:
        """Return the windows that a changed anchor moved readings out of or into, and the new rows of these windows.

        :param before: columns of the boots before this update.
        :param version: version of silver to recount from.
        """
        empty = _none_replaced(), SCHEMAS["gold/windows"].empty_table()
        old = len(before["readings"])
        boots = state.boots
        other = (boots["anchor_seq"][:old] != before["anchor_seq"]) | (boots["anchor_us"][:old] != before["anchor_us"])
        numbers = np.flatnonzero(other & (before["readings"] > before["ok"]))
        if not len(numbers):
            return empty
        names = list(boots.index)
        keys = pa.array([names[number] for number in numbers.tolist()], pa.string())
        ids = list(state.devices.index)
        devices = pa.array(sorted({ids[number] for number in boots["device"][numbers].tolist()}))
        silver = open_table(self.root / "silver", version).to_pyarrow_dataset()
        field = pa_dataset.field
        loose = silver.to_table(SILVER_COLUMNS, filter=field("device_id").isin(devices) & ~field("clock_ok"))
        owners = boot_keys(loose).dictionary_decode()
        loose = loose.filter(pc.call_function("is_in", [owners], pc.SetLookupOptions(keys)))
        if not loose.num_rows:
            return empty
        now = state.placed(loose)
        columns = {name: boots[name][:old].copy() for name in ("anchor_seq", "anchor_us")}
        for name in columns:
            boots[name][:old] = before[name]
        then = state.placed(loose)
        for name, column in columns.items():
            boots[name][:old] = column
        starts = np.concatenate([now, then]) // WINDOW_US * WINDOW_US
        touched = pa.table(
            {
                "device_id": pa.concat_arrays([loose["device_id"].combine_chunks()] * 2),
                "window_start": pa.array(starts, pa.int64()).cast(TIMESTAMP),
            }
        )
        touched = touched.group_by(["device_id", "window_start"]).aggregate([])
        # No reading was taken later than it was received, plus AHEAD_US.
        since = pa.scalar(int(starts.min()) - AHEAD_US, pa.int64()).cast(TIMESTAMP)
        within = field("device_id").isin(devices) & (field("received_ts") >= since)
        rows = silver.to_table(SILVER_COLUMNS, filter=within)
        # Boots that left long ago are placed by their anchors too.
        self._put_back(state, boot_keys(rows).dictionary.to_pylist(), self._versions)
        whole = windows_of(rows, state.placed(rows))
        whole = whole.join(touched, keys=["device_id", "window_start"], join_type="left semi")
        return touched, whole.select(SCHEMAS["gold/windows"].names)

    def _write_whole(self, state: State, now_us: int | None, note_alerts: bool) -> None:
        as_of = max(state.newest_us, now_us or state.newest_us)
        gaps = gaps_table(state)
        alerts = alerts_table(self._alerts(state, gaps, as_of, note_alerts))
        devices = devices_table(state, gaps, alerts, self._rules, as_of)
        self.open_alerts, self.devices = _open_by_rule(alerts, self._rules), devices.num_rows
        self._write_boots(state, gaps)
        self._write_gaps(state, gaps)
        for name, rows in (("devices", devices), ("alerts", alerts)):
            # Each commit is two files; skip it if the rows have not changed.
            digest = _digest(rows)
            if digest != self._digests.get(name):
                self._overwrite(name, rows)
                self._digests[name] = digest
        self._write_traffic(state)
        self._on_stage("gold tables written")
        self._written = True
        if self._serial % _VACUUM_EVERY == 0:
            self.vacuum()

    def _write_boots(self, state: State, gaps: pa.Table) -> None:
        """Write the partitions of gold/boots that changed boots belong to now, or belonged to when last written.

        A boot is in the partition of the day on which it was last heard. So boots that are over cost nothing, however
        many there are.
        """
        days, touched = heard_days(state), None
        started = state.collectors["first_us"].copy()
        written, rows = self._boots, np.arange(len(days))
        # If a collector turns out to have begun earlier, the gaps of any boot may count differently.
        if written is not None and np.array_equal(written.started_us, started[: len(written.started_us)]):
            changed = np.array(sorted(state.changed_boots), dtype=np.int64)
            if not len(changed):
                return
            before = written.days[changed[changed < len(written.days)]]
            touched = np.unique(np.concatenate([days[changed], before])).tolist()
            rows = np.flatnonzero(np.isin(days, touched))
        self._write_days("boots", state, boots_table(state, gaps, rows), touched)
        self._boots = _WrittenBoots(days, started)
        state.changed_boots.clear()

    def _write_gaps(self, state: State, gaps: pa.Table) -> None:
        """Write the partitions of gold/gaps that have changed, which are by day like those of gold/boots."""
        days = gaps["heard_date"].cast(pa.int32())
        parts = {day: gaps.filter(pc.call_function("equal", [days, pa.scalar(day)]))
                 for day in pc.call_function("unique", [days.drop_null()]).to_pylist()}  # fmt: skip
        parts[None] = gaps.filter(days.is_null())
        digests = {day: _digest(rows) for day, rows in parts.items()}
        written, touched = self._gaps, None
        if written is not None:
            touched = [day for day in digests.keys() | written.keys() if digests.get(day) != written.get(day)]
            if not touched:
                return
            gaps = pa.concat_tables([gaps.slice(0, 0), *(parts[day] for day in touched if day in parts)])
        self._write_days("gaps", state, gaps, touched)
        self._gaps = digests

    def _write_days(self, name: str, state: State, rows: pa.Table, days: Sequence[int | None] | None) -> None:
        """Write partitions by day, with the written rows of the boots that have left the state.

        :param name: of the table, boots or gaps.
        :param rows: the rows of the boots in the state.
        :param days: the days on which their boots were last heard, None for those of which no day is known; or None
            for the whole table.
        """
        found = iter(rows.to_batches())
        dates = None if days is None else [_date(day) for day in days if day is not None]
        if len(state.archived):
            within = None if dates is None else pa_dataset.field("heard_date").isin(dates)
            written = self._tables[name].delta.to_pyarrow_dataset().to_batches(filter=within)
            found = chain(found, (batch.cast(rows.schema) for one in written for batch in _old(state, one)))
        predicate = None
        if days is not None and dates is not None:
            clauses = [f"heard_date = '{date}'" for date in dates] + ["heard_date IS NULL"] * (None in days)
            predicate = " OR ".join(clauses)
        self._overwrite(name, pa.RecordBatchReader.from_batches(rows.schema, found), predicate)

    def _alerts(self, state: State, gaps: pa.Table, as_of_us: int, note_alerts: bool) -> list[Alert]:
        found = state_alerts(state, gaps, self._rules, as_of_us)
        if note_alerts:
            last_heard = dict(zip(state.devices.index, state.devices["last_us"].tolist(), strict=True))
            verdicts = [*verdicts_of(found, self._rules), *self._metrics.judge(last_heard, as_of_us)]
            self.journal.take(verdicts, self._rules, as_of_us, self._recipients)
        self._on_stage("alerts noted")
        noted = self.journal.alerts(rule.name for rule in self._rules.rules if rule.is_metric)
        return found + [
            Alert(one.device, one.rule, one.kind, one.since, one.until, one.value, one.text) for one in noted
        ]

    def _write_traffic(self, state: State) -> None:
        # Write once per serial: retention may have removed minutes since then that the state still has.
        if self._tables["traffic"].delta.transaction_version(APPLICATION_ID) == self._serial:
            return
        rows = traffic_table(state)
        predicate = None
        if state.frozen_before > 0:
            late = sorted(state.late_minutes)
            rows = pa.concat_tables([rows, self._recounted(late)]) if late else rows
            days = [_minute_text(minute) for minute in late]
            predicate = f"minute >= '{_minute_text(state.frozen_before)}'"
            predicate += "".join(f" OR minute = '{day}'" for day in days)
        self._overwrite("traffic", rows, predicate)

    def _recounted(self, minutes: list[int]) -> pa.Table:
        """Return the traffic of settled minutes for which late rows came, counted from the tables."""
        fresh = State(self._rules.offline_us)
        takes = (fresh.take_readings, fresh.take_duplicates, fresh.take_quarantined)
        received = pa_dataset.field("received_ts")
        for name, take in zip(_SOURCES, takes, strict=False):
            if self._versions[name] < 0:
                continue
            table = open_table(self.root / name, self._versions[name]).to_pyarrow_dataset()
            for minute in minutes:
                begin, end = (pa.scalar(m * MINUTE_US, pa.int64()).cast(TIMESTAMP) for m in (minute, minute + 1))
                take(table.to_table(COUNTED[name], filter=(received >= begin) & (received < end)))
        return traffic_table(fresh)

    def _overwrite(self, name: str, rows: pa.Table | pa.RecordBatchReader, predicate: str | None = None) -> None:
        delta = self._tables[name].delta
        properties = _transactions(self._serial, {})
        write_deltalake(
            delta, rows, mode="overwrite", predicate=predicate, writer_properties=WRITER, commit_properties=properties
        )

    def vacuum(self) -> None:
        """Remove the files of gold that no version of the last hour uses; each update leaves some behind."""
        for table in self._tables.values():
            table.delta.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)


def remembered_rules(tables: Location) -> RuleSet:
    """Return the rules of alerts with which the newest gold was counted; the default rules if there is no gold."""
    folder = tables / "gold" / ".state"
    for serial in reversed(_serials(folder)):
        try:
            return rules_from_text(load(folder / str(serial))[0].rules)
        except (OSError, FileDamaged, ValueError) as error:
            if may_pass(error):
                raise
    return DEFAULT_RULES


def _open_by_rule(alerts: pa.Table, rules: RuleSet) -> dict[str, int]:
    counts = Counter(alerts.filter(alerts["until"].is_null())["rule"].to_pylist())
    return {rule.name: counts[rule.name] for rule in rules.rules}


def _chunks(source: Appended, name: str) -> Iterator[pa.Table]:
    """Yield the rows of a source in tables that take at most about _CHUNK_BYTES, or are one row."""
    held: list[pa.RecordBatch] = []
    size = 0.0
    for batch in source.batches(COUNTED[name], SCHEMAS[name]):
        sizes = _sizes(batch)
        start = 0
        while start < batch.num_rows:
            end = int(np.searchsorted(sizes, sizes[start] + _CHUNK_BYTES - size, "right")) - 1
            if not held:
                end = max(start + 1, end)
            if end > start:
                held.append(batch.slice(start, end - start))
                size += sizes[end] - sizes[start]
                start = end
            if start < batch.num_rows:
                chunk = pa.Table.from_batches(held).combine_chunks()
                held, size = [], 0.0
                yield chunk
                del chunk
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Return about how many bytes it takes to count the first 0, 1, 2 … rows of a batch."""
    if "metrics" not in batch.schema.names:
        return np.linspace(0, batch.nbytes, batch.num_rows + 1)
    metrics = batch["metrics"]
    ends = metrics.offsets.to_numpy()
    each = _METRIC_BYTES + metrics.nbytes / max(1, ends[-1] - ends[0])
    return np.linspace(0, batch.nbytes - metrics.nbytes, batch.num_rows + 1) + each * (ends - ends[0])


def _old(state: State, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of gold/boots of boots that have left the state."""
    rows = pa.Table.from_batches([batch])
    yield from rows.filter(pa.array(is_archived(state, _keys(rows)))).to_batches()


def _keys(rows: pa.Table) -> list[str]:
    """Return the key of each row's boot."""
    names = zip(rows["device_id"].to_pylist(), rows["boot"].to_pylist(), strict=True)
    return [device_id + SEPARATOR + boot for device_id, boot in names]


def _date(day: int) -> date:
    return _EPOCH + timedelta(days=day)


def _digest(rows: pa.Table) -> bytes:
    """Return a hash of the rows. The rows themselves share memory with the state, which changes in place."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return hashlib.blake2b(sink.getvalue(), digest_size=16).digest()


def _now_us() -> int:
    return time.time_ns() // 1000


def _none_replaced() -> pa.Table:
    return pa.schema([("device_id", pa.string()), ("window_start", TIMESTAMP)]).empty_table()


def _application_id(source: str) -> str:
    return f"{APPLICATION_ID}/{source}"


def _transactions(serial: int, versions: dict[str, int]) -> CommitProperties:
    """Return the properties of a commit of update `serial`.

    :param versions: the versions of the sources that have been counted; negative: the source does not exist.
    """
    counted = [Transaction(_application_id(name), version) for name, version in versions.items() if version >= 0]
    return CommitProperties(app_transactions=[Transaction(APPLICATION_ID, serial), *counted])


def _serials(folder: Location) -> list[int]:
    """Return the serials of the states that are saved in `folder`, in ascending order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def _minute_text(minute: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(minute * 60))
