"""The mapping from a payload's fields to readings, which JSON, CBOR, Protobuf, SenML and line protocol share.

A field is named by its path (:mod:`names`). The name of a metric is made of the topic's levels that tell series apart,
the values of the fields in `series`, and the field's path or the name that `metrics` gives it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from .json import Repeated, shown
from .names import escaped, level, split_path
from .number import is_no_value, number_in
from .reading import UNMATCHED, BadRecord, Reading, Result, Results, Topic
from .times import unix_ms

_MISSING = object()
_Path = tuple[str, ...]


def _path(path: str) -> _Path:
    return () if path == "." else tuple(split_path(path))


@dataclass
class _Taken:
    """What was found in an object: metrics, texts, and why some values are in neither."""

    metrics: dict[str, object] = field(default_factory=dict)
    texts: dict[str, object] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def value_at(content: object, path: str) -> object:
    """Return the value at a path, or None if there is none."""
    value = _at(content, _path(path))
    return None if value is _MISSING else value


class FieldMap:
    """What the keys of a rule say about a payload's fields: see docs/decoders.md.

    :param table: the rule's keys.
    :param zone: the zone of local times; None: UTC.
    :param variable_levels: the number of the topic's levels in names varies from topic to topic. Then a slash in a
        field's name is written with a backslash, and what is within `value` or a name in `each` begins with ``\\:``, so
        that no field looks like a level.
    """

    def __init__(self, table: Mapping[str, Any], zone: tzinfo | None = None, variable_levels: bool = False) -> None:
        self._is_variable = variable_levels or "each" in table
        self._within = "\\:" if variable_levels else "/"
        self._metrics = [(self._field(name), _path(path)) for name, path in table.get("metrics", {}).items()]
        self._texts = [(self._field(name), _path(path)) for name, path in table.get("texts", {}).items()]
        self._value = _path(table["value"]) if "value" in table else None
        self._root = _path(table["at"]) if "at" in table else () if not (table.keys() & _NAMED) else None
        self._each = _path(table["each"]) if "each" in table else None
        self._when = [(_path(path), _alternatives(value)) for path, value in table.get("when", {}).items()]
        self._has = [_path(path) for path in _list(table.get("has"))]
        self._where = [(_path(path), _alternatives(value)) for path, value in table.get("where", {}).items()]
        self._time = _path(table["time"]) if "time" in table else None
        self._unit, self._zone = table.get("unit"), zone
        self._device = [_path(path) for path in _list(table.get("device"))]
        self._series = [_path(path) for path in _list(table.get("series"))]
        self._boot = _path(table["boot"]) if "boot" in table else None
        self._seq = _path(table["seq"]) if "seq" in table else None
        self._seq_absent = table.get("seq_absent")
        self._map: Mapping[str, float] = table.get("map", {})
        self._numbers_in_text: bool = table.get("numbers_in_text", False)
        single = [path for path in (self._time, self._boot, self._seq) if path]
        self._used = {*single, *self._device, *self._series}

    def read(self, topic: Topic, content: object) -> Results:
        """Return what a payload's value contains: a reading, one for each element of `each`, or nothing.

        :raises BadRecord: it is not what the rule describes.
        """
        prefix = "" if topic.metric is None else f"{topic.metric}/"
        if (self._when or self._has) and not self.holds(content):
            return UNMATCHED
        if self._each is not None:
            return self._elements(content, prefix)
        if type(content) is not dict:
            return self._scalar(content, prefix)
        return self._reading(content, content, prefix)

    def holds(self, content: object) -> bool:
        """Return whether a payload's value fulfils the conditions of `when` and `has`."""
        if self._has and all(_at(content, path) is _MISSING for path in self._has):
            return False
        return _holds(self._when, content, content)

    def device_of(self, content: object) -> str:
        """Return the device that the fields of `device` name. Raises BadRecord if they do not."""
        return "/".join(self._id(content, content))

    def _scalar(self, content: object, prefix: str) -> Results:
        """Read a value that is no object: the topic alone names its metric."""
        if not prefix:
            raise BadRecord("not an object" if type(content) is not list else 'an array: each = "." reads its elements')
        taken = _Taken()
        self._walk_or_take(taken, prefix, content, ())
        return _result(taken) or []

    def _elements(self, content: object, prefix: str) -> list[Result]:
        assert self._each is not None
        found = _at(content, self._each)
        if type(found) is list:
            elements = [(prefix, element) for element in found]
        elif type(found) is dict and self._each:
            objects = {name: one for name, one in found.items() if type(one) is dict}
            used = {path[-1] for path in self._used if path[:-1] == self._each}
            rest = {name: one for name, one in found.items() if type(one) is not dict and name not in used}
            elements = [(f"{prefix}{level(name)}{self._within}", one) for name, one in objects.items()]
            elements += [(prefix, rest)] if rest else []
        else:
            elements = [(prefix, content)]
        results: list[Result] = []
        written: set[tuple[object, ...]] = set()
        for before, element in elements:
            if self._where and not _holds(self._where, element, content):
                continue
            try:
                one = self._reading(element, content, before)
            except BadRecord as error:
                one = error
            results += one if isinstance(one, list) else [_once(one, written) if isinstance(one, Reading) else one]
        return results

    def _reading(self, fields: object, whole: object, prefix: str) -> Reading | list[Result]:
        """Return the reading in an object; an empty list if there is no value in it."""
        if type(fields) is not dict:
            raise BadRecord(f"not an object: {shown(fields)}")
        if self._series:
            prefix += "".join(f"{self._level(fields, whole, path)}/" for path in self._series)
        taken = _Taken()
        if self._metrics:
            metrics = taken.metrics
            for name, path in self._metrics:
                value = fields.get(path[0], _MISSING) if len(path) == 1 else _at(fields, path)
                if type(value) is float or type(value) is int:
                    metrics[prefix + name] = value
                elif value is not _MISSING:
                    self._take(taken, prefix + name, value, named=True)
            if not metrics and not taken.refused and self._root is None and not self._texts:
                raise BadRecord(f"it has none of the fields {', '.join(sorted(map(_shown_path, self._metrics)))}")
        for name, path in self._texts:
            value = _at(fields, path)
            if isinstance(value, Repeated):
                taken.refused.append(f"text {shown(name)} is {shown(value)}")
            elif value is not _MISSING and value is not None:
                taken.texts[prefix + name] = value.hex() if isinstance(value, bytes) else value
        if self._value is not None:
            value = _at(fields, self._value)
            if value is _MISSING:
                raise BadRecord(f"it has no field {'.'.join(self._value)}")
            self._walk_or_take(taken, prefix, value, self._value)
        if self._root is not None:
            root = _at(fields, self._root) if self._root else fields
            below = _Taken()
            if root is not _MISSING:
                self._walk_or_take(below, prefix, root, self._root)
            _join(taken, below)
        reading = _result(taken)
        return self._identified(reading, fields, whole) if reading else []

    def _identified(self, reading: Reading, fields: dict, whole: object) -> Reading:
        refused, ts = reading.refused, None
        if self._time is not None:
            value = _at_either(fields, whole, self._time)
            if value is not None and value is not _MISSING:
                try:
                    ts = unix_ms(value, self._unit, self._zone)
                except BadRecord as error:
                    # The time of receipt is known, so a time that cannot be read costs only itself.
                    refused = [*refused, f"time: the field {'.'.join(self._time)} is {error}"]
        return Reading(
            reading.metrics,
            device_id="/".join(self._id(fields, whole)) if self._device else None,
            boot=_text(_at_either(fields, whole, self._boot), "boot", self._boot) if self._boot else None,
            seq=self._number(_at_either(fields, whole, self._seq), self._seq) if self._seq else None,
            ts=ts,
            extra=reading.extra,
            refused=refused,
        )

    def _id(self, fields: object, whole: object) -> list[str]:
        """Return the fields that make up the device's id; "-" for a missing one, if another is there."""
        values = [_at_either(fields, whole, path) for path in self._device]
        if all(value is _MISSING or value is None for value in values):
            names = ", ".join(map(".".join, self._device))
            raise BadRecord(f"device: the field {names} is missing")
        texts = [
            "-" if len(values) > 1 and (value is _MISSING or value is None) else _text(value, "device", path)
            for value, path in zip(values, self._device, strict=True)
        ]
        return texts if len(texts) == 1 else [level(text) for text in texts]

    def _number(self, value: object, path: _Path) -> int:
        if value is _MISSING and self._seq_absent is not None:
            return self._seq_absent
        if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 20:
            value = int(value)
        if type(value) is not int:
            raise BadRecord(f"seq: the field {'.'.join(path)} is missing, or not a whole number")
        return value

    def _level(self, fields: dict, whole: object, path: _Path) -> str:
        """Return a field of `series` as one level of a metric's name; an object as NAME=VALUE,…."""
        value = _at_either(fields, whole, path)
        if type(value) is dict:
            pairs = {name: one for name, one in value.items() if (*path, name) not in self._used}
            return ",".join(f"{_quoted(name)}={_quoted(_plain_text(one))}" for name, one in sorted(pairs.items()))
        return level(_plain_text(value))

    def _field(self, name: str) -> str:
        return name.replace("/", "\\/") if self._is_variable and "/" in name else name

    def _walk_or_take(self, taken: _Taken, prefix: str, value: object, path: _Path) -> None:
        if type(value) is dict or type(value) is list:
            is_inside = path == self._value and (prefix != "" or self._within != "/")
            inside = prefix.removesuffix("/") + self._within if is_inside else prefix
            self._walk(taken, inside, value, path)
        elif prefix:
            self._take(taken, prefix.removesuffix("/"), value, named=path == self._value)
        else:
            raise BadRecord(f"the field {'.'.join(path)} has no name: use metrics = {{ NAME = FIELD }}")

    def _walk(self, taken: _Taken, prefix: str, value: Any, path: _Path) -> None:
        """Take every value below an object or array. `prefix` is the name so far, with its last slash or dot."""
        for key, one in value.items() if type(value) is dict else enumerate(value):
            below = (*path, str(key))
            if below in self._used:
                continue
            if type(key) is str:
                key = self._field(escaped(key))
            name = f"{prefix}{key}"
            if type(one) is float or type(one) is int:
                taken.metrics[name] = one
            elif type(one) is dict or type(one) is list:
                self._walk(taken, f"{name}.", one, below)
            else:
                self._take(taken, name, one, named=False)

    def _take(self, taken: _Taken, name: str, value: object, *, named: bool) -> None:
        """Take one value.

        :param named: the rule names this field, so it is a number, or a text that stands for one.
        """
        keeps_null = named and self._value is None
        if isinstance(value, bool):
            taken.metrics[name] = float(value)
        elif isinstance(value, int | float):
            taken.metrics[name] = value
        elif value is None:
            if keeps_null:
                taken.metrics[name] = None
        elif isinstance(value, str):
            number = number_in(value, self._map) if named or self._numbers_in_text else self._map.get(value)
            if number is not None:
                taken.metrics[name] = number
            elif not named:
                if value:
                    taken.texts[name] = value
            elif is_no_value(value):
                if keeps_null:
                    taken.metrics[name] = None
            elif self._value is not None:
                taken.texts[name] = value
            else:
                taken.refused.append(f"metric {shown(name)} is not a number: {shown(value)}")
        elif isinstance(value, bytes) and not named:
            taken.texts[name] = value.hex()
        else:
            taken.refused.append(f"metric {shown(name)} is not a number: {shown(value)}")


_NAMED = frozenset(("metrics", "texts", "value"))


def _result(taken: _Taken) -> Reading | None:
    """Return a reading, or None if there is no value in it: only null, NaN, empty texts."""
    if taken.texts or taken.refused or any(value is None or value == value for value in taken.metrics.values()):
        return Reading(taken.metrics, extra=taken.texts, refused=taken.refused)
    return None


def _join(taken: _Taken, more: _Taken) -> None:
    """Add what was found below `at` to what the rule names; a name that is in both has the rule's field."""
    taken.refused += more.refused
    for mine, others in ((taken.metrics, more.metrics), (taken.texts, more.texts)):
        for name, value in others.items():
            if mine and name in mine:
                taken.refused.append(f"metric {shown(name)} is another field in the rule: {shown(value)}")
            else:
                mine[name] = value


def _once(reading: Reading, written: set[tuple[object, ...]]) -> Reading:
    """Refuse the metrics that an earlier element of the same message has with the same time."""
    at = reading.device_id, reading.boot, reading.seq, reading.ts
    again = {name for name in (*reading.metrics, *reading.extra) if (*at, name) in written}
    written.update((*at, name) for name in (*reading.metrics, *reading.extra))
    if not again:
        return reading
    metrics = {name: value for name, value in reading.metrics.items() if name not in again}
    extra = {name: value for name, value in reading.extra.items() if name not in again}
    why = [
        f"metric {shown(name)} has another value at the same time: {shown(reading.metrics.get(name))}; `series` names "
        "the fields that tell series apart"
        for name in sorted(again)
    ]
    return Reading(metrics, *at[:3], ts=at[3], extra=extra, refused=[*reading.refused, *why])


def _list(value: object) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _alternatives(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _holds(conditions: list[tuple[_Path, list[object]]], fields: object, whole: object) -> bool:
    for path, allowed in conditions:
        value = _at_either(fields, whole, path)
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            return False
    return True


def _at(fields: object, path: _Path) -> object:
    """Return the value at a path, or _MISSING if there is none."""
    for name in path:
        if type(fields) is dict:
            fields = fields.get(name, _MISSING)
        elif type(fields) is list and name.isascii() and name.isdecimal() and len(name) < 10:
            fields = fields[int(name)] if int(name) < len(fields) else _MISSING
        else:
            return _MISSING
    return fields


def _at_either(fields: object, whole: object, path: _Path) -> object:
    """Return the value at a path of an element, or of the whole message if the element does not have it."""
    value = _at(fields, path)
    return _at(whole, path) if value is _MISSING and whole is not fields else value


def _text(value: object, what: str, path: _Path) -> str:
    if type(value) is not str and type(value) is not int:
        raise BadRecord(f"{what}: the field {'.'.join(path)} is missing, or neither text nor a whole number")
    return str(value)


def _plain_text(value: object) -> str:
    """Return a value of `series` as text; a missing one is empty."""
    if value is _MISSING or value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise BadRecord(f"series: neither text nor a number: {shown(value)}")


def _quoted(text: str) -> str:
    for character in "\\/,=":
        text = text.replace(character, f"\\{character}")
    return text


def _shown_path(one: tuple[str, _Path]) -> str:
    return ".".join(one[1])
