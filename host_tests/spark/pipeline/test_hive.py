"""`umqtt tables register --hive`: each Delta table is registered once, in a real Hive metastore.

The metastore is the one in pyspark's jars, as a server, with its database in memory.
"""

import json
import os
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from gold_fleet import fleet, written
from proof.needs import needs_java
from spark_helpers import Process
from umqtt_kit import __main__ as umqtt
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import eventually

from spark_ingest.sql import FOLDERS

pytest.importorskip("pyiceberg")
pytest.importorskip("thrift")

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import GetTableRequest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

_JARS = Path(pyspark.__file__).parent / "jars"


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    written(folder, fleet(1)[:3], random.Random(1), kill=False)
    return folder


def listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def port(tmp_path) -> Iterator[int]:
    """Start a metastore; provide its port."""
    port = reserved_port()
    options = {
        "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        # Its logger of that kind needs a jar that pyspark does not have.
        "hive.async.log.enabled": "false",
        "hive.metastore.warehouse.dir": str(tmp_path / "warehouse"),
        "derby.stream.error.file": str(tmp_path / "derby.log"),
        "java.io.tmpdir": str(tmp_path),
    }
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    command = [java, "-XX:-UsePerfData", *(f"-D{name}={value}" for name, value in options.items())]
    command += ["-cp", f"{_JARS}/*", "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", port]
    with (tmp_path / "log").open("wb") as log, Process(command, stderr=log, cwd=tmp_path):
        eventually(lambda: listens(port), lambda: f"a metastore: {(tmp_path / 'log').read_text()[-2000:]}")
        yield port


@needs_java
@pytest.mark.tier(3)  # the metastore takes half a minute of a core to start
def test_each_table_is_registered_once_as_an_external_table_of_delta(tables, port, capsys, tmp_path):
    """Planted: a table without EXTERNAL, which the metastore then takes for its own; the folder of all tables."""
    given = ["--hive", f"thrift://127.0.0.1:{port}", "--namespace", "fleet"]
    register = ["tables", "register", "--tables", str(tables), *given, "--json"]
    assert umqtt.run(register) == 0
    made = {name for name, folder in FOLDERS.items() if DeltaTable.is_deltatable(str(tables / folder))}
    assert json.loads(capsys.readouterr().out) == {name: {"new": 1} for name in made}
    transport = TBufferedTransport(TSocket("127.0.0.1", port))
    transport.open()
    metastore = Client(TBinaryProtocol(transport))
    assert set(metastore.get_all_tables("fleet")) == made
    for name in made:
        table = metastore.get_table_req(GetTableRequest(dbName="fleet", tblName=name)).table
        assert table.tableType == "EXTERNAL_TABLE" and table.parameters["spark.sql.sources.provider"] == "delta"
        assert table.sd.serdeInfo.parameters["path"] == f"file://{tables / FOLDERS[name]}"
    assert umqtt.run(register) == 0
    assert json.loads(capsys.readouterr().out) == {name: {"new": 0} for name in made}

    moved = shutil.copytree(tables, tmp_path / "moved")
    assert umqtt.run(["tables", "register", "--tables", str(moved), *given]) == 2
    line = capsys.readouterr().err
    assert "is another than the Delta table" in line and line.count("\n") == 1
    metastore.drop_table("fleet", "silver", True)
    transport.close()
    assert DeltaTable.is_deltatable(str(tables / "silver")), "its files are the metastore's to remove"


def test_what_cannot_be_registered_is_one_line(tables, capsys):
    def fails(*more: str) -> str:
        assert umqtt.run(["tables", "register", "--tables", str(tables), *more]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert "refused" in fails("--hive", f"thrift://127.0.0.1:{reserved_port()}")
    for url in ("127.0.0.1:9083", "thrift://", "thrift://a:b", "thrift://name@host", "http://host"):
        assert "--hive is thrift://HOST" in fails("--hive", url)
    assert "--catalog is not for --hive" in fails("--hive", "thrift://127.0.0.1", "--catalog", "main")
