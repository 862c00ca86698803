"""The places where a Delta table may be, and its log."""

import os
import time
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from spark_helpers import append_once

from spark_ingest.errors import UsageError
from spark_ingest.tables.delta import Delta

_SCHEMA = pa.schema([("seq", pa.int64()), ("day", pa.date32())])
_ROWS = pa.table({"seq": [1], "day": [date(2026, 1, 1)]}, schema=_SCHEMA)


def test_a_table_is_where_its_path_says_whatever_a_url_would_make_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c?d%e%zz*{f}<g>'h'\"~`i&j$k;l:m@n=o+p,q!(r)ä"
    assert append_once(Delta(folder / "table", _SCHEMA, "day"), _ROWS, "app", 1, "day")
    assert Delta(folder / "table", _SCHEMA, "day").dataset().to_table() == _ROWS
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert {path.name for path in (folder / "table").iterdir()} == {"_delta_log", "day=2026-01-01"}


@pytest.mark.parametrize("wrong", ["[", "]", "^", "|", "\\", "%20"])
def test_a_path_that_delta_takes_for_another_is_refused_before_anything_is_made(tmp_path: Path, wrong: str) -> None:
    folder = tmp_path / f"a{wrong}b"
    with pytest.raises(UsageError) as refused:
        Delta(folder / "table", _SCHEMA, "day")
    assert f"{wrong!r} in its path; choose another --tables" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_table_shows_what_another_process_has_committed_at_once(tmp_path: Path) -> None:
    """Planted: the log is listed every minute only."""
    mine, other = Delta(tmp_path / "table", _SCHEMA, "day"), Delta(tmp_path / "table", _SCHEMA, "day")
    for batch_id in range(3):
        assert not mine.has("app", batch_id)
        assert append_once(other, _ROWS, "app", batch_id, "day")
        assert mine.has("app", batch_id) and not append_once(mine, _ROWS, "app", batch_id, "day")
        assert mine.dataset().count_rows() == batch_id + 1


def test_a_table_finds_the_newest_version_though_the_one_after_its_own_has_left_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the log is never listed; the append then writes a version that no reader looks at."""
    mine, other = Delta(tmp_path / "table", _SCHEMA, "day"), Delta(tmp_path / "table", _SCHEMA, "day")
    for batch_id in range(3):
        append_once(other, _ROWS, "app", batch_id, "day")
    other.delta.create_checkpoint()
    for version in range(3):
        (tmp_path / "table" / "_delta_log" / f"{version:020d}.json").unlink()
    monkeypatch.setattr(Delta, "LIST_EVERY_S", 0.0)
    assert mine.has("app", 2) and append_once(mine, _ROWS, "app", 3, "day")
    assert Delta(tmp_path / "table", _SCHEMA, "day").dataset().count_rows() == 4


def test_versions_of_more_than_an_hour_ago_leave_the_log_at_a_checkpoint(tmp_path: Path) -> None:
    """Planted: a commit that never removes them."""
    table, log = Delta(tmp_path / "table", _SCHEMA, "day"), tmp_path / "table" / "_delta_log"
    for batch_id in range(150):
        assert append_once(table, _ROWS, "app", batch_id, "day")
    two_hours_ago = time.time() - 7200
    for path in log.iterdir():
        os.utime(path, (two_hours_ago, two_hours_ago))
    for batch_id in range(150, 210):
        assert append_once(table, _ROWS, "app", batch_id, "day")
    left = sorted(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    assert 0 < left[0] <= 150 and left[-1] == table.delta.version() == 210
    assert Delta(tmp_path / "table", _SCHEMA, "day").dataset().count_rows() == 210
