"""The places where a Delta table may be."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ingest.errors import UsageError
from spark_ingest.tables.delta import Delta

_SCHEMA = pa.schema([("seq", pa.int64()), ("day", pa.date32())])
_ROWS = pa.table({"seq": [1], "day": [date(2026, 1, 1)]}, schema=_SCHEMA)


def test_a_table_is_where_its_path_says_whatever_a_url_would_make_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c?d%e%zz*{f}<g>'h'\"~`i&j$k;l:m@n=o+p,q!(r)ä"
    assert Delta(folder / "table", _SCHEMA, "day").append_once(_ROWS, "app", 1)
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
