"""Gold's law: whatever arrives in any order, and wherever an update is killed, it equals one pass over bronze."""

import itertools
import json
import random
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from gold_fleet import (
    GOLD,
    LEAVING,
    QUERY,
    SECOND,
    Killed,
    assert_law,
    fleet,
    rows_of,
    status,
    table_of,
    telemetry,
    written,
)
from spark_helpers import RECEIVED_MS
from umqtt_testkit.portable import FULL

from spark_ingest.alerts.rules import rule_set
from spark_ingest.errors import IngestError
from spark_ingest.gold import Gold, database, traffic, windows
from spark_ingest.gold import update as gold_module
from spark_ingest.pipeline.run import upkeep as pipeline_upkeep
from spark_ingest.pipeline.run.config import PipelineConfig
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.tables import changes, upkeep


@pytest.mark.parametrize("devices", [6, 6, 6] if FULL else [3])
def test_gold_gathered_bit_by_bit_and_killed_equals_one_pass_over_bronze(tmp_path, devices):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    written(tmp_path, fleet(seed, devices), random.Random(seed))
    tables = assert_law(tmp_path, seed)
    assert all(tables[name] for name in GOLD if name not in ("gaps", "alerts"))
    assert looping(tables) & LEAVING.keys() == {"crashes"}


def looping(tables: dict[str, list[tuple]]) -> set[str]:
    """Return the devices that have an alert about boots."""
    return {row[0] for row in tables["alerts"] if row[1] == "reboot_loop"}


@pytest.mark.parametrize("how", ["a file each", "one by one", "few windows at once", "few devices at once"])
@pytest.mark.sample(2)
def test_gold_counted_in_pieces_of_any_size_and_killed_is_the_same(tmp_path, monkeypatch, how):
    """Planted: windows of a group that was committed are added again, or a group is left out."""
    monkeypatch.setattr(gold_module, "_PIECE_ROWS", 1)
    monkeypatch.setattr(gold_module, "_SAVE_EVERY_ROWS", 50)
    if how == "few windows at once":
        monkeypatch.setattr(windows, "_MOST_SPANS", 1)
        monkeypatch.setattr(windows, "_MOST_ROWS", 10)
    elif how == "few devices at once":
        monkeypatch.setattr(windows, "_FEW_DEVICES", 2)
        monkeypatch.setattr(windows, "_MOST_ROWS", 10)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    # An update of a piece has a price, however small the piece.
    batches = fleet(seed, 3, latest_h=20) if FULL else fleet(seed, 2, 4, latest_h=20)[:7]
    if how == "one by one":
        most = 4 if FULL else 2
        batches = [batch.slice(row, 1) for batch in batches[:4] for row in range(min(most, batch.num_rows))]
    written(tmp_path, batches, rng)
    assert_law(tmp_path, seed)


def with_script(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Plant a mistake in a file of SQL."""
    whole = database.text_of

    def planted(script: str) -> str:
        text = whole(script)
        if script == name:
            assert old in text
            text = text.replace(old, new)
        return text

    monkeypatch.setattr(database, "text_of", planted)


MINUTE = 60 * SECOND
_LOOP = {"name": "reboot_loop", "kind": "reboot_loop", "boots": 3, "within": "5m"}
LOOP_RULES = rule_set(Path("alerts.toml"), [_LOOP], {})


def at_minute(device: str, boot: str, seq: int, minute: float, *, clock: bool = True, up: float | None = None):
    """Return a reading that is received at a minute; `up` in minutes."""
    received = RECEIVED_MS // MINUTE * MINUTE + int(minute * MINUTE)
    payload = telemetry(device, boot, seq, received if clock else None, None if up is None else int(up * MINUTE), t=1.0)
    return (*payload, received)


def over(device: str, minute: float = 0) -> list[tuple[str, bytes, int]]:
    """Return readings of three boots of a device, of which the first can leave the state 10 minutes later."""
    return [at_minute(device, f"{boot}-x", seq, minute + boot) for boot in (1, 2, 3) for seq in (0, 2)]


def left(minute: int, reason: str = "sleeping") -> list[tuple[str, bytes, int]]:
    """Return the messages of a boot of device a that begins at a minute and says goodbye a second later."""
    boot, at = f"{minute}-x", minute * MINUTE - RECEIVED_MS % MINUTE
    return [
        at_minute("a", boot, 0, minute),
        status(boot, at + SECOND, device="a", online=False, reason=reason),
    ]


LATER = [at_minute("other", "1-x", seq, minute) for seq, minute in enumerate((30, 31, 32, 33, 34, 35))]
LOOP_AFTER_RESTARTS = [
    [*over("b"), *(one for minute in range(4) for one in left(minute, "restarting"))],
    *([at_minute("a", f"{minute}-x", 0, minute)] for minute in range(4, 12)),
]
ROUNDS = {
    "late readings of a boot whose row lies in the partition of another day": [
        over("a", -3 * 1440),
        LATER[:1],
        [at_minute("a", "1-x", 1, 31), at_minute("a", "1-x", 4, 31)],
        LATER[1:2],
    ],
    "late readings when the process has just begun": [
        *(over("a"), LATER[:1], "save", LATER[1:2], "begin", [at_minute("a", "1-x", 1, 31)], LATER[2:3]),
    ],
    "late readings that were counted and not saved": [
        *(over("a"), LATER[:1], LATER[1:2], "save", [at_minute("a", "1-x", 1, 31)], "begin", LATER[2:3]),
    ],
    "the boot that was heard last is not the one that began last": [
        [*over("a"), at_minute("a", "1-x", 3, 5)],
        *([one] for one in LATER[:3]),
    ],
    "an anchor moves readings into the windows of a boot that has left": [
        [at_minute("a", "1-x", seq, 5.1 + seq / 10, clock=seq == 2, up=up) for seq, up in enumerate((0, 1, 3))],
        [at_minute("a", boot, 0, minute) for boot, minute in (("2-x", 6), ("3-x", 7))],
        LATER[:1],
        [at_minute("a", "4-x", 0, 36, clock=False, up=1)],
        LATER[4:5],
        [at_minute("a", "4-x", 1, 37, up=35)],
        LATER[5:6],
    ],
    "boots of a loop that goes on": [over("b"), *([at_minute("a", f"{boot}-x", 0, boot)] for boot in range(1, 12, 2))],
    "boots of a loop that began after a boot that was asked for": LOOP_AFTER_RESTARTS,
    "the boot that announced the one before a loop comes back": [*LOOP_AFTER_RESTARTS, [at_minute("a", "3-x", 1, 12)]],
}


def assert_counted_anew_is_the_same(folder: Path) -> None:
    by_pieces = rows_of(folder)
    shutil.rmtree(folder / "gold")
    Gold(folder, rules=LOOP_RULES).update()
    assert by_pieces == rows_of(folder)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.sample(3)
def test_what_comes_late_for_a_boot_is_counted_as_if_it_had_come_in_time(tmp_path, rounds):
    """Planted: the partition in which a boot was last written keeps its row; a state is used that lacks what the
    windows have counted since.
    """
    gold = Gold(tmp_path, rules=LOOP_RULES)
    writer = BatchWriter(tmp_path, tmp_path / "state")
    for number, messages in enumerate(ROUNDS[rounds]):
        if messages == "save":
            gold.save()
        elif messages == "begin":
            gold = Gold(tmp_path, rules=LOOP_RULES)
        else:
            writer.write(table_of(messages, 100 * number), number, QUERY)
            gold.update()
    assert_counted_anew_is_the_same(tmp_path)


@pytest.mark.parametrize("reason", ["sleeping", "restarting", "stopped"])
@pytest.mark.sample(1)
def test_boots_that_were_announced_are_no_loop_when_they_are_old(tmp_path, reason):
    """Planted: goodbyes are forgotten when the process ends."""
    gold, writer = Gold(tmp_path, rules=LOOP_RULES), BatchWriter(tmp_path, tmp_path / "state")
    for minute in range(8):
        writer.write(table_of(left(minute, reason), 10 * minute), minute, QUERY)
        gold.update()
        if minute % 3 == 0:
            gold.save()
            gold = Gold(tmp_path, rules=LOOP_RULES)
        assert rows_of(tmp_path)["alerts"] == []
    assert_counted_anew_is_the_same(tmp_path)


@pytest.mark.tier(3)  # a control
def test_an_anchor_that_is_not_applied_to_earlier_readings_is_caught(tmp_path, monkeypatch):
    """Planted: windows keep their readings when a boot's clock becomes known."""
    monkeypatch.setattr(Gold, "_move", lambda *_arguments: None)
    write(tmp_path, [clockless(seq, 20 * SECOND * seq) for seq in range(3)], [set_clock(3, 600 * SECOND)])
    with pytest.raises(AssertionError, match="windows"):
        assert_law(tmp_path, 0)


@pytest.mark.tier(3)  # a control
def test_silences_that_late_readings_do_not_end_are_caught(tmp_path, monkeypatch):
    """Planted: a silence, once noted, stays."""
    mine = 'UNION ALL SELECT device_id, boot, "first", "last", 0 FROM awake SEMI JOIN (FROM signs WHERE alive)'
    with_script(monkeypatch, "count.sql", mine, mine.replace("SELECT device_id", "SELECT device_id || 'x'"))
    early, late = set_clock(0, 0), set_clock(2, 3600 * SECOND)
    write(tmp_path, [early, late], [set_clock(1, 1800 * SECOND)])
    with pytest.raises(AssertionError, match="alerts"):
        assert_law(tmp_path, 0)


def test_compaction_and_replays_count_nothing_twice(tmp_path):
    batches = fleet(5)[:5]
    half = len(batches) // 2
    writer, gold = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None), Gold(tmp_path)
    for batch_id, batch in enumerate(batches):
        writer.write(batch, batch_id, QUERY)
        if batch_id in (half, half + 1):
            upkeep.compact(tmp_path)
            gold.update()
    gold.update()
    assert not gold.update(), "nothing new"
    assert_law(tmp_path, 5)


@pytest.mark.tier(3)  # a control
def test_compacted_rows_that_count_as_new_are_caught(tmp_path, monkeypatch):
    """Planted: every file that a commit names counts as new rows."""

    def all_of(actions):
        return [action["add"] for action in actions if "add" in action]

    monkeypatch.setattr(changes, "_added", all_of)
    with pytest.raises(AssertionError):
        test_compaction_and_replays_count_nothing_twice(tmp_path)


@pytest.mark.parametrize("killed", [False, True])
def test_files_that_vacuum_removed_before_gold_read_them_are_counted_from_the_whole_table(tmp_path, killed):
    """Planted: after a process was killed, the next counts only the files of other commits."""
    batches = fleet(6)[:5]
    writer, gold = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None), Gold(tmp_path)
    for batch_id, batch in enumerate(batches):
        writer.write(batch, batch_id, QUERY)
        if batch_id == 0 or killed:
            gold.update()
    upkeep.compact(tmp_path)
    for name in ("silver", "duplicates", "quarantine", "status", "logs"):
        table = DeltaTable(str(tmp_path / name))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    if killed:
        gold = Gold(tmp_path)
    gold.update()
    assert_law(tmp_path, 6)


def test_a_process_that_was_killed_is_followed_by_one_that_knows_what_the_windows_have_counted(tmp_path, monkeypatch):
    """Planted: the saved state is used unchanged, or what no window has yet is added to it only."""
    batches = fleet(8)[:6]
    writer, gold = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None), Gold(tmp_path)
    state = tmp_path / "gold" / ".state" / "state"
    saved = []
    for batch_id, batch in enumerate(batches[:-1]):
        writer.write(batch, batch_id, QUERY)
        gold.update()
        saved.append(state.read_bytes())
    assert len(set(saved)) == 1, "saved once, not at each update"
    writer.write(batches[-1], len(batches), QUERY)
    monkeypatch.setattr(windows, "begin", None)  # nothing is made from its beginning
    gold = Gold(tmp_path)
    gold.update()
    gold.save()
    assert state.read_bytes() != saved[0]
    monkeypatch.undo()
    assert_law(tmp_path, 8)


def test_an_update_that_was_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    """Planted: gold that is made from its beginning begins again, or counts a piece twice."""
    monkeypatch.setattr(gold_module, "_PIECE_ROWS", 60)
    monkeypatch.setattr(gold_module, "_SAVE_EVERY_ROWS", 120)
    monkeypatch.setattr(windows, "_MOST_ROWS", 20)
    made = tmp_path / "made"
    writer = BatchWriter(made, tmp_path / "state", report=lambda _line: None)
    for batch_id, batch in enumerate(fleet(4, 3)):
        writer.write(batch, batch_id, QUERY)
    write_windows = windows.write_deltalake

    def update(folder: Path, stops: int) -> int:
        """Update gold up to a commit of the windows; return the number of commits."""
        commits = 0

        def counted(*arguments, **options):
            nonlocal commits
            write_windows(*arguments, **options)
            commits += 1
            if commits == stops:
                raise Killed

        with monkeypatch.context() as dying, suppress(Killed):
            dying.setattr(windows, "write_deltalake", counted)
            Gold(folder).update()
        return commits

    # The names of the files decide which readings are counted together, and thereby the number of commits.
    whole = shutil.copytree(made, tmp_path / "whole")
    total = update(whole, 0)
    print("commits", total)
    assert total >= 4, "a commit that begins, and several that go on"
    wanted = assert_law(whole, 4)
    for stops in range(1, total + 1) if FULL else {1, 2, total // 2, total}:
        folder = shutil.copytree(made, tmp_path / f"{stops}")
        assert update(folder, stops) == stops
        begun: list[tuple] = []
        with monkeypatch.context() as once:
            once.setattr(windows, "begin", lambda *arguments, begun=begun: begun.append(arguments))
            Gold(folder).update()
        assert not begun
        assert rows_of(folder) == wanted, f"killed after {stops} of {total} commits"


def test_an_update_writes_the_windows_in_which_something_was_taken_and_no_others(tmp_path):
    """Planted: the whole hour is written again."""
    write(tmp_path, *([set_clock(n, n * 300 * SECOND)] for n in range(12)))
    windows = DeltaTable(str(tmp_path / "gold" / "windows"))
    assert [one["operationMetrics"].get("num_removed_files", 0) for one in windows.history(11)] == [0] * 11


def test_late_readings_do_not_join_their_windows_with_those_of_now(tmp_path):
    """Planted: windows of all hours share a file, which each later update writes again, and the next day's too."""
    for_hours = [[set_clock(10 * n + hour, hour * 3600 * SECOND) for hour in range(3)] for n in range(2)]
    write(tmp_path, *for_hours)
    added = DeltaTable(str(tmp_path / "gold" / "windows")).get_add_actions(flatten=True)
    names = ("min.window_start", "max.window_start", "partition.window_hour")
    rows = list(zip(*(added.column(name).to_pylist() for name in names), strict=True))
    assert sorted((low.hour, high.hour) for low, high, _hour in rows) == sorted((hour, hour) for *_, hour in rows)
    assert len(rows) == 3


def test_boots_that_are_over_are_left_as_they_are_until_something_comes_for_them(tmp_path):
    """Planted: all boots or all gaps are written again, a boot stays on the day on which it was last heard, or a boot's
    log line changes nothing.
    """
    day = 24 * 3600 * SECOND

    def reading(device: str, boot: str, seq: int, at: int) -> tuple[str, bytes, int]:
        return (*telemetry(device, boot, seq, RECEIVED_MS + at, 5, t=1.0), RECEIVED_MS + at)

    def log(boot: str, *ranges: list[int]) -> tuple[str, bytes, int]:
        words = {"level": "warning", "text": "dropped", "boot": boot, "dropped_seq": ranges}
        return "fleet/a/log", json.dumps(words).encode(), RECEIVED_MS + 3 * day

    batches = [
        [reading("a", "1-x", 0, 0), reading("a", "1-x", 3, 1), reading("b", "1-x", 0, 2)],
        [reading("a", "2-x", 0, day)],
        [reading("a", "2-x", 1, 2 * day)],
        [reading("b", "1-x", 5, 3 * day)],
        [log("1-x", [1, 2])],
        [log("9-x", [0, 1], [7, 8])],
        [reading("a", "9-x", 3, 4 * day)],
    ]
    writer, gold = BatchWriter(tmp_path, tmp_path / "state"), Gold(tmp_path)
    files: dict[str, list[list[str]]] = {"boots": [], "gaps": []}
    for batch_id, messages in enumerate(batches):
        writer.write(table_of(messages, 10 * batch_id), batch_id, QUERY)
        gold.update()
        for name, lists in files.items():
            lists.append(sorted(DeltaTable(str(tmp_path / "gold" / name)).file_uris()))
    kept = {name: [len({*after} & {*before}) for before, after in itertools.pairwise(lists)]
            for name, lists in files.items()}  # fmt: skip
    assert [len(one) for one in files["boots"]] == [1, 2, 2, 3, 3, 3, 4]
    assert kept["boots"] == [1, 1, 1, 2, 3, 3]
    # The gaps of 9-x have no day until a reading of this boot comes.
    assert [len(one) for one in files["gaps"]] == [1, 1, 1, 2, 2, 3, 3]
    assert kept["gaps"] == [1, 1, 1, 1, 2, 2]
    missing = {row[:2]: row[8] for row in rows_of(tmp_path)["boots"]}
    assert missing == {("a", "1-x"): 0, ("a", "2-x"): 0, ("b", "1-x"): 4, ("a", "9-x"): 1}
    gaps = [(*row[:4], row[8], (row[9] - datetime.fromtimestamp(RECEIVED_MS / 1000, UTC).date()).days)
            for row in rows_of(tmp_path)["gaps"]]  # fmt: skip
    assert gaps == [
        ("a", "1-x", 1, 2, "dropped", 0),
        ("a", "9-x", 0, 1, "dropped", 4),
        ("a", "9-x", 2, 2, "missing", 4),
        ("a", "9-x", 7, 8, "dropped", 4),
        ("b", "1-x", 1, 4, "missing", 3),
    ]
    assert_law(tmp_path, 0)


def test_a_collector_that_turns_out_to_have_begun_earlier_changes_what_boots_of_other_days_lack(tmp_path):
    """Planted: only the boots for which something has arrived are written."""
    earlier = (*telemetry("b", "1-x", 0, RECEIVED_MS, 5, t=1.0), RECEIVED_MS - 48 * 3600 * SECOND)
    write(tmp_path, [(*telemetry("a", "1-x", 3, RECEIVED_MS, 5, t=1.0), RECEIVED_MS)], [earlier])
    assert {row[0]: row[8] for row in rows_of(tmp_path)["boots"]} == {"a": 3, "b": 0}
    assert_law(tmp_path, 0)


def clockless(seq: int, up: int) -> tuple[str, bytes, int]:
    """Return a reading received an hour after its boot, whose clock was not set."""
    return (*telemetry("a", "1-x", seq, None, up, t=float(seq)), RECEIVED_MS + 3600 * SECOND)


def set_clock(seq: int, at: int) -> tuple[str, bytes, int]:
    """Return a reading taken and received `at` milliseconds after the boot."""
    return (*telemetry("a", "1-x", seq, RECEIVED_MS + at, at, t=float(seq)), RECEIVED_MS + at)


def write(folder, *batches):
    """Write each batch, with a gold update after it."""
    writer, gold, start = BatchWriter(folder, folder / "state"), Gold(folder), 0
    for batch_id, messages in enumerate(batches):
        writer.write(table_of(messages, start), batch_id, QUERY)
        gold.update()
        start += len(messages)


def test_an_update_with_nothing_but_repeated_readings_reaches_the_table_of_devices(tmp_path):
    """Planted: what was written last is compared by reference, although the state's arrays change in place."""
    readings = [set_clock(seq, 20 * SECOND * seq) for seq in range(3)]
    again = [(topic, payload, received + 3600 * SECOND) for topic, payload, received in readings]
    write(tmp_path, readings, again)
    assert_law(tmp_path, 0)


def test_a_later_anchor_moves_earlier_readings_to_when_they_were_taken(tmp_path):
    write(tmp_path, [clockless(seq, 20 * SECOND * seq) for seq in range(3)])
    hour = datetime.fromtimestamp(RECEIVED_MS / 1000, UTC) + timedelta(hours=1)
    (window,) = rows_of(tmp_path)["windows"]
    assert window[1] == hour - timedelta(minutes=hour.minute % 5, seconds=hour.second, microseconds=hour.microsecond)
    assert window[2:4] == ("t", 3)
    write(tmp_path, [clockless(seq, 20 * SECOND * seq) for seq in range(3)], [set_clock(3, 60 * SECOND)])
    windows = rows_of(tmp_path)["windows"]
    assert sum(window[3] for window in windows) == 4
    assert max(window[1] for window in windows) < hour - timedelta(minutes=30)
    (boot,) = rows_of(tmp_path)["boots"]
    assert boot[-3:-1] == (RECEIVED_MS * 1000, "anchor")


def test_gaps_are_filled_by_late_readings_and_explained_by_announcements(tmp_path):
    log = {"level": "warning", "text": "2 readings dropped", "boot": "1-x", "dropped_seq": [[3, 4], [9, 9]]}
    announced = ("fleet/a/log", json.dumps(log).encode(), RECEIVED_MS + 9 * SECOND)
    write(tmp_path, [set_clock(0, 0), set_clock(8, 8 * SECOND)], [announced, set_clock(2, 2 * SECOND)])
    gaps = [row[2:7] for row in rows_of(tmp_path)["gaps"]]
    assert gaps == [(1, 1, 1, False, True), (3, 4, 2, True, False), (5, 7, 3, False, True), (9, 9, 1, True, False)]
    (device,) = DeltaTable(str(tmp_path / "gold" / "devices")).to_pyarrow_table().to_pylist()
    assert (device["missing"], device["dropped_announced"], device["open_gaps"], device["health"]) == (4, 3, 2, "gaps")


def dropped(boot: str, *ranges: list[int], device: str = "a") -> tuple[str, bytes, int]:
    """Return an announcement that some readings will never come."""
    log = {"level": "warning", "text": "dropped", "boot": boot, "dropped_seq": ranges}
    return f"fleet/{device}/log", json.dumps(log).encode(), RECEIVED_MS


def test_counts_at_the_largest_seq_are_exact(tmp_path):
    """Planted: sums of doubles, which round here."""
    largest = 2**53 - 1
    everything = [0, largest]
    write(tmp_path, [dropped("1-x", everything), dropped("2-x", everything), set_clock(0, 0)])
    # One of the boots has the reading with seq 0.
    assert [row[4] for row in rows_of(tmp_path)["gaps"]] == [largest, largest + 1]
    (device,) = DeltaTable(str(tmp_path / "gold" / "devices")).to_pyarrow_table().to_pylist()
    assert (device["missing"], device["dropped_announced"], device["open_gaps"]) == (0, 2 * largest + 1, 0)
    ends = [
        (*telemetry("b", f"{n}-x", seq, RECEIVED_MS, 5, t=1.0), RECEIVED_MS) for n in range(3) for seq in (0, largest)
    ]
    write(tmp_path / "b", ends)
    (device,) = DeltaTable(str(tmp_path / "b" / "gold" / "devices")).to_pyarrow_table().to_pylist()
    assert (device["missing"], device["open_gaps"], device["health"]) == (3 * (largest - 1), 3, "gaps")


def test_gold_that_cannot_be_updated_is_said_once_and_tried_again_while_silver_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline_upkeep, "_AGAIN_S", 0)
    writer = BatchWriter(tmp_path, tmp_path / "state")
    writer.write(table_of([set_clock(0, 0)]), 0, QUERY)
    lines: list[str] = []
    config = PipelineConfig(None, tmp_path, tmp_path, gold_interval_s=0)
    upkeep = pipeline_upkeep.Upkeep(config, on_stage=lambda _stage: None, report=lines.append)
    with monkeypatch.context() as broken:
        broken.setattr(Gold, "_write_days", lambda *_arguments: int("no number"))
        for batch_id in (1, 2):
            upkeep.step(0)
            upkeep.wait()
            writer.write(table_of([set_clock(batch_id, 0)], batch_id), batch_id, QUERY)
        (line,) = lines
        assert line.startswith("gold is not up to date and will be tried again: invalid literal")
        with pytest.raises(IngestError, match="gold is not up to date, silver is: invalid literal"):
            upkeep.finish(0)
    upkeep.step(0)
    upkeep.wait()
    upkeep.close()
    (boot,) = rows_of(tmp_path)["boots"]
    assert boot[7] == 3 and len(lines) == 1


@pytest.mark.parametrize("name", ["devices", "boots", "gaps", "alerts", "traffic"])
def test_a_table_that_could_not_be_written_is_written_by_the_next_update(tmp_path, monkeypatch, name):
    """Planted: rows count as written before they are."""

    def fails(delta, *arguments, **options):
        if delta.table_uri.rstrip("/").endswith(f"/{name}"):
            raise OSError(28, "No space left on device")
        return original(delta, *arguments, **options)

    original = gold_module.write_deltalake

    boots = [(*telemetry("b", f"{n}-x", 0, RECEIVED_MS + n * SECOND, 0), RECEIVED_MS + n * SECOND) for n in range(6)]
    writer, gold = BatchWriter(tmp_path, tmp_path / "state"), Gold(tmp_path)
    writer.write(table_of([set_clock(0, 0)]), 0, QUERY)
    gold.update()
    writer.write(table_of([set_clock(2, 2 * SECOND), *boots], 1), 1, QUERY)
    with monkeypatch.context() as full:
        for module in (gold_module, traffic):
            full.setattr(module, "write_deltalake", fails)
        with pytest.raises(OSError, match="No space"):
            gold.update()
    gold.update()
    assert_law(tmp_path, 0)


def test_while_nothing_comes_an_update_writes_nothing(tmp_path):
    """Planted: the devices are written each minute, even if nothing about them has changed."""
    write(tmp_path, [set_clock(0, 0)])
    gold = Gold(tmp_path)
    now = (RECEIVED_MS + SECOND) * 1000
    gold.update(now)
    versions = {name: DeltaTable(str(tmp_path / "gold" / name)).version() for name in GOLD}
    gold.update(now + 60_000_000)
    assert {name: DeltaTable(str(tmp_path / "gold" / name)).version() for name in GOLD} == versions


def test_alerts_have_a_beginning_and_while_they_last_no_end(tmp_path):
    boots = [(*telemetry("b", f"{n}-x", 0, RECEIVED_MS + n * SECOND, 0), RECEIVED_MS + n * SECOND) for n in range(6)]
    memory = [
        (*telemetry("m", "1-x", n, RECEIVED_MS + n * 600 * SECOND, 0, mem_free=100_000.0 - 9000 * n), at)
        for n in range(8)
        for at in [RECEIVED_MS + n * 600 * SECOND]
    ]
    gap = [set_clock(0, 0), set_clock(500, 500 * SECOND), set_clock(501, 7000 * SECOND)]
    write(tmp_path, sorted(boots + memory + gap, key=lambda message: message[2]))
    found = {(row[0], row[1], row[4] is None) for row in rows_of(tmp_path)["alerts"]}
    assert found == {
        ("a", "gap", True),
        ("a", "offline", False),
        ("b", "offline", True),
        ("b", "reboot_loop", False),
        ("m", "memory_falling", True),
        ("m", "offline", True),
    }
    assert {row[0]: row[1] for row in rows_of(tmp_path)["devices"]} == {"a": "gaps", "b": "offline", "m": "offline"}
    write(tmp_path / "m", memory)
    assert [row[1] for row in rows_of(tmp_path / "m")["devices"]] == ["memory"]


def health(folder) -> dict[str, str]:
    """Return the health of each device."""
    rows = DeltaTable(str(folder / "gold" / "devices")).to_pyarrow_table().to_pylist()
    return {row["device_id"]: row["health"] for row in rows}


# Reason of the status that says offline -> health.
GOODBYES = {"sleeping": "ok", "restarting": "ok", "stopped": "ok", "connection lost": "offline", None: "offline"}


def test_a_device_that_said_goodbye_is_not_offline_until_it_is_silent_for_too_long(tmp_path):
    """Planted: every status that says offline makes the device offline, or a goodbye ends the alert of silence
    too.
    """
    sent = []
    for reason in GOODBYES:
        sent.append((*telemetry(f"{reason}", "1-x", 0, RECEIVED_MS, 5), RECEIVED_MS))
        sent.append(status("1-x", SECOND, device=f"{reason}", online=False, reason=reason))
    write(tmp_path, sent)
    assert health(tmp_path) == {f"{reason}": health for reason, health in GOODBYES.items()}
    later = (*telemetry("later", "1-x", 0, RECEIVED_MS, 5), RECEIVED_MS + 3600 * SECOND)
    write(tmp_path / "later", sent, [later])
    assert health(tmp_path / "later") == {f"{reason}": "offline" for reason in GOODBYES} | {"later": "late"}


# Device -> reason of its boots' last status, cause of its boots, alerts.
BOOTS = {
    "a": ("connection lost", "hard", ["reboot_loop"]),
    "b": (None, "wdt", ["reboot_loop"]),
    "c": ("restarting", "hard", []),
    "d": ("restarting", "unknown", []),
    "e": (None, "soft", []),
    "f": ("sleeping", "wdt", []),
    "g": ("stopped", "hard", []),
}


def test_boots_that_were_announced_are_no_loop(tmp_path):
    """Planted: every boot counts, only a restart excuses the next boot, or one announced boot excuses all of the
    device's.
    """
    batches: tuple[list, list] = [], []
    for name, (end, cause, _) in BOOTS.items():
        sent = []
        for n in range(6):
            at = n * 60 * SECOND
            sent.append(status(f"{n}-x", at, device=name, online=True, reason="boot", cause=cause))
            sent.append((*telemetry(name, f"{n}-x", 0, RECEIVED_MS + at, 5), RECEIVED_MS + at + SECOND))
            if end is not None:
                sent.append(status(f"{n}-x", at + 2 * SECOND, device=name, online=False, reason=end))
        batches[0].extend(sent[1::2])
        batches[1].extend(sent[::2])
    write(tmp_path, *batches)
    alerts = [row[:2] for row in rows_of(tmp_path)["alerts"]]
    assert {name: [kind for device, kind in alerts if device == name] for name in BOOTS} == {
        name: kinds for name, (_, _, kinds) in BOOTS.items()
    }
    for device in DeltaTable(str(tmp_path / "gold" / "devices")).to_pyarrow_table().to_pylist():
        assert (device["boots"], device["reboots_24h"]) == (6, 5), "they are boots all the same"
    assert_law(tmp_path, 0)


BOOT = {"online": True, "reason": "boot", "cause": "wdt"}
LEFT = {"online": False, "reason": "sleeping"}
# What comes of a boot, as seconds and status (None: a reading) -> whether the boots after such boots are a loop.
LAST_WORDS = {
    "asleep": ([(0, BOOT), (1, None), (2, LEFT)], False),
    "asleep, all in one block": ([(0, BOOT), (0, None), (0, LEFT)], False),
    "woken in the same boot and asleep again": ([(0, BOOT), (2, LEFT), (20, None), (22, LEFT)], False),
    "crashed after a wake in the same boot": ([(0, BOOT), (1, None), (2, LEFT), (20, None)], True),
    "crashed after a wake in which it connected again": ([(0, BOOT), (2, LEFT), (20, BOOT)], True),
    "restarted with readings that the next boot delivers": (
        [(0, BOOT), (1, None), (2, {**LEFT, "reason": "restarting"}), (70, None)],
        False,
    ),
}


@pytest.mark.parametrize("words", LAST_WORDS)
@pytest.mark.parametrize("apart", [False, True])
def test_a_goodbye_excuses_the_next_boot_unless_the_device_was_awake_again(tmp_path, words, apart):
    """Planted: a goodbye excuses a boot after a crash that followed it; what a boot delivers after its restart takes
    its goodbye back.
    """
    said, loops = LAST_WORDS[words]
    sent = []
    for n in range(6):
        for seq, (second, words_of_status) in enumerate(said):
            at = (60 * n + second) * SECOND
            if words_of_status is None:
                sent.append((*telemetry("a", f"{n}-x", seq, None, None, t=1.0), RECEIVED_MS + at))
            else:
                sent.append(status(f"{n}-x", at, device="a", **words_of_status))
    write(tmp_path, *([[one] for one in reversed(sent)] if apart else [sent]))
    assert looping(rows_of(tmp_path)) == ({"a"} if loops else set())
    assert_law(tmp_path, 0)


def test_a_board_that_crashes_after_its_last_sleep_is_a_loop(tmp_path):
    """Planted: every goodbye of the device excuses a boot, or a goodbye the boot after the next."""
    slept = [one for minute in range(5) for one in left(minute)]
    crashed = [at_minute("a", f"{minute}-x", 0, minute) for minute in range(5, 10)]
    write(tmp_path, slept, crashed)
    assert looping(rows_of(tmp_path)) == {"a"}, "the very first boot, and four after a crash"
    write(tmp_path / "b", slept, crashed[:4])
    assert looping(rows_of(tmp_path / "b")) == set(), "a boot after a goodbye counts too"


def test_goodbyes_of_boots_that_are_not_known_yet_outlast_the_process(tmp_path):
    """Planted: they are not saved."""
    readings, goodbyes = zip(*(left(minute, "restarting") for minute in range(6)), strict=True)
    writer, gold = BatchWriter(tmp_path, tmp_path / "state"), Gold(tmp_path)
    writer.write(table_of(goodbyes), 0, QUERY)
    gold.update()
    writer.write(table_of(readings, 10), 1, QUERY)
    Gold(tmp_path).update()
    assert looping(rows_of(tmp_path)) == set()
    assert_law(tmp_path, 0)


def test_gold_is_empty_and_whole_before_anything_came(tmp_path):
    BatchWriter(tmp_path, tmp_path / "state")
    assert not Gold(tmp_path).update()
    assert all(rows == [] for rows in rows_of(tmp_path).values())


def test_a_block_from_a_collector_whose_clock_runs_ahead_moves_no_device_but_its_own_and_that_heals(
    tmp_path, monkeypatch
):
    """Planted: silence is measured against the newest received time of all, whichever clock it comes from."""
    now = RECEIVED_MS * 1000
    monkeypatch.setattr(gold_module, "_now_us", lambda: now)
    year = 365 * 24 * 3600 * SECOND
    ahead = [(*telemetry("ahead", f"{n}-x", 0, None, 5), RECEIVED_MS + 4 * year + n) for n in range(5)]
    ahead += [("fleet/ahead/status", b'{"online":true,"boot":"4-x"}', RECEIVED_MS + 4 * year)]
    ahead += [("fleet/ahead/telemetry", b"corrupt", RECEIVED_MS + 4 * year)]
    other = [(*telemetry("a", "1-x", n, None, 5), RECEIVED_MS - 2 + n) for n in range(2)]
    write(tmp_path, other[:1], ahead, other[1:])

    assert health(tmp_path) == {"a": "ok", "ahead": "rebooting"}
    assert_law(tmp_path, 0)
    assert health(tmp_path) == {"a": "ok", "ahead": "rebooting"}
    minutes = [row[0] for row in rows_of(tmp_path)["traffic"]]
    assert max(minutes).timestamp() * 1000 <= RECEIVED_MS
    Gold(tmp_path).update(now + 2 * 24 * 3600 * 1_000_000)
    assert health(tmp_path) == {"a": "offline", "ahead": "offline"}
    alerts = DeltaTable(str(tmp_path / "gold" / "alerts")).to_pyarrow_table().to_pylist()
    assert {row["kind"] for row in alerts if row["until"] is None} == {"offline"}
