"""DuckDB in this process."""

from typing import Any

import duckdb


def engine(**settings: Any) -> duckdb.DuckDBPyConnection:
    """Return an empty database in memory that loads no extension, and fetches nothing from the network."""
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    return duckdb.connect(config=offline | settings)
