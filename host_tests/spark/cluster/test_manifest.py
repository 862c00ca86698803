"""The Compose file's command of Spark, run as a process: a cluster reads the spool and fills tables on an S3 server.

The S3 server and Spark's processes get their secrets from files, as the containers do.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, use
from spark_helpers import SPARK_LIMIT_S
from standalone import Cluster
from test_cluster import java, publish_all, small

from spark_ingest.location import located
from spark_ingest.tables import identities

SERVICES = yaml.safe_load((Path(__file__).parents[3] / "tools" / "clusters" / "compose.yaml").read_text())["services"]
SECRET = "a-secret-that-no-log-may-show"
DEFAULTS = f"""\
spark.authenticate true
spark.authenticate.secret {SECRET}
spark.network.crypto.enabled true
"""
UMQTT = [sys.executable, "-m", "umqtt_cli"]

__all__ = ["java"]


@pytest.mark.tier(3)  # a Spark cluster of its own; test_cluster.py has one too
@pytest.mark.timeout(900)
def test_the_chain_of_the_compose_file_fills_tables_in_an_object_store(tmp_path: Path, monkeypatch):
    """Planted: the master has another secret; ingest reads another folder than the collector writes."""
    made = publish_all(tmp_path / "spool" / "collector")
    conf, credentials = tmp_path / "conf", tmp_path / "credentials"
    for folder in (conf, tmp_path / "java"):
        folder.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    credentials.write_text(f"[default]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    with ObjectStore() as store:
        use(store, monkeypatch)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        with Cluster(tmp_path / "cluster") as cluster:
            here = {
                "spark://spark:7077": cluster.url,
                "=/spool": f"={tmp_path / 'spool'}",
                "=/checkpoint": f"={tmp_path / 'checkpoint'}",
            }

            command = list(SERVICES["ingest"]["command"])
            for there, place in here.items():
                command = [one.replace(there, place) for one in command]
            ended = subprocess.run(
                [*UMQTT, *command, "--once", *small(tmp_path / "java")],
                cwd=tmp_path,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
                capture_output=True,
                text=True,
                timeout=SPARK_LIMIT_S,
                check=False,
            )
            said = ended.stdout + ended.stderr
            assert ended.returncode == 0, said
        tables = next(one for one in SERVICES["ingest"]["command"] if one.startswith("--tables=")).split("=")[1]
        rows = list(identities(located(tables)))
    assert set(rows) == made and len(rows) == len(made), "0 lost, 0 duplicated"
    logs = "".join(path.read_text() for path in (tmp_path / "cluster").rglob("*") if path.name in ("log", "stderr"))
    assert "authentication" in logs
    assert SECRET not in logs + said and SECRET_KEY not in logs + said
