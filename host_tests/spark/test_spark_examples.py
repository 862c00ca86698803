"""The programs in the folder examples that write to the tables or read them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "report"))

from deltalake import DeltaTable
from example_programs import EXAMPLES, finished, with_constants
from own_session import run_pipeline
from spark_helpers import collector_process
from story_tables import story
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command


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
