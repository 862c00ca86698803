"""Which rows were appended to a table since a position in its history.

Rows get into the tables below gold only by appends. Compaction moves rows without changing them; retention and the
removal of a device only remove rows. So none of these shows here.

A position is one number, so that an application transaction can hold it: a version of the table, or the first files of
a version, for a table that is counted from its beginning.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import DeltaError

from ..location import Location, is_table, may_pass, open_table

_FILES_BITS = 20
_APPENDS = ("WRITE", "STREAMING UPDATE", "CREATE TABLE", "CREATE OR REPLACE TABLE")
NOWHERE = -1
"""The position before anything was counted; also that of a table that does not exist."""


class LogGone(Exception):
    """The log or a file of an old version was removed: only the whole table can be read."""


class Step(NamedTuple):
    """A step through a table: the files (relative to the table) that lead to the position `at`, with their rows."""

    at: int
    files: list[str]
    rows: int
    size: int


def position(version: int, files: int = -1) -> int:
    """Return the position after the first `files` files of a version, in the order of their names; -1: all of them."""
    return version << _FILES_BITS | files + 1


def newest(path: Location) -> int:
    """Return the position of the newest version of the table; NOWHERE if there is no table."""
    return position(open_table(path).version()) if is_table(path) else NOWHERE


def steps(path: Location, after: int, up_to: int) -> Iterator[Step]:
    """Yield the steps from one position to another.

    :raises LogGone: a version between the two, or the version that was being counted, is not there any more.
    """
    if up_to == NOWHERE or after == up_to:
        return
    # From the beginning: the files of one version, of which the last one completes it.
    version, files = (_split(up_to)[0], 0) if after == NOWHERE else _split(after)
    if files >= 0:
        added = _files_of(path, version)
        for number, (name, rows, size) in enumerate(added[files:], files + 1):
            at = position(version, number if number < len(added) else -1)
            yield Step(at, [name], rows, size)
            if at == up_to:
                return
        if len(added) <= files:
            yield Step(position(version), [], 0, 0)
    while version < _split(up_to)[0]:
        version += 1
        try:
            lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        except FileNotFoundError as error:
            raise LogGone(f"the log of {path} does not hold version {version} any more") from error
        added = _added([json.loads(line) for line in lines if line])
        yield Step(position(version), *_sums(added))


def files_at(path: Location, at: int) -> list[str]:
    """Return the files of the table at a position.

    :raises LogGone: the version is not there any more.
    """
    if at == NOWHERE:
        return []
    version, files = _split(at)
    return [name for name, _rows, _size in _files_of(path, version)][: None if files < 0 else files]


def _split(at: int) -> tuple[int, int]:
    return at >> _FILES_BITS, (at & (1 << _FILES_BITS) - 1) - 1


def _files_of(path: Location, version: int) -> list[tuple[str, int, int]]:
    try:
        actions = pa.table(open_table(path, version).get_add_actions(flatten=True))
    except DeltaError as error:
        if may_pass(error):
            raise
        raise LogGone(f"{path} has no version {version} any more") from error
    columns = (actions[name].to_pylist() for name in ("path", "num_records", "size_bytes"))
    return sorted((unquote(name), rows or 0, size) for name, rows, size in zip(*columns, strict=True))


def _sums(added: list[dict]) -> tuple[list[str], int, int]:
    rows = sum(json.loads(one.get("stats") or "{}").get("numRecords", 0) for one in added)
    return [unquote(one["path"]) for one in added], rows, sum(one["size"] for one in added)


def _added(actions: list[dict]) -> list[dict]:
    operation = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), "WRITE")
    if operation not in _APPENDS or any(action.get("remove", {}).get("dataChange") for action in actions):
        return []
    return [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
