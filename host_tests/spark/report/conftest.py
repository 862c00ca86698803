"""A fleet's gold tables and its page, made once for all tests that only read them."""

from pathlib import Path

import pytest
from gold_tables import MADE_AT, fleet

from spark_ingest.report import write_report


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the tables of 40 devices over 3 days."""
    return fleet(tmp_path_factory.mktemp("tables"), devices=40, days=3)


@pytest.fixture(scope="session")
def page_file(tables: Path) -> Path:
    out = tables / "report.html"
    write_report(tables, out, made_at=MADE_AT)
    return out
