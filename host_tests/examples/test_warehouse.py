"""The dbt project of the examples, run by dbt.

It needs an environment of its own: `pip install "dbt-core<1.12" dbt-duckdb "deltalake[pyarrow]"`, and dbt on the PATH.
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
from example_programs import EXAMPLES

sys.path.extend(str(Path(__file__).resolve().parents[1] / "spark" / folder) for folder in (".", "pipeline"))

from gold_fleet import fleet, written

pytestmark = [
    pytest.mark.tier(3),
    pytest.mark.skipif(shutil.which("dbt") is None, reason="dbt is not on the PATH: see the file's first lines"),
]


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
    """Planted: a mean of means."""
    written(tmp_path / "tables", fleet(1)[:4], random.Random(1), kill=False)
    environment = os.environ | {"UMQTT_TABLES": str(tmp_path / "tables"), "FLEET_DUCKDB": str(project / "fleet.duckdb")}
    done = subprocess.run(["dbt", "build"], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert daily(project) == expected(tmp_path / "tables") and len(daily(project)) > 3
