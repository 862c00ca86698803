"""The fast reader for JSON objects of which a rule names the metrics: msgspec, four times as fast as :mod:`fields`.

Doubtful payloads (a name that may be said twice, a value that is no plain number, any error) are left to
:class:`spark_ingest.decoders.fields.FieldMap`, so the result is the same.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from .fast_decode import EXACT_END
from .names import split_path
from .reading import BadRecord
from .times import unix_ms

Read = Callable[[bytes], tuple[int | None, tuple[float | None, ...]] | None]
"""Returns the time in Unix milliseconds and the metrics in the order of the rule, UNSET where there is none.

It returns None for a payload that it leaves to the slow reader.
"""

_KEYS = frozenset(("topic", "format", "metrics", "time", "unit", "skip_retained"))
_NUMBER = Annotated[float, msgspec.Meta(gt=-float(EXACT_END), lt=float(EXACT_END))] | msgspec.UnsetType | None
_TIME = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)] | msgspec.UnsetType | None


def fast_reader(table: Mapping[str, Any]) -> Read | None:
    """Return the fast reader of a rule, or None if the rule does more than name metrics and a time."""
    if table["format"] != "json" or "metrics" not in table or {key for key in table if key[0] != "#"} - _KEYS:
        return None
    paths = [split_path(path) for path in table["metrics"].values()]
    paths += [split_path(table["time"])] if "time" in table else []
    made = _struct(paths, "time" in table)
    names = sorted({name for path in paths for name in path})
    if made is None or any(name.isdecimal() or not name.isascii() or not name.isprintable() for name in names):
        return None
    decode, get, has_time, unit = *made, "time" in table, table.get("unit")
    keys = [f'"{name}"'.encode() for name in names]
    nothing = (UNSET,) * len(table["metrics"])

    def read(payload: bytes) -> tuple[int | None, tuple[float | None, ...]] | None:
        # Beyond ASCII and with escapes, a name could be there twice in two spellings.
        if b"\\" in payload or not payload.isascii():
            return None
        for key in keys:
            if payload.count(key) > 1:
                return None
        try:
            values = get(decode(payload))
            if not has_time:
                return None if values == nothing else (None, values)
            time, values = values[-1], values[:-1]
            if values == nothing:
                return None
            if time is None or time is UNSET:
                return None, values
            # Milliseconds, as most send them, need no look at the unit.
            return time if unit is None and 10**11 <= time < 10**14 else unix_ms(time, unit, None), values
        except (msgspec.DecodeError, BadRecord, AttributeError, RecursionError):
            return None

    return read


def _struct(paths: list[list[str]], has_time: bool) -> tuple[Callable[[bytes], Any], Callable[[Any], tuple]] | None:
    """Return a decoder of objects with fields at `paths`, and what takes these fields from an object.

    None if a path goes through another one's field, or two are the same.
    """
    tree: dict[str, Any] = {}
    attributes: list[str] = []
    for i, path in enumerate(paths):
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                return None
        if path[-1] in inner:
            return None
        inner[path[-1]] = _TIME if has_time and i == len(paths) - 1 else _NUMBER
        attributes.append("")
    for i, path in enumerate(paths):
        attributes[i] = ".".join(f"f{list(_at(tree, path[:depth])).index(name)}" for depth, name in enumerate(path))
    take = attrgetter(*attributes)
    return msgspec.json.Decoder(_made(tree)).decode, take if len(paths) > 1 else lambda one: (take(one),)


def _at(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path:
        tree = tree[name]
    return tree


def _made(tree: dict[str, Any]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for i, kind in enumerate(tree.values()):
        if isinstance(kind, dict):
            # An object that is missing has no fields.
            kind = _made(kind)
            fields.append((f"f{i}", kind, msgspec.field(default_factory=kind)))
        else:
            fields.append((f"f{i}", kind, UNSET))
    return msgspec.defstruct("Fields", fields, rename={f"f{i}": name for i, name in enumerate(tree)}, gc=False)
