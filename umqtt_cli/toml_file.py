"""Reads configuration files in TOML."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_INTEGERS = range(-(1 << 63), 1 << 63)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. No text in it has U+0000, which no name and no path can have; whole numbers have 64 bits.

    :raises ValueError: the file cannot be read, is not TOML, or has other values.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    # A number of thousands of digits is a plain ValueError.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    for key, value in _values("", content):
        if isinstance(value, str) and "\0" in value:
            # Without the value, which may be a password.
            raise ValueError(f"{path}: {key!a} holds a character that no name has")
        if isinstance(value, int) and value not in _INTEGERS:
            raise ValueError(f"{path}: {key!a} is a whole number of more than 64 bits")
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
