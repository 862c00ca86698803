"""`umqtt tables register --unity`: each Delta table is registered once, as the API's document demands.

The server is a stub after that document; polars, which has a client of its own, reads through it.
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from gold_fleet import fleet, written
from pyspark.sql.types import StructField
from umqtt_kit import __main__ as umqtt
from umqtt_testkit.ports import reserved_port
from unity_server import TOKEN, UnityServer, unity_server

from spark_ingest.sql import FOLDERS
from spark_ingest.tables.unity import TOKEN_VARIABLE

# pyspark's name of a type -> Unity's, where they differ.
_DIFFERENT = {"integer": "INT"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    written(folder, fleet(1)[:3], random.Random(1), kill=False)
    return folder


@pytest.fixture
def server() -> Iterator[UnityServer]:
    with unity_server() as server:
        yield server


def rows(frame: pl.DataFrame) -> list[str]:
    return sorted(map(repr, frame.to_dicts()))


def run(server: UnityServer, tables: Path, *more: str) -> int:
    given = ["--tables", str(tables), "--unity", server.url, "--catalog", "main", *more]
    return umqtt.run(["tables", "register", *given])


def test_each_table_is_registered_once_and_its_rows_are_read_by_its_name(tables, server, capsys, monkeypatch):
    """Planted: no look for the table before it is created; the location is the folder of all tables."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    server.token = TOKEN
    assert run(server, tables, "--namespace", "fleet", "--json") == 0
    made = {name for name, folder in FOLDERS.items() if DeltaTable.is_deltatable(str(tables / folder))}
    assert json.loads(capsys.readouterr().out) == {name: {"new": 1} for name in made}
    catalog = pl.Catalog(server.url, bearer_token=TOKEN, require_https=False)
    assert {table.name for table in catalog.list_tables("main", "fleet")} == made
    for name in made:
        read = catalog.scan_table("main", "fleet", name, credential_provider=None).collect()
        assert rows(read) == rows(pl.read_delta(str(tables / FOLDERS[name])))
    before = len(server.requests)
    assert run(server, tables, "--namespace", "fleet", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {name: {"new": 0} for name in made}
    assert not [request for request in server.requests[before:] if not request.startswith("GET ")]


def test_columns_are_described_as_spark_understands_them(tables, server):
    """Planted: a struct's fields are left out of the text; the partition is not marked."""
    assert run(server, tables) == 0
    for name, table in server.tables.items():
        delta = DeltaTable(str(tables / FOLDERS[name.rpartition(".")[2]]))
        assert [column["name"] for column in table["columns"]] == [field.name for field in delta.schema().fields]
        for column in table["columns"]:
            field = StructField.fromJson(json.loads(column["type_json"]))
            kind = field.dataType.typeName()
            assert (field.name, field.nullable) == (column["name"], column["nullable"])
            assert column["type_text"] == field.dataType.simpleString()
            assert column["type_name"] == _DIFFERENT.get(kind, kind.upper())
        partitions = {c["partition_index"]: c["name"] for c in table["columns"] if "partition_index" in c}
        assert [partitions[index] for index in sorted(partitions)] == delta.metadata().partition_columns


def test_what_cannot_be_registered_is_one_line_without_the_token(tables, server, capsys, monkeypatch, tmp_path):
    """Planted: the token is sent to another machine in the clear; a refusal shows the request."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)

    def fails(*more: str, folder: Path = tables) -> str:
        assert umqtt.run(["tables", "register", "--tables", str(folder), *more]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and TOKEN not in line and "secret" not in line
        return line

    there = ["--unity", server.url, "--catalog"]
    assert "has no catalog sea" in fails(*there, "sea")
    assert "is no name of a catalog" in fails(*there, "main.x")
    assert "is no name of a catalog" in fails(*there, "main", "--namespace", "a/b")
    assert "--unity needs --catalog" in fails("--unity", server.url)
    assert "two catalogs" in fails(*there, "main", "--hive", "thrift://127.0.0.1")
    assert "would show the token" in fails("--unity", "http://unity.example", "--catalog", "main")
    for url in ("unity.example", "https://", "https://name:secret@host", "https://host/api", "ftp://host"):
        assert "--unity is https://HOST" in fails("--unity", url, "--catalog", "main")
    assert "cannot reach" in fails("--unity", f"http://127.0.0.1:{reserved_port()}", "--catalog", "main")
    assert "there are no tables" in fails(*there, "main", folder=tmp_path)
    server.token = "another"
    assert f"Invalid access token; put a token that may do it into {TOKEN_VARIABLE}" in fails(*there, "main")
    server.token = None
    for told in ((200, b"[]"), (200, b"<html>"), (404, b"not here"), (500, b""), (302, b"{}"), (200, b" " * (5 << 20))):
        server.told = told
        assert f"it answered {told[0]}" in fails(*there, "main")
    server.told = (400, json.dumps({"error_code": "X", "message": "no\x1b[2J\nsecret"}).encode())
    assert "no\\x1b[2J" in fails(*there, "main")
    server.told = None
    assert run(server, tables) == 0
    capsys.readouterr()
    moved = Path(shutil.copytree(tables, tmp_path / "moved"))
    assert "was registered in another folder than" in fails(*there, "main", folder=moved)
    assert "engines read" in fails(*there, "main", folder=moved.rename(tmp_path / "with space"))
