"""SQL of viewers: what it may read, and what it may not do."""

import io
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
from served_console import Reply, Serve, ServedConsole
from umqtt_console import explore


@pytest.fixture
def console(serve: Serve, story_of_four: Path) -> ServedConsole:
    return serve(story_of_four)


def ask(console: ServedConsole, sql: str, form: str = "json") -> Reply:
    return console.post("query", {"sql": sql, "form": form})


def test_rows_come_with_their_types(console: ServedConsole) -> None:
    sql = """SELECT device_id, count(*) AS n, max(event_ts) AS at, avg(metrics['temp_c']) AS mean,
        'NaN'::DOUBLE AS odd, 9007199254740993 AS large FROM silver GROUP BY ALL ORDER BY 1"""
    found = ask(console, sql).json
    assert [one["type"] for one in found["columns"]] == ["text", "number", "time", "number", "number", "number"]
    assert [(row[0], row[1]) for row in found["rows"]] == [
        ("gate-3", 150),
        ("pump-7", 360),
        ("pump-8", 360),
        ("well-1", 340),
    ]
    assert (
        found["rows"][1][4:] == ["nan", 9007199254740992.0] and found["head"]["rows"] == 4 and not found["head"]["cut"]
    )


def test_many_rows_are_cut_and_said(console: ServedConsole) -> None:
    found = ask(console, "FROM range(1000000)").json
    assert found["head"]["cut"] and len(found["rows"]) == explore.MOST_ROWS["json"]


def test_results_are_downloaded_as_csv_and_parquet(console: ServedConsole) -> None:
    sql = "SELECT device_id, metrics, received_ts FROM silver ORDER BY received_ts, device_id LIMIT 10"
    csv, parquet = ask(console, sql, "csv"), ask(console, sql, "parquet")
    assert "attachment" in csv.headers["content-disposition"]
    assert pyarrow.csv.read_csv(io.BytesIO(csv.body)).num_rows == 10
    assert pyarrow.parquet.read_table(io.BytesIO(parquet.body)).column_names == ["device_id", "metrics", "received_ts"]
    assert ask(console, sql, "xls").status == 400


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM devices",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; SELECT 2",
        "COPY devices TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "SET memory_limit = '100GB'",
        "PRAGMA database_list",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM tables",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
        "SELECT getenv('HOME')",
        "not sql at all",
        "",
        "x" * 30_000,
    ],
)
def test_it_can_only_read_tables(console: ServedConsole, sql: str) -> None:
    refused = ask(console, sql)
    assert refused.status == 422 and refused.message
    assert console.get("fleet")["totals"]["devices"] == 4


def test_a_slow_or_large_statement_is_ended_and_the_rest_goes_on(
    console: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = explore.Explorer.run
    monkeypatch.setattr(explore.Explorer, "run", lambda self, sql, form: run(self, sql, form, 1.0))
    slow = ask(console, "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
    assert slow.status == 422 and "longer than 1 s" in slow.message
    monkeypatch.undo()
    large = ask(console, "SELECT list(range) FROM range(400000000)")
    assert large.status == 422, large.body[:200]
    assert console.get("fleet")["totals"]["devices"] == 4
