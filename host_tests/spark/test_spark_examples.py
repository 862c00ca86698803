"""The programs in the folder examples that write to the tables or read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from example_programs import EXAMPLES, finished, with_constants
from own_session import run_pipeline
from spark_helpers import collector_process, fill, record
from story_tables import story
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command

from spark_ingest.pipeline.change.rebuild import rebuild


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story(tmp_path_factory.mktemp("story"))


def test_every_reading_of_the_sensor_program_is_in_the_table_once(spark, mosquitto: int, tmp_path: Path) -> None:
    """Planted: every start has the same boot; seq does not count."""
    kinds = ["cpython", "cpython"]
    try:
        micropython_command()
        kinds.append("micropython")
    except MicroPythonMissing:
        pass
    with collector_process(mosquitto, tmp_path / "spool") as collector:
        collector.wait_for_line("subscribed")
        for kind in kinds:
            constants = {"BROKER": f"mqtt://127.0.0.1:{mosquitto}", "INTERVAL_S": 0}
            assert finished("sensor_to_table.py", tmp_path, kind, **constants) == ["delivered 10"]
        collector.terminate()
    places = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    assert run_pipeline(spark, *places, "--once") == 0
    silver = DeltaTable(tmp_path / "tables" / "silver").to_pandas()
    assert set(silver.device_id) == {"well-1"}
    starts = {boot: sorted(rows.seq) for boot, rows in silver.groupby("boot")}
    assert list(starts.values()) == [list(range(10))] * len(kinds)
    assert sorted(boot.partition("-")[0] for boot in starts) == [str(1 + number) for number in range(len(kinds))]
    assert all(metrics == [("level_m", 12.5)] for metrics in silver.metrics) and silver.clock_ok.all()


def test_the_query_tells_who_lost_readings_and_whose_came_late(
    spark, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: an inner join, which leaves out devices without late readings."""
    source = with_constants("spark_query.py", TABLES=str(tables))
    exec(compile(source, "spark_query.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == [
        "well-1: gaps, 20 lost, 0 late",
        "pump-8: ok, 0 lost, 111 late",
        "gate-3: offline, 0 lost, 0 late",
        "pump-7: ok, 0 lost, 0 late",
    ]


def test_the_job_adds_columns_and_leaves_rows_out_once_a_reading_and_again_at_a_rebuild(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: rows that skip the job in the path of one task, or at a rebuild; a column that is not stored."""
    config = tmp_path / "ingest.toml"
    config.write_text(f"transform = '{EXAMPLES / 'ingest' / 'my_job.py'}'\n")
    celsius = {0: 20.0, 1: -127.0, 2: None, 3: 30.0}
    places = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    for number in range(2):
        made = [
            # The second time so much that there are two tasks and a shuffle.
            record(device, "1-a", 10 * number + seq, m={"temp_c": value, "rssi": -60}, x="y" * 200_000 * number)
            for device in ("north-pump-7", "south-pump-1", "test-1")
            for seq, value in celsius.items()
        ]
        fill(tmp_path / "spool" / "north", [[payload] for payload in made + made[:3]])
        assert run_pipeline(spark, *places, "--once", "--config", config) == 0
    wanted = [
        (f"{site}-pump-{last}", 10 * number + seq, None if value in (None, -127.0) else value * 1.8 + 32, site)
        for site, last in (("north", 7), ("south", 1))
        for number in range(2)
        for seq, value in celsius.items()
    ]

    def rows() -> list[tuple]:
        found = DeltaTable(tmp_path / "tables" / "silver").to_pyarrow_table()
        return sorted(tuple(row.values()) for row in found.select(["device_id", "seq", "temp_f", "site"]).to_pylist())

    assert rows() == sorted(wanted)
    monkeypatch.setattr("spark_ingest.pipeline.change.rebuild.start_session", lambda *_: spark)
    monkeypatch.setattr("spark_ingest.pipeline.change.rebuild.stop_session", lambda _session: None)
    rebuild(tmp_path / "tables", config=config)
    assert rows() == sorted(wanted)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("transform = 1", "has no function transform(readings)"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def transform(readings): return readings.drop('seq')", "the transform removes the column seq"),
        ("def transform(readings): return readings.withColumn('seq', readings.boot)", "the column seq string"),
        ("def transform(readings): return readings.where('nowhere = 1')", "the transform fails: "),
        ("def transform(readings): raise KeyError('x')", "the transform fails: KeyError: 'x'"),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_a_line_before_anything_is_read(spark, tmp_path, capfd, job, said) -> None:
    (tmp_path / "job.py").write_text(job)
    (tmp_path / "ingest.toml").write_text('transform = "job.py"\n')
    (tmp_path / "spool").mkdir()
    places = ["--spool", tmp_path / "spool", "--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    assert run_pipeline(spark, *places, "--once", "--config", tmp_path / "ingest.toml") == 2
    assert said in capfd.readouterr().err


def test_every_cell_of_the_notebook_runs(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a column that gold does not have; a mean of means."""
    monkeypatch.chdir(tables.parent)
    notebook = json.loads((EXAMPLES / "fleet.ipynb").read_text())
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "a notebook is kept without what it has shown"
            exec(compile("".join(cell["source"]), f"fleet.ipynb, {cell['id']}", "exec"), names)
    assert set(names["attention"].device_id) >= {"gate-3", "well-1"}
    assert names["gaps"].query("open").missing.tolist() == [20]
    assert names["hourly"]["well-1"].tolist() == [12, 13, 14, 15, 16, 17]
