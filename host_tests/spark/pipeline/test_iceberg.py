"""`umqtt tables register`: Iceberg sees the same rows as Delta, whatever is done to a table or killed.

`make test` kills at a third of all moments, UMQTT_FULL_SWEEPS=1 at every one.
"""

import json
import os
import random
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pytest
from deltalake import DeltaTable, write_deltalake
from gold_fleet import QUERY, Killed, fleet, table_of, telemetry, written
from object_store import ObjectStore, use
from spark_helpers import RECEIVED_MS
from umqtt_kit import __main__ as umqtt

from spark_ingest.errors import UsageError
from spark_ingest.gold import Gold
from spark_ingest.location import OPTIONS, located, open_table
from spark_ingest.lock import FolderLock
from spark_ingest.pipeline.change.delete_device import delete_device
from spark_ingest.pipeline.change.rebuild import rebuild, recount
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.sql import FOLDERS
from spark_ingest.tables.schemas import SCHEMAS
from spark_ingest.tables.upkeep import compact, retain, vacuum

pytest.importorskip("pyiceberg")

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import StaticTable
from pyiceberg.utils.config import Config
from story_tables import story

from examples import examples
from spark_ingest.tables import iceberg

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
MESSAGES = pa.concat_tables(fleet(1)).slice(0, 200)
BATCHES = [MESSAGES.slice(start, 40) for start in range(0, MESSAGES.num_rows, 40)]
NEXT_DAY = table_of([(*telemetry("z", "1-z", 0, None, None, t=1.0), RECEIVED_MS + 86_400_000)], 10**6)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    written(folder, BATCHES[:3], random.Random(1), kill=False)
    return folder


@pytest.fixture
def tables(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "tables of ä"))


def by_iceberg(tables: Path, name: str) -> StaticTable:
    """Open a table as engines without a catalog do: by its folder."""
    return StaticTable.from_metadata(str(tables / "iceberg" / "umqtt" / name))


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.select(sorted(table.schema.names)).to_pylist()))


def require_equal(tables: Path) -> None:
    for name, folder in FOLDERS.items():
        path = tables / folder
        if not DeltaTable.is_deltatable(str(path)):
            assert not load_catalog("x", uri=uri(tables)).table_exists(("umqtt", name)), name
            continue
        assert rows(by_iceberg(tables, name).scan().to_arrow()) == rows(DeltaTable(str(path)).to_pyarrow_table()), name


def uri(tables: Path) -> str:
    return f"sqlite:///{tables / 'iceberg' / 'catalog.db'}"


@pytest.mark.parametrize("seed", range(20 if FULL else 1))
def test_rows_are_those_of_delta_after_whatever_is_done(tables, seed):
    """Planted: files that Delta removed stay; a file that Iceberg has is added again; the partition is left out."""
    rng = random.Random(seed)
    waiting = [*BATCHES[3:], NEXT_DAY]
    now = datetime.fromtimestamp(RECEIVED_MS / 1000, UTC) + timedelta(days=1, hours=1)

    def append() -> None:
        number = len(BATCHES) + 1 - len(waiting)
        BatchWriter(tables, tables / "state", report=lambda _line: None).write(waiting.pop(0), number, QUERY)
        Gold(tables).update()

    deeds = [lambda: compact(tables), lambda: delete_device(tables, f"d{rng.randrange(6)}", None)]
    deeds += [lambda: recount(tables), lambda: rebuild(tables), lambda: retain(tables, 1, now)]
    deeds += [lambda: shutil.rmtree(tables / "gold")]
    order = [append] * len(waiting) + (deeds if FULL else rng.sample(deeds, 3))
    rng.shuffle(order)
    for deed in order:
        deed()
        if rng.random() < 0.4:
            iceberg.register(tables)
            if rng.random() < 0.5:
                vacuum(tables, keep_hours=0)
            require_equal(tables)
    iceberg.register(tables)
    vacuum(tables, keep_hours=0)
    require_equal(tables)
    assert not any(one.added or one.removed for one in iceberg.register(tables).values()), "nothing is new"


def only(tables: Path, *names: str) -> None:
    for name in {folder.split("/")[0] for folder in FOLDERS.values()} - set(names):
        shutil.rmtree(tables / name, ignore_errors=True)


def write(tables: Path, batch: pa.Table, batch_id: int) -> None:
    BatchWriter(tables, tables / "state", report=lambda _line: None).write(batch, batch_id, QUERY)


def read(tables: Path, name: str = "silver") -> list[str]:
    return rows(by_iceberg(tables, name).scan().to_arrow())


def test_a_run_that_is_killed_anywhere_leaves_the_old_rows_or_the_new_and_the_next_has_the_new(tables, monkeypatch):
    """Planted: removals and additions are two snapshots; the hint is only written with a new snapshot."""
    at = {"step": 0, "dies": 0}

    def step() -> None:
        at["step"] += 1
        if at["step"] == at["dies"]:
            raise Killed

    def dying(function):
        def run(*given, **named):
            step()
            result = function(*given, **named)
            step()
            return result

        return run

    only(tables, "silver")
    iceberg.register(tables)
    old = read(tables)
    write(tables, BATCHES[3], 3)
    compact(tables)
    write(tables, NEXT_DAY, 4)
    only(tables, "silver")
    new = rows(DeltaTable(str(tables / "silver")).to_pyarrow_table())
    monkeypatch.setattr(SqlCatalog, "commit_table", dying(SqlCatalog.commit_table))
    monkeypatch.setattr(PyArrowFile, "create", dying(PyArrowFile.create))
    monkeypatch.setattr(iceberg, "replace_file", dying(iceberg.replace_file))
    start = Path(shutil.copytree(tables / "iceberg", tables / "start"))

    def run(dies: int) -> None:
        shutil.rmtree(tables / "iceberg")
        shutil.copytree(start, tables / "iceberg")
        at.update(step=0, dies=dies)
        iceberg.register(tables)

    run(dies=0)
    steps, seen = at["step"], set()
    for dies in range(1, steps + 1, 1 if FULL else 3):
        with pytest.raises(Killed):
            run(dies)
        at["dies"] = 0
        for table in (load_catalog("umqtt", uri=uri(tables)).load_table("umqtt.silver"), by_iceberg(tables, "silver")):
            found = rows(table.scan().to_arrow())
            assert found in (old, new), dies
            seen.add(found == new)
        iceberg.register(tables)
        require_equal(tables)
    assert seen == {False, True} and steps > 8


def test_beside_a_pipeline_that_writes_each_snapshot_is_a_version_of_delta_and_none_is_older_than_the_last(tables):
    """Planted: the snapshot names the version that Delta has when it is committed."""
    only(tables, "silver")
    path, done = tables / "silver", threading.Event()

    def pipeline() -> None:
        try:
            for number, batch in enumerate([*BATCHES[3:], NEXT_DAY], 3):
                write(tables, batch, number)
                compact(tables)
        finally:
            done.set()

    thread = threading.Thread(target=pipeline)
    thread.start()
    versions = []
    while not done.is_set() or versions[-1] != DeltaTable(str(path)).version():
        iceberg.register(tables)
        table = by_iceberg(tables, "silver")
        versions.append(int(table.current_snapshot().summary[iceberg.DELTA_VERSION]))
        assert read(tables) == rows(DeltaTable(str(path), version=versions[-1]).to_pyarrow_table())
    thread.join()
    iceberg.register(tables)
    require_equal(tables)
    assert versions == sorted(versions)


@pytest.mark.parametrize("moment", ["existing", "parquet_file_to_data_file"])
def test_whoever_comes_second_at_a_commit_changes_nothing_and_says_so(tables, monkeypatch, moment):
    """Planted: pyiceberg repeats the commit on the other's snapshot, and rows are there twice; the version is
    looked up before the snapshot, and the older version comes back.
    """
    only(tables, "silver")
    iceberg.register(tables)
    write(tables, BATCHES[3], 3)
    only(tables, "silver")
    real, held, others = getattr(iceberg, moment), iceberg.FolderLock, []

    def slow(*given):
        result = real(*given)
        if given[-1] == ["silver"] or moment != "existing":
            result = list(result) if moment == "existing" else result
            if not others:
                others.append(True)
                write(tables, NEXT_DAY, 4)
                only(tables, "silver")
                # As on another machine, which does not see this lock.
                monkeypatch.setattr(iceberg, "FolderLock", lambda *_given: threading.Lock())
                iceberg.register(tables)
                monkeypatch.setattr(iceberg, "FolderLock", held)
        return iter(result) if moment == "existing" else result

    monkeypatch.setattr(iceberg, moment, slow)
    with pytest.raises(UsageError, match="registered by another process too: run it again"):
        iceberg.register(tables)
    require_equal(tables)
    with FolderLock(tables / "iceberg", "--tables", "umqtt tables register"), pytest.raises(UsageError, match="in use"):
        iceberg.register(tables)


def test_a_column_that_is_added_is_null_in_older_rows(tables):
    """Planted: the columns are those that the table began with."""
    only(tables, "logs")
    iceberg.register(tables)
    logs = DeltaTable(str(tables / "logs")).to_pyarrow_table()
    more = logs.append_column("added", pa.array(["x"] * logs.num_rows))
    write_deltalake(str(tables / "logs"), more, mode="append", schema_mode="merge")
    iceberg.register(tables)
    require_equal(tables)
    assert by_iceberg(tables, "logs").scan().to_arrow()["added"].null_count == logs.num_rows


def test_a_table_that_is_made_anew_with_other_partitions_is_made_anew_here_too(tables):
    """Planted: rows are read into the partitions that the table began with."""
    only(tables, "gold")
    iceberg.register(tables)
    path = str(tables / "gold" / "windows")
    windows = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, windows, mode="overwrite", schema_mode="overwrite", partition_by=[])
    iceberg.register(tables)
    require_equal(tables)


def test_filters_find_what_they_find_by_delta(tables):
    """Planted: a partition is recorded a day late; for an hour nothing is recorded."""
    write(tables, NEXT_DAY, 3)
    iceberg.register(tables)
    day = datetime.fromtimestamp(RECEIVED_MS / 1000, UTC).date() + timedelta(days=1)
    table = by_iceberg(tables, "silver")
    on_the_day = table.scan(row_filter=f"received_date = '{day}'")
    assert on_the_day.to_arrow()["device_id"].to_pylist() == ["z"] and len(list(on_the_day.plan_files())) == 1
    windows = DeltaTable(str(tables / "gold" / "windows")).to_pyarrow_table()
    for hour in {*windows["window_hour"].to_pylist()}:
        found = by_iceberg(tables, "windows").scan(row_filter=f"window_hour = {hour}").to_arrow()
        assert rows(found) == rows(windows.filter(pa_dataset.field("window_hour") == hour))
    delta = DeltaTable(str(tables / "silver")).to_pyarrow_table().to_pylist()
    for device in {row["device_id"] for row in delta}:
        expected = [row["seq"] for row in delta if row["device_id"] == device and row["seq"] > 3]
        found = table.scan(row_filter=f"device_id = '{device}' and seq > 3").to_arrow()
        assert sorted(found["seq"].to_pylist()) == sorted(expected)


def test_metadata_is_kept_as_long_as_a_vacuum_keeps_files_and_no_longer(tables, monkeypatch):
    """Planted: a snapshot is removed by its own age; nothing is removed; manifests of removed snapshots stay;
    those that only list removals accumulate; a snapshot that is no version of Delta stays.
    """
    only(tables, "logs")
    monkeypatch.setitem(iceberg._PROPERTIES, "commit.manifest.min-count-to-merge", "3")
    folder = tables / "iceberg" / "umqtt" / "logs" / "metadata"
    iceberg.register(tables)
    first = by_iceberg(tables, "logs").current_snapshot().snapshot_id
    few = DeltaTable(str(tables / "logs")).to_pyarrow_table()
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    write_deltalake(str(tables / "logs"), few, mode="append")
    iceberg.register(tables)
    replaced_ms = by_iceberg(tables, "logs").current_snapshot().timestamp_ms
    with monkeypatch.context() as clock:
        clock.setattr(iceberg, "time", SimpleNamespace(time=lambda: (replaced_ms - 0.5) / 1000))
        iceberg.register(tables, keep_hours=0)
    assert by_iceberg(tables, "logs").scan(snapshot_id=first).to_arrow().num_rows == few.num_rows, "just replaced"
    sizes, manifests = [], []
    for _ in range(8):
        write_deltalake(str(tables / "logs"), few, mode="append")
        compact(tables)
        iceberg.register(tables, keep_hours=0)
        sizes.append(len(list(folder.iterdir())))
        assert not any(one.summary.get(iceberg._UNFINISHED) for one in by_iceberg(tables, "logs").snapshots())
    assert sizes[-1] == sizes[-2] < 20
    for _ in range(5):
        write_deltalake(str(tables / "logs"), few, mode="append")
        iceberg.register(tables)
        logs = by_iceberg(tables, "logs")
        manifests.append(len(logs.current_snapshot().manifests(logs.io)))
    assert max(manifests) < 4
    require_equal(tables)


def test_the_command_uses_a_catalog_of_pyicebergs_configuration_and_says_what_is_wrong(tables, monkeypatch, capsys):
    """Planted: the requested namespace or catalog is not the one that is used."""
    only(tables, "silver", "logs")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tables.parent / 'lake.db'}")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    given = ["tables", "register", "--tables", str(tables)]
    assert umqtt.run([*given, "--catalog", "lake", "--namespace", "fleet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["logs"] == {"rows": 1, "files added": 1, "files removed": 0}
    table = load_catalog("lake").load_table("fleet.silver")
    assert rows(table.scan().to_arrow()) == rows(DeltaTable(str(tables / "silver")).to_pyarrow_table())
    assert not (tables / "iceberg" / "catalog.db").exists()

    def fails(*more: str, folder: Path = tables) -> str:
        assert umqtt.run(["tables", "register", "--tables", str(folder), *more]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert "cannot open the catalog sea" in fails("--catalog", "sea")
    assert umqtt.run(given) == 0
    moved = tables.rename(tables.with_name("moved"))
    assert "umqtt.silver was registered in another folder" in fails(folder=moved)
    assert "fleet.silver was registered in another folder" in fails(
        "--catalog", "lake", "--namespace", "fleet", folder=moved
    )
    assert "choose a path without '#'" in fails(folder=moved.rename(tables.with_name("#1")))
    assert "there are no tables" in fails(folder=made_empty(tables))
    assert not (tables / "iceberg").exists()


def test_tables_on_s3_are_shown_by_a_catalog_elsewhere(made, tmp_path, monkeypatch):
    """Planted: the files are named as those of a folder are; metadata that nothing names stays."""
    rows_made = DeltaTable(str(made / "bronze")).to_pyarrow_table()
    fleet = located("s3://readings/fleet")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path / 'lake.db'}")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__REGION", "us-east-1")
    with ObjectStore() as store:
        use(store, monkeypatch)
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ENDPOINT", store.endpoint)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        bronze = fleet / "bronze"
        monkeypatch.setattr(iceberg, "SCHEMAS", {"bronze": SCHEMAS["bronze"]})
        stray = fleet / "iceberg" / "umqtt" / "bronze" / "metadata" / "stray.avro"
        for number in range(3):
            write_deltalake(
                str(bronze), rows_made, mode="append", partition_by=["received_date"], storage_options=OPTIONS
            )
            if number == 1:
                stray.write_bytes(b"of a run that was killed")
                open_table(bronze).optimize.compact()
            iceberg.register(fleet, "lake", keep_hours=0)
            open_table(bronze).vacuum(0, dry_run=False, enforce_retention_duration=False)
            shown = load_catalog("lake").load_table("umqtt.bronze").scan().to_arrow()
            assert rows(shown) == rows(open_table(bronze).to_pyarrow_table())
            assert shown.num_rows == (number + 1) * rows_made.num_rows
        assert not stray.exists()
        assert iceberg.register(fleet, "lake") == {"bronze": (shown.num_rows, 0, 0)}


def made_empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


_PAGE = Path(__file__).resolve().parents[3] / "docs" / "catalogs.md"


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("story")
    story(folder)
    iceberg.register(folder / "tables")
    return folder


@pytest.mark.parametrize("example", examples(_PAGE), ids=lambda example: example.heading)
def test_an_example_of_the_page_prints_what_it_says(example, told, monkeypatch, capsys):
    """Planted: a table is named after its folder, `gold/gaps`."""
    monkeypatch.chdir(told)
    exec(compile(example.source, str(_PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert example.expected and not [text for text in example.expected if text not in printed], printed
