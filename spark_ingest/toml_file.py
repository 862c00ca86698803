"""Reads configuration files in TOML with arrays of tables: ``[[decoder]]``, ``[[collector]]``, ``[[rule]]``."""

from pathlib import Path
from typing import Any

from umqtt_cli import toml_file

from .errors import UsageError


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as :func:`umqtt_cli.toml_file.read_toml` does. :raises UsageError: it cannot."""
    try:
        return toml_file.read_toml(path)
    except ValueError as error:
        raise UsageError(str(error)) from error


def take_tables(
    path: Path, content: dict[str, Any], name: str, needs: str, *, required: bool = True
) -> list[dict[str, Any]]:
    """Remove the tables ``[[name]]`` from a file's content and return them.

    :param needs: what each table needs, for the error message.
    :param required: whether there must be at least one.
    :raises UsageError: `name` is something else, or there is no table although one is required.
    """
    tables = content.pop(name, [])
    good = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if not good or (required and not tables):
        raise UsageError(f"{path} has no [[{name}]]: each needs {needs}")
    return tables
