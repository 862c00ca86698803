"""Every example of docs/sql.md runs and prints what it says; every question has the same answer in every engine."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from gold_tables import fleet
from story_tables import story

from examples import Example, examples
from spark_ingest.errors import UsageError
from spark_ingest.sql import open_tables, spark_views

duckdb = pytest.importorskip("duckdb")
_PAGE = Path(__file__).resolve().parents[3] / "docs" / "sql.md"
_EXAMPLES = examples(_PAGE)
_QUESTIONS = re.findall(r"^### (.*?)$|^```sql\n(.*?)^```", _PAGE.read_text(), re.M | re.S)

Rows = list[tuple]


def _titled() -> Iterator[tuple[str, str]]:
    title = ""
    for heading, text in _QUESTIONS:
        title = heading or title
        if text:
            yield title, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("story")
    story(made)
    return made


@pytest.fixture(scope="module")
def engines(folder: Path, spark) -> dict[str, Callable[[str], Rows]]:
    opened = open_tables(folder / "tables")
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    query = QueryBuilder()
    for name, table in opened.items():
        connection.register(name, table.to_pyarrow_dataset())
        query = query.register(name, table)
    assert spark_views(spark, folder / "tables") == list(opened)

    def by_spark(text: str) -> Rows:
        return [tuple(row.values()) for row in spark.sql(text).toArrow().to_pylist()]

    def by_duckdb(text: str) -> Rows:
        return [tuple(row.values()) for row in connection.sql(text).to_arrow_table().to_pylist()]

    def by_delta_rs(text: str) -> Rows:
        return [tuple(row[name] for name in row) for row in _rows(query.execute(text))]

    # Each question is asked once per engine, as nobody changes the tables.
    return {"Spark": cache(by_spark), "DuckDB": cache(by_duckdb), "delta-rs": cache(by_delta_rs)}


def _rows(reader) -> list[dict]:
    import pyarrow as pa

    return pa.table(reader.read_all()).to_pylist()


def _plain(value: object) -> object:
    """Normalise what engines disagree about in times: the name of UTC, and the type of a length of time."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple) and len(value) == 3:  # Arrow's month, day, nanoseconds
        return value[1] * 86_400.0 + value[2] / 1e9
    return round(value, 9) if isinstance(value, float) else value


@pytest.mark.parametrize("example", [pytest.param(one, id=one.heading) for one in _EXAMPLES])
def test_an_example_of_the_page_prints_what_it_says(
    example: Example, folder: Path, spark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "polars" in example.source:
        pytest.importorskip("polars")
    monkeypatch.chdir(folder)
    exec(compile(example.source, str(_PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert example.expected, "an example that says nothing proves nothing"
    missing = [text for text in example.expected if text not in printed]
    assert not missing, printed


@pytest.mark.parametrize("question", [pytest.param(text, id=title) for title, text in _titled()])
def test_a_question_has_the_same_answer_in_every_engine(question: str, engines: dict[str, Callable]) -> None:
    answers = {name: [tuple(map(_plain, row)) for row in ask(question)] for name, ask in engines.items()}
    assert answers["Spark"] == answers["DuckDB"] == answers["delta-rs"]
    assert answers["Spark"], "a question that nothing answers proves nothing"


def test_the_answers_are_the_story(engines: dict[str, Callable]) -> None:
    asked = dict(_titled())
    for ask in engines.values():
        [[readings, identities]] = ask(asked["Is every reading there once?"])
        assert readings == identities == 360 + 360 + 340 + 150
        assert ask(asked["Gaps"]) == [("well-1", "4-0000000000000002", 100, 119, 20)]
        assert [row[:2] for row in ask(asked["Late readings"])] == [("pump-8", 111)]
        assert [(row[0], row[2]) for row in ask(asked["Silent devices"])] == [("gate-3", "offline")]
        assert ask(asked["Memory before a reboot"]) == [("pump-7", 5, "watchdog", 90_000.0 - 400 * 119)]
        means = [row[2] for row in ask(asked["Hourly means"]) if row[0] == "well-1"]
        assert means == [12, 13, 14, 15, 16, 17]


def test_spark_sees_the_rows_that_delta_has_not_the_files_that_lie_there(spark, tmp_path: Path) -> None:
    # A name that Spark could take for a pattern, and that a URL would escape.
    tables = tmp_path / "the {story} told*, 50 % é"
    fleet(tables, devices=3, days=0.05)
    path = str(tables / "gold" / "devices")
    # Rewritten: the old file is still there, and an older file has fewer columns.
    table = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, table.slice(0, 1).drop_columns(["fw"]), mode="overwrite", schema_mode="overwrite")
    write_deltalake(path, table.slice(1, 1), mode="append", schema_mode="merge")
    write_deltalake(path, table.slice(2, 1).drop_columns(["fw"]), mode="append", schema_mode="merge")
    assert len(list(Path(path).glob("*.parquet"))) == 4
    spark_views(spark, tables)
    seen = spark.sql("SELECT device_id, fw FROM devices").toArrow().to_pylist()
    rows = enumerate(table.to_pylist())
    expected = [{"device_id": row["device_id"], "fw": row["fw"] if i == 1 else None} for i, row in rows]
    assert sorted(seen, key=str) == sorted(expected, key=str)


def test_where_no_tables_are_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tables in .*: give the --tables folder of umqtt ingest"):
        open_tables(tmp_path)
