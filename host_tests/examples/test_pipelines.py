"""The declarative pipeline of the examples: each reading is in its table once, also after a second run.

It needs Spark Connect's packages: `pip install 'pyspark[pipelines]'`.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as pa_dataset
import pyspark
import pytest
from example_programs import EXAMPLES
from proof.needs import needs_java
from test_batch import BATCHES, QUERY, workload

from spark_ingest.pipeline.write.batch import BatchWriter

pytestmark = [
    pytest.mark.tier(3),
    needs_java,
    pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="pip install 'pyspark[pipelines]'"),
]


def test_each_reading_is_in_the_table_once_and_each_value_in_its_daily_mean(tmp_path):
    """Two of these cannot run at once: Spark Connect listens on port 15002."""
    batches, made, _ = workload(seed=5)
    writer = BatchWriter(tmp_path / "lake", tmp_path / "state", format="parquet", report=lambda _line: None)
    project = Path(shutil.copytree(EXAMPLES / "pipelines", tmp_path / "project"))
    specification = project / "spark-pipeline.yml"
    text = specification.read_text()
    assert text.count("file:///var/lib/umqtt/pipeline") == 1
    specification.write_text(text.replace("file:///var/lib/umqtt/pipeline", f"file://{tmp_path}/storage"))
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "UMQTT_LAKE": str(tmp_path / "lake"),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [home / "bin" / "spark-pipelines", "run", "--conf", "spark.sql.catalogImplementation=hive"]
    command += ["--conf", "spark.ui.enabled=false"]
    for number in range(BATCHES):
        writer.write(batches[number], number, QUERY)
        if number == 0:
            continue
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        rows = pa_dataset.dataset(project / "spark-warehouse" / "readings").to_table().to_pylist()
        seen = {(row["device_id"], row["seq"]) for row in rows}
        assert len(rows) == len(seen)
        daily = pa_dataset.dataset(project / "spark-warehouse" / "daily").to_table().to_pylist()
        assert sum(row["n"] for row in daily) == len(rows)
    assert seen == {(device, seq) for device, _, seq in made}
