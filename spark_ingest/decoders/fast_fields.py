"""The fast reader for JSON objects of which a rule names the metrics: msgspec, many payloads at once.

Doubtful payloads (a name that may be said twice, a value that is no plain number, any error) are left to
:class:`spark_ingest.decoders.fields.FieldMap`, so the result is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET

from .fast_decode import EXACT_END, TOGETHER, TS_END, UNREADABLE, objects_in_lines
from .names import split_path
from .reading import BadRecord
from .times import unix_ms

_KEYS = frozenset(("topic", "format", "metrics", "time", "unit", "zone", "skip_retained"))
_NUMBER = Annotated[float, msgspec.Meta(gt=-float(EXACT_END), lt=float(EXACT_END))] | msgspec.UnsetType | None
_TIME = int | float | str | msgspec.UnsetType | None


def fast_reader(table: Mapping[str, Any]) -> "FastReader | None":
    """Return the fast reader of a rule, or None if the rule does more than name metrics and a time."""
    if table["format"] != "json" or "metrics" not in table or {key for key in table if key[0] != "#"} - _KEYS:
        return None
    paths = [split_path(path) for path in table["metrics"].values()]
    kinds: list[Any] = [_NUMBER] * len(paths)
    if "time" in table:
        paths.append(split_path(table["time"]))
        kinds.append(_TIME)
    names = {name for path in paths for name in path}
    # Others may be indices of an array, or are written with a backslash in JSON.
    if any(
        name.isdecimal() or not name.isascii() or not name.isprintable() or set('"\\') & set(name) for name in names
    ):
        return None
    # No path goes through another one's field, and none is there twice.
    if any(one[: len(other)] == other for i, one in enumerate(paths) for j, other in enumerate(paths) if i != j):
        return None
    return FastReader(table, paths, kinds)


class FastReader:
    """The fast reader of a rule.

    :param paths: of the metrics, and of the time if the rule has one.
    :param kinds: the type of the field at each path.
    """

    def __init__(self, table: Mapping[str, Any], paths: list[list[str]], kinds: list[Any]) -> None:
        self._width = len(table["metrics"])
        self._has_time, self._unit = "time" in table, table.get("unit")
        self._zone = ZoneInfo(table["zone"]) if "zone" in table else None
        # Each name as it is written, with the columns that have it, and the objects that have it with what stands for
        # a missing one.
        self._names: dict[bytes, tuple[list[int], list[tuple[Callable[[Any], Any], object]]]] = {}
        attributes = [""] * len(paths)
        fields = [(path, kind, i) for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))]
        kind = self._struct(fields, "", attributes)
        self._decode_lines = msgspec.json.Decoder(kind).decode_lines
        take = attrgetter(*attributes)
        self._take = take if len(attributes) > 1 else lambda one: (take(one),)

    def _struct(
        self, fields: list[tuple[list[str], Any, int]], above: str, attributes: list[str]
    ) -> type[msgspec.Struct]:
        """Return the type of an object.

        :param fields: the path, the type and the column of each field in it.
        :param above: the object's own attribute, with a dot.
        :param attributes: gets the attribute of each column.
        """
        made: list[tuple[str, Any, Any]] = []
        names = list(dict.fromkeys(path[0] for path, _, _ in fields))
        for i, name in enumerate(names):
            attribute = f"{above}f{i}"
            columns, objects = self._names.setdefault(f'"{name}"'.encode(), ([], []))
            mine = [(path[1:], kind, column) for path, kind, column in fields if path[0] == name]
            if mine[0][0]:
                inner = self._struct(mine, f"{attribute}.", attributes)
                missing = inner()
                objects.append((attrgetter(attribute), missing))
                made.append((f"f{i}", inner, msgspec.field(default_factory=lambda missing=missing: missing)))
            else:
                ((_, kind, column),) = mine
                columns.append(column)
                attributes[column] = attribute
                made.append((f"f{i}", kind, UNSET))
        return msgspec.defstruct("Fields", made, rename={f"f{i}": name for i, name in enumerate(names)}, gc=False)

    def read(self, payloads: Sequence[bytes]) -> tuple[list[float | None], list[int | None], list[int]]:
        """Read payloads.

        :return: the metrics of those that were read, in the order of the rule, UNSET where there is none; their times
            in Unix milliseconds; and the indices of the payloads that are left to the slow reader.
        """
        metrics: list[float | None] = []
        times: list[int | None] = []
        left: list[int] = []
        for start in range(0, len(payloads), TOGETHER):
            some = payloads[start : start + TOGETHER]
            if not self._read(some, metrics, times):
                left += [i for i, one in enumerate(some, start) if not self._read([one], metrics, times)]
        return metrics, times, left

    def _read(self, payloads: Sequence[bytes], metrics: list[float | None], times: list[int | None]) -> bool:
        """Add what is in payloads to `metrics` and `times`; return False, and add nothing, if one is doubtful."""
        lines, count = b"\n".join(payloads), len(payloads)
        # With an escape, a name could be there twice in two spellings.
        if b"\\" in lines:
            return False
        try:
            if not lines.isascii():
                # The decoder does not look at texts that it skips.
                lines.decode("utf-8")
            objects = objects_in_lines(lines, count, self._decode_lines)
            if objects is None:
                return False
            columns = list(zip(*map(self._take, objects), strict=True))
            found: Sequence[int | None] = (None,) * count
            values = columns[: self._width]
            if self._has_time:
                found = [self._unix_ms(value) for value in columns[-1]]
        except (*UNREADABLE, BadRecord):
            return False
        missing = [len([None for value in column if value is UNSET]) for column in columns]
        for name, (own, inner) in self._names.items():
            # As often as it was read: no object has it twice.
            there = sum(count - missing[i] for i in own)
            there += sum(sum(take(one) is not nothing for one in objects) for take, nothing in inner)
            if lines.count(name) > there:
                return False
        if all(missing[: self._width]) and any(set(row) == {UNSET} for row in zip(*values, strict=True)):
            return False
        metrics += chain.from_iterable(zip(*values, strict=True))
        times += found
        return True

    def _unix_ms(self, value: Any) -> int | None:
        # Milliseconds, as most send them, need no look at the unit.
        if type(value) is int and self._unit is None and 10**11 <= value < TS_END:
            return value
        return None if value is None or value is UNSET else unix_ms(value, self._unit, self._zone)
