"""Reads configuration files in TOML with arrays of tables: ``[[decoder]]``, ``[[collector]]``, ``[[rule]]``."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import UsageError

_INTEGERS = range(-(1 << 63), 1 << 63)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. No text in it has U+0000, which no name and no path can have; whole numbers have 64 bits.

    :raises UsageError: the file cannot be read, is not TOML, or has other values.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    # A number of thousands of digits is a plain ValueError.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    for key, value in _values("", content):
        if isinstance(value, str) and "\0" in value:
            # Without the value, which may be a password.
            raise UsageError(f"{path}: {key!a} holds a character that no name has")
        if isinstance(value, int) and value not in _INTEGERS:
            raise UsageError(f"{path}: {key!a} is a whole number of more than 64 bits")
    return content


def _values(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every name and value below a value, each with the key that it belongs to."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield name, name
            yield from _values(name, one)
    elif isinstance(value, list):
        for one in value:
            yield from _values(key, one)
    else:
        yield key, value


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
