"""Upkeep of the tables changes no other row than intended, beside a running pipeline or without one."""

import contextlib
import io
import json
import random
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pytest
from deltalake import DeltaTable
from gold_fleet import QUERY, assert_law, fleet, rows_of, table_of, telemetry, written
from spark_helpers import RECEIVED_MS

from spark_ingest.decoders.rules import Rules
from spark_ingest.durable import replace_checked
from spark_ingest.errors import UsageError
from spark_ingest.gold import Gold
from spark_ingest.lock import FolderLock
from spark_ingest.pipeline.change.rebuild import rebuild
from spark_ingest.pipeline.process import require_checkpoint, require_whole
from spark_ingest.pipeline.run.config import PipelineConfig
from spark_ingest.pipeline.run.upkeep import Upkeep
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.tables.changes import NOWHERE, LogGone, files_at, newest, position, steps
from spark_ingest.tables.delta import Delta, transactions
from spark_ingest.tables.schemas import SCHEMAS
from spark_ingest.tables.upkeep import SmallFiles, compact, deleted, listed, retain, vacuum
from umqtt_cli import __main__ as umqtt
from umqtt_cli.escape import remark

BELOW_GOLD = ("bronze", "silver", "quarantine", "duplicates", "status", "logs")


# Enough messages that every table has rows, and quarantine a conflict too.
MESSAGES = pa.concat_tables(fleet(1, also=())).slice(0, 320)
BATCHES = [MESSAGES.slice(start, 32) for start in range(0, MESSAGES.num_rows, 32)]
WRITTEN = len(BATCHES) - 4


def content(folder: Path, name: str) -> list[str]:
    return sorted(map(repr, DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist()))


def contents(folder: Path) -> dict[str, list[str]]:
    """Return the tables below gold.

    Where silver places readings without a clock depends on their micro-batch.
    """
    found = {name: content(folder, name) for name in BELOW_GOLD if name != "silver"}
    silver = DeltaTable(str(folder / "silver")).to_pyarrow_table().drop_columns(["event_ts", "event_ts_from"])
    return found | {"silver": sorted(map(repr, silver.to_pylist()))}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    written(folder, BATCHES[:WRITTEN], random.Random(1), kill=False)
    return folder


@pytest.fixture
def tables(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "tables"))


def test_compaction_and_vacuum_leave_every_row_and_fewer_files(tables):
    before = {name: content(tables, name) for name in SCHEMAS}
    versions = {name: transactions(tables / name) for name in BELOW_GOLD}
    done = {one.name: one for one in compact(tables)}
    assert done["silver"].files_after < done["silver"].files_before
    assert vacuum(tables, keep_hours=1, dry_run=True)["silver"] == 0, "too young"
    assert vacuum(tables, keep_hours=0)["silver"] > 0
    assert {name: content(tables, name) for name in SCHEMAS} == before
    assert {name: transactions(tables / name) for name in BELOW_GOLD} == versions, "a replay is still known as one"
    assert {one.name: one.rows for one in listed(tables)} == {name: len(before[name]) for name in SCHEMAS}


def step_once(config: PipelineConfig, report: Callable[[str], None] = remark, times: int = 1) -> None:
    """Do the upkeep that is due, `times` one after the other, in a process that then ends."""
    upkeep = Upkeep(config, on_stage=lambda _stage: None, report=report)
    for _ in range(times):
        upkeep.step(0)
        upkeep.wait()
    upkeep.close()


def test_a_pipeline_vacuums_by_itself_every_hour_whatever_process_did_it_last(tables):
    """Planted: only the process's own clock counts, so that `--once` from cron never vacuums."""
    rows = {name: content(tables, name) for name in SCHEMAS}
    compact(tables)
    before = {one.name: one.dead for one in listed(tables)}
    assert before["silver"] > 0 and before["gold/devices"] > 0
    config = PipelineConfig(None, tables, tables / "checkpoint", gold=False, keep_hours=0)
    step_once(config)
    assert {one.dead for one in listed(tables)} == {0}
    assert json.loads(run("ls", "--tables", tables, "--json"))["silver"]["dead bytes"] == 0
    assert {name: content(tables, name) for name in SCHEMAS} == rows
    compact(tables, target_bytes=1)
    deleted(DeltaTable(str(tables / "silver")), "device_id = 'd1'")
    dead = {one.name: one.dead for one in listed(tables)}
    assert dead["silver"] > 0
    step_once(config)
    assert {one.name: one.dead for one in listed(tables)} == dead, "within the hour"
    replace_checked(tables / "umqtt.vacuumed", b"0")
    step_once(config)
    assert {one.dead for one in listed(tables)} == {0}
    # A bit of the time may have flipped, so that it is an hour that has just begun.
    (tables / "umqtt.vacuumed").write_text(str(time.time()))
    for path in (tables / "gold" / "gaps" / "_delta_log").iterdir():
        path.write_bytes(b"x")
    lines: list[str] = []
    step_once(config, lines.append, times=2)
    assert len(lines) == 1 and "not all tables were vacuumed: cannot open the table" in lines[0]


def test_small_files_are_joined_while_a_pipeline_appends(tables):
    rows = content(tables, "silver")
    lines: list[str] = []
    small = SmallFiles(tables, lines.append, most=5)
    small.step()
    before = len(DeltaTable(str(tables / "silver")).file_uris())
    writer = BatchWriter(tables, tables / "state", report=lambda _line: None)
    for batch_id in range(WRITTEN, len(BATCHES)):
        writer.write(BATCHES[batch_id], batch_id, QUERY)
    while small.step():
        pass
    assert not lines
    assert set(rows) <= set(content(tables, "silver"))
    assert len(DeltaTable(str(tables / "silver")).file_uris()) < before


def test_the_windows_files_are_joined_too_and_gold_goes_on(tmp_path):
    """Planted: windows are left out, so that a file for every five minutes stays for ever."""
    writer, gold = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None), Gold(tmp_path)
    lines: list[str] = []
    small = SmallFiles(tmp_path, lines.append, most=5)
    for n in range(9):
        at = RECEIVED_MS + n * 300_000
        writer.write(table_of([(*telemetry("a", "1-x", n, at, 5, t=1.0), at)], n), n, QUERY)
        gold.update()
        while small.step():
            pass
    assert not lines
    assert len(DeltaTable(str(tmp_path / "gold" / "windows")).file_uris()) < 8
    assert_law(tmp_path, 1)


def test_a_rebuild_gives_the_same_rows_and_a_replay_after_it_adds_none(tables):
    before, gold = contents(tables), rows_of(tables)
    rebuild(tables)
    assert contents(tables) == before
    assert rows_of(tables) == gold
    writer = BatchWriter(tables, tables / "state", report=lambda _line: None)
    writer.write(BATCHES[WRITTEN - 1], WRITTEN - 1, QUERY)
    assert contents(tables) == before


def placed(messages: list[tuple[str, bytes, int]], spool: str, segment: int) -> pa.Table:
    """Return messages as a micro-batch, with their place."""
    table = table_of(messages)
    for name, value in (("spool", spool * 32), ("segment", segment)):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), [[value] * len(messages)])
    return table


@pytest.mark.parametrize(("segments", "hours"), [((0, 0, 1), -1), ((0, 1, 0), 1)])
def test_a_rebuild_keeps_what_came_first_though_clock_or_spool_are_new(tmp_path, segments, hours):
    """Planted: the order of received times; the order of segments, though a new spool begins with the first again."""
    first, second = (telemetry("pump", "1-a", 0, None, 0, t=value) for value in (1.0, 2.0))
    later = RECEIVED_MS + hours * 3_600_000
    sent = [(*telemetry("fan", "1-a", 0, None, 0), RECEIVED_MS), (*first, RECEIVED_MS + 1), (*second, later)]
    writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
    for batch_id, (message, spool, segment) in enumerate(zip(sent, "001", segments, strict=True)):
        writer.write(placed([message], spool, segment), batch_id, QUERY)
    before = contents(tmp_path)
    rebuild(tmp_path)
    assert contents(tmp_path) == before


def test_a_rebuild_of_messages_that_do_not_fit_into_memory_gives_the_same_rows(tmp_path, monkeypatch):
    """Planted: payloads go through the engine, which has 2,048 of them in memory."""
    monkeypatch.setattr("spark_ingest.pipeline.change.rebuild._MEMORY", "24MB")
    monkeypatch.setattr("spark_ingest.pipeline.change.rebuild._CHUNK_BYTES", 1 << 20)
    writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
    for batch_id in range(6):
        # Of each identity the first that came is in silver, so the order shows.
        sent = [(*telemetry("pump", "1-a", n % 7, None, 0, t=float(batch_id + n)), RECEIVED_MS) for n in range(10)]
        sent += [(f"fleet/pump/telemetry/{n}", bytes(1 << 19), RECEIVED_MS) for n in range(10)]
        writer.write(table_of(sent, 100 * batch_id), batch_id, QUERY)
    before = content(tmp_path, "silver"), content(tmp_path, "duplicates")
    rebuild(tmp_path)
    assert (content(tmp_path, "silver"), content(tmp_path, "duplicates")) == before


@pytest.mark.parametrize("seed", range(2))
def test_a_rebuild_reads_a_spool_in_its_order_though_the_clock_was_set_over_midnight(tmp_path, seed):
    """Planted: the order of dates; only the last date believed; the rows of a piece in the order of their files."""
    rng = random.Random(seed)
    writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
    at, segment = RECEIVED_MS, 0
    for batch_id in range(25):
        at += rng.choice([0, 1, 1, 1, 20, -20, 24 * 365, -24 * 365]) * 3_600_000 + 1
        segment += rng.random() < 0.3
        # Of each identity the first that came is in silver, so the order shows.
        sent = [(*telemetry("pump", "1-a", rng.randrange(9), None, 0, t=float(batch_id)), at)]
        row = table_of(sent, 100 * batch_id)
        field = row.schema.get_field_index("segment")
        writer.write(row.set_column(field, row.schema.field(field), [[segment]]), batch_id, QUERY)
    before = contents(tmp_path)
    rebuild(tmp_path)
    assert contents(tmp_path) == before


def test_a_micro_batch_that_only_bronze_had_is_in_silver_once_after_a_rebuild_and_its_replay(tables):
    class Stop(Exception):
        pass

    def stop(stage: str) -> None:
        if stage == "bronze committed":
            raise Stop

    batch = BATCHES[WRITTEN], WRITTEN, QUERY
    with pytest.raises(Stop):
        BatchWriter(tables, tables / "state", on_stage=stop).write(*batch)
    rebuild(tables)
    after = content(tables, "silver")
    BatchWriter(tables, tables / "state", report=lambda _line: None).write(*batch)
    assert content(tables, "silver") == after
    identities = [re.findall(r"'(?:device_id|boot|seq)': ([^,]+)", row)[:3] for row in after]
    assert len(identities) == len(set(map(tuple, identities)))


def test_a_rebuild_that_was_broken_off_is_repeated_before_a_pipeline_runs(tables, monkeypatch):
    monkeypatch.setattr("spark_ingest.pipeline.change.rebuild.judge", lambda *_arguments, **_options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rebuild(tables)
    with pytest.raises(UsageError, match="was interrupted: run umqtt tables rebuild"):
        require_whole(tables)
    monkeypatch.undo()
    rebuild(tables)
    require_whole(tables)


def test_a_rebuild_reads_bronze_to_its_end_before_anything_goes(tables):
    before = contents(tables) | rows_of(tables)
    file = max((tables / "bronze").rglob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    error = run("rebuild", "--tables", tables, code=1)
    assert "nothing was changed" in error and error.count("\n") == 1
    file.write_bytes(whole)
    assert contents(tables) | rows_of(tables) == before
    require_whole(tables)
    shutil.rmtree(tables / "bronze")
    assert "nothing was changed" in run("rebuild", "--tables", tables, code=1)
    assert not (tables / "bronze").exists() and len(content(tables, "silver")) == len(before["silver"])


def test_gold_is_counted_anew_only_from_tables_that_can_be_read(tables):
    gold = rows_of(tables)
    file = Path(max(DeltaTable(str(tables / "silver")).file_uris()))
    whole = file.read_bytes()
    file.write_bytes(b"")
    assert "nothing was changed" in run("rebuild", "--gold-only", "--tables", tables, code=1)
    assert rows_of(tables) == gold
    file.write_bytes(whole)
    run("rebuild", "--gold-only", "--tables", tables)
    assert rows_of(tables) == gold


@pytest.mark.parametrize("broken", ["forget", "rebuild --gold-only"])
def test_a_command_that_was_broken_off_is_repeated_before_any_other_and_before_a_pipeline(
    tables, monkeypatch, tmp_path, broken
):
    whole = Path(shutil.copytree(tables, tmp_path / "whole"))
    command = [*broken.split(), *(["d'1"] if broken == "forget" else [])]
    monkeypatch.setattr(Gold, "update", lambda *_arguments, **_given: 1 / 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # for the file with the traceback
    assert "ZeroDivisionError" in run(*command, "--tables", tables, code=70)
    again = "was interrupted: run umqtt tables " + ("forget 'd'\"'\"'1'" if broken == "forget" else broken)
    with pytest.raises(UsageError, match=re.escape(f"{again} --tables {tables} again")):
        require_whole(tables)
    monkeypatch.undo()
    for other in (["rebuild"], ["retain", "--days", "9"], ["forget", "d2"]):
        assert again in run(*other, "--tables", tables, code=2)
    for folder in (tables, whole):
        # Forgetting an unknown device is an error, except for the command that completes an interrupted one.
        run(*command, "--tables", folder, code=2 if folder is whole and broken == "forget" else 0)
    require_whole(tables)
    assert rows_of(tables) == rows_of(whole)


@pytest.mark.parametrize("left", [b"\xff\xfe", b"", b"rebuild", b"umqtt 1 7 00000000\nrebuild"])
def test_a_damaged_note_of_an_interrupted_command_is_one_line_and_a_rebuild_completes_it(tables, left):
    """Planted: a note without a checksum, whose command is printed as the one to run."""
    (tables / "umqtt.unfinished").write_bytes(left)
    for command in (["forget", "d1"], ["rebuild", "--gold-only"], ["retain", "--days", "9"]):
        error = run(*command, "--tables", tables, code=2)
        assert "umqtt.unfinished is damaged" in error and f"run umqtt tables rebuild --tables {tables}," in error
        assert error.count("\n") == 1
    run("rebuild", "--tables", tables)
    require_whole(tables)


def test_who_is_forgotten_is_told_by_the_record_and_not_by_the_topic_where_ids_are_trusted(tmp_path):
    def reading(topic: str, device: str, seq: int, value: float = 1.0) -> tuple[str, bytes, int]:
        return (topic, telemetry(device, "1-x", seq, None, None, t=value)[1], RECEIVED_MS)

    escaped = reading("site/a/telemetry", "gone", 3)[1].replace(b"gone", b"\\u0067one")
    messages = [
        reading("fleet/gone/telemetry", "gone", 0),
        reading("elsewhere", "gone", 1),
        reading("elsewhere", "gone", 1),
        reading("fleet/kept/telemetry", "gone", 1, 2.0),
        ("site/a/telemetry", escaped, RECEIVED_MS),
        ("fleet/gone/telemetry", b"corrupt", RECEIVED_MS),
        ("fleet/gone/telemetry", b'{"id":"gone","seq":-1}', RECEIVED_MS),
        ("fleet/gone/log", b'{"text":"x"}', RECEIVED_MS),
        ("fleet/gone/status", b"[]", RECEIVED_MS),
        ("fleet/gone/status", b'{"online":true,"id":"kept"}', RECEIVED_MS),
    ]
    others = [
        reading("fleet/gone/telemetry", "kept", 0),
        reading("fleet/gone/telemetry", "kept", 0, 2.0),
        ("fleet/kept/telemetry", b"of gone, corrupt", RECEIVED_MS),
        ("fleet/kept/log", b'{"text":"gone"}', RECEIVED_MS),
        ("gone", b"corrupt", RECEIVED_MS),
    ]
    for folder, sent in ((tmp_path / "both", messages + others), (tmp_path / "others", others)):
        BatchWriter(folder, folder / "state", rules=Rules(True)).write(table_of(sent), 0, QUERY)
    removed = json.loads(run("forget", "gone", "--tables", tmp_path / "both", "--json"))
    assert {name: count["rows removed"] for name, count in removed.items()} == {
        "bronze": len(messages),
        "silver": 3,
        "quarantine": 4,
        "duplicates": 1,
        "status": 1,
        "logs": 1,
    }
    for name in BELOW_GOLD:
        left, expected = (
            DeltaTable(str(tmp_path / folder / name)).to_pyarrow_table().drop_columns(["position"]).to_pylist()
            for folder in ("both", "others")
        )
        assert sorted(map(repr, left)) == sorted(map(repr, expected)), name


def test_a_device_that_is_forgotten_is_in_no_table_and_the_others_are_whole(tables):
    others = [row for row in content(tables, "silver") if "'device_id': 'd1'" not in row]
    result = run("forget", "d1", "--tables", tables, "--json")
    assert json.loads(result)["silver"]["rows removed"] > 0
    vacuum(tables, keep_hours=0)
    for name in SCHEMAS:
        rows = content(tables, name)
        assert not [row for row in rows if "'d1'" in row or "fleet/d1/" in row], name
    assert content(tables, "silver") == others
    assert not [path for path in tables.rglob("*.parquet") if b"fleet/d1/" in path.read_bytes()]


def test_a_name_of_which_there_is_no_row_fails_and_a_person_is_asked(tables, monkeypatch, capsys):
    """Planted: a misspelt name is forgotten silently; no confirmation is asked for."""
    before = {name: content(tables, name) for name in BELOW_GOLD}
    assert umqtt.run(["tables", "forget", "d11", "--tables", str(tables)]) == 2
    assert "'d11'" in capsys.readouterr().err
    asked = []
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.confirm", lambda question, **_: asked.append(question) or _refuse())
    assert umqtt.run(["tables", "forget", "d1", "--tables", str(tables)]) == 130
    assert len(asked) == 1 and "d1" in asked[0]
    assert {name: content(tables, name) for name in BELOW_GOLD} == before
    assert umqtt.run(["tables", "forget", "d1", "--yes", "--tables", str(tables)]) == 0


def _refuse():
    raise KeyboardInterrupt


def test_retention_removes_whole_days_and_gold_keeps_what_it_counted(tables):
    later = table_of([(*telemetry("z", "1-z", 0, None, None, t=1.0), RECEIVED_MS + 3 * 86_400_000)], 10**6)
    BatchWriter(tables, tables / "state", report=lambda _line: None).write(later, WRITTEN, QUERY)
    Gold(tables).update()
    devices = content(tables, "gold/devices")
    retain(tables, 2, datetime.fromtimestamp(RECEIVED_MS / 1000, UTC) + timedelta(days=4))
    assert [row["device_id"] for row in DeltaTable(str(tables / "silver")).to_pyarrow_table().to_pylist()] == ["z"]
    assert len(content(tables, "gold/windows")) == 1
    assert not Gold(tables).update(), "a removal is nothing new"
    assert content(tables, "gold/devices") == devices


@pytest.mark.parametrize("deed", ["forget", "retain"])
def test_what_a_removal_left_of_a_file_is_filtered_like_any_other(tables, deed):
    """Planted: rows are removed by Delta's own delete or merge, after which a pipeline cannot look up a reading."""
    later = table_of([(*telemetry("z", "1-z", 0, None, None, t=1.0), RECEIVED_MS + 3600_000)], 10**6)
    BatchWriter(tables, tables / "state", report=lambda _line: None).write(later, WRITTEN, QUERY)
    held = {name: DeltaTable(str(tables / name)).to_pyarrow_table() for name in BELOW_GOLD}
    if deed == "forget":
        run("forget", "d1", "--tables", tables)
    else:
        for name in BELOW_GOLD:
            middle = sorted(held[name]["received_ts"].to_pylist())[held[name].num_rows // 2]
            assert deleted(DeltaTable(str(tables / name)), f"received_ts < '{middle}'"), name
    for name in BELOW_GOLD:
        left = DeltaTable(str(tables / name)).to_pyarrow_dataset()
        for column in (field.name for field in left.schema if pa.types.is_string(field.type)):
            for value in {*left.to_table([column])[column].to_pylist()} - {None}:
                found = left.to_table(filter=pa_dataset.field(column) == value).num_rows
                assert found == left.to_table([column])[column].to_pylist().count(value), (name, column)
    # A new checkpoint looks everything up.
    writer = BatchWriter(tables, tables / "anew", report=lambda _line: None)
    for batch_id, batch in enumerate(BATCHES):
        writer.write(batch, batch_id, "anew")


def test_what_retention_removed_does_not_come_back_with_a_new_checkpoint(tmp_path):
    days = [RECEIVED_MS + day * 86_400_000 for day in range(4)]
    messages = []
    for day, at in enumerate(days):
        messages += [(*telemetry("a", "1-x", 10 * day + i, at, i, t=1.0), at + i * 3_600_000) for i in range(9)]
        messages += [("fleet/a/status", b'{"online":true,"boot":"1-x"}', at), ("fleet/a/log", b'{"text":"x"}', at)]
        messages += [("x", b"corrupt", at), ("x", b"corrupt", at + 5 * 3_600_000), (*messages[-11][:2], at)]
        messages.append((*messages[0][:2], at))
    batches = [table_of(messages[start : start + 30], start) for start in range(0, len(messages), 30)]

    def read(query: str) -> None:
        writer = BatchWriter(tmp_path, tmp_path / query, report=lambda _line: None)
        for batch_id, batch in enumerate(batches):
            writer.write(batch, batch_id, query)
        Gold(tmp_path).update()

    read("first")
    now = datetime.fromtimestamp(days[3] / 1000, UTC) + timedelta(hours=3)
    for keep in (2, 1):
        removed = retain(tmp_path, keep, now)
        assert removed["bronze"] == sum(removed[name] for name in BELOW_GOLD[1:])
        kept = contents(tmp_path) | rows_of(tmp_path)
        read(f"after {keep}")
        after = contents(tmp_path) | rows_of(tmp_path)
        for name, rows in kept.items():
            assert (name, [row for row in after[name] if row not in rows]) == (name, [])
            assert after[name] == rows
    batches.append(table_of([(*telemetry("a", "1-x", 99, None, None, t=1.0), days[0])], 10**6))
    read("late")
    assert any("'seq': 99" in row for row in content(tmp_path, "silver")), "not read before, so not removed"
    rebuild(tmp_path)
    read("after a rebuild")
    assert len(content(tmp_path, "bronze")) == len(kept["bronze"]) + 1


def test_a_column_that_an_older_table_lacks_is_added_and_its_rows_read_as_null(tmp_path):
    new = SCHEMAS["silver"]
    old = pa.schema([field for field in new if field.name != "extra"])
    Delta(tmp_path / "silver", old, "received_date")
    writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
    for batch_id, batch in enumerate(BATCHES[:3]):
        writer.write(batch, batch_id, QUERY)
    table = DeltaTable(str(tmp_path / "silver")).to_pyarrow_table()
    assert set(table.column_names) == set(new.names) and table.num_rows > 0


def test_rows_since_a_position_are_told_until_the_log_of_it_is_gone(tables):
    """Planted: the files of a compaction; the first file of a version that was counted in part."""
    silver = tables / "silver"
    end = newest(silver)
    version = DeltaTable(str(silver)).version()
    assert end == position(version) and list(steps(silver, end, end)) == []
    whole = [file for step in steps(silver, NOWHERE, end) for file in step.files]
    assert sorted(whole) == sorted(files_at(silver, end)) and len(whole) > 3
    of_two = [file for step in steps(silver, NOWHERE, position(2)) for file in step.files]
    since = list(steps(silver, position(2), end))
    assert since[-1].at == end and {*of_two, *(file for step in since for file in step.files)} == {*whole}
    assert sum(step.rows for step in since) == DeltaTable(str(silver)).count() - DeltaTable(str(silver), 2).count()
    # Some files of a version, then the rest of it, then what came later.
    some = [step.files for step in steps(silver, position(version, 2), end)]
    assert some == [[file] for file in sorted(whole)[2:]]
    compact(tables)
    assert [file for step in steps(silver, end, newest(silver)) for file in step.files] == []
    DeltaTable(str(silver)).create_checkpoint()
    for number in range(version + 1):
        (silver / "_delta_log" / f"{number:020d}.json").unlink()
    for at in (position(2), position(2, 1)):
        with pytest.raises(LogGone):
            list(steps(silver, at, newest(silver)))


def test_only_one_process_writes_the_tables(tables):
    with FolderLock(tables, "--tables", "a pipeline"):
        for command in (["rebuild"], ["retain", "--days", "9"], ["forget", "d1"]):
            error = run(*command, "--tables", tables, code=2)
            assert "in use by a pipeline (process" in error and error.count("\n") == 1
        assert "silver" in run("ls", "--tables", tables)
        assert "silver" in run("compact", "--tables", tables)
    with FolderLock(tables, "--tables", "a pipeline"):
        pass


def test_a_folder_without_tables_is_one_line_and_exit_code_2(tmp_path):
    assert "there are no tables in" in run("ls", "--tables", tmp_path, code=2)


def test_a_checkpoint_of_another_version_or_of_other_tables_is_refused(tmp_path):
    require_checkpoint(tmp_path, "silver-1")
    require_checkpoint(tmp_path, "silver-1")
    with pytest.raises(UsageError, match="belongs to other tables; give a new --checkpoint"):
        require_checkpoint(tmp_path, "silver-2")
    version = tmp_path / "umqtt" / "version.json"
    replace_checked(version, b'{"format":2,"silver":"silver-1"}')
    with pytest.raises(UsageError, match="of another version"):
        require_checkpoint(tmp_path, "silver-1")
    version.unlink()
    (tmp_path / "metadata").touch()
    with pytest.raises(UsageError, match="is not of umqtt ingest"):
        require_checkpoint(tmp_path, "silver-1")


def run(*arguments: object, code: int = 0) -> str:
    """Run ``umqtt tables`` with these arguments; return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert umqtt.run(["tables", *map(str, arguments)]) == code, printed.getvalue()
    return printed.getvalue()
