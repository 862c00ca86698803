"""The dbt project and the Airflow DAG of the examples work with dbt and Airflow.

Both take minutes and need environments of their own: `pip install "dbt-core<1.12" dbt-duckdb "deltalake[pyarrow]"` in
one, `pip install apache-airflow` in another. Put the two programs on the PATH.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from example_programs import EXAMPLES, with_constants

sys.path.extend(str(Path(__file__).resolve().parents[1] / "spark" / folder) for folder in (".", "pipeline"))

from gold_fleet import fleet, written
from spark_helpers import fill, record

pytestmark = [
    pytest.mark.tier(3),
    pytest.mark.skipif(shutil.which("dbt") is None, reason="dbt is not on the PATH: see the file's first lines"),
]
airflow = pytest.mark.skipif(
    shutil.which("airflow") is None, reason="airflow is not on the PATH, in an environment of its own"
)
java = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java: apt install openjdk-17-jre-headless")


def daily(folder: Path) -> dict[tuple, tuple]:
    with duckdb.connect(str(folder / "fleet.duckdb"), read_only=True) as connection:
        rows = connection.sql("SELECT device_id, metric, reading_day, n, mean FROM daily").fetchall()
    return {row[:3]: (int(row[3]), round(row[4], 9)) for row in rows}


def expected(tables: Path) -> dict[tuple, tuple]:
    found: dict[tuple, list[float]] = {}
    for row in DeltaTable(str(tables / "gold" / "windows")).to_pyarrow_table().to_pylist():
        total = found.setdefault((row["device_id"], row["metric"], row["window_start"].date()), [0, 0.0])
        total[0] += row["n"]
        total[1] += row["sum"]
    return {key: (int(n), round(total / n, 9)) for key, (n, total) in found.items()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "dbt", tmp_path / "dbt"))


def test_the_daily_table_of_dbt_has_every_window_once(tmp_path, project):
    """Planted: the mean of means is computed."""
    written(tmp_path / "tables", fleet(1)[:4], random.Random(1), kill=False)
    environment = os.environ | {"UMQTT_TABLES": str(tmp_path / "tables"), "FLEET_DUCKDB": str(project / "fleet.duckdb")}
    done = subprocess.run(["dbt", "build"], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert daily(project) == expected(tmp_path / "tables") and len(daily(project)) > 3


@airflow
@java
def test_the_dag_brings_what_was_stored_into_the_tables_and_into_the_daily_table_of_dbt(tmp_path, project):
    """Planted: dbt runs before the tables are written; the mean of means is computed."""
    readings = [
        record(f"pump-{i % 3}", "1-0", i // 3, ts=1_795_000_000_000 + i * 1_000_000, m={"t": i}) for i in range(300)
    ]
    fill(tmp_path / "spool" / "north", [readings])
    places = {name: str(tmp_path / name.lower()) for name in ("SPOOL", "TABLES", "CHECKPOINT", "DBT")}
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "umqtt_daily.py").write_text(with_constants("airflow/umqtt_daily.py", **places))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
    }
    environment.pop("PYTHONPATH", None)

    def run(*arguments: str) -> None:
        done = subprocess.run(["airflow", *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]

    run("db", "migrate")
    run("dags", "test", "umqtt_daily")
    tables = tmp_path / "tables"
    assert DeltaTable(str(tables / "silver")).count() == len(readings)
    assert daily(project) == expected(tables) and sum(n for n, _ in daily(project).values()) == len(readings)
