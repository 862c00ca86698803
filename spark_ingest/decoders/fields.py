"""The mapping from an object's fields to a reading, which JSON, CBOR and Protobuf payloads share.

A field is named by its path, with dots: ``SI7021.Temperature``, ``meters.0.power``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from .json import shown
from .reading import BadRecord, Reading

# A Unix time of at least this is in milliseconds: in seconds it would be in the year 5138.
_MILLISECONDS_FROM = 1e11


@dataclass(frozen=True)
class FieldMap:
    """The fields of an object that make up a reading; each field is given as a path.

    :ivar metrics: metric name to field; if empty, every number is a metric, named by its path.
    :ivar time: the time of the reading: Unix seconds or milliseconds, or ISO 8601, in UTC unless it names a zone.
    :ivar device: the device's id, if the topic does not have it.
    :ivar boot: together with `seq`, the reading's identity; see :class:`Reading`.
    :ivar seq: the reading's number in `boot`.
    """

    metrics: Mapping[str, str]
    time: str | None = None
    device: str | None = None
    boot: str | None = None
    seq: str | None = None

    def read(self, fields: Mapping[str, object]) -> Reading:
        """Return the reading in an object's fields. Raises BadRecord if a field is missing or has the wrong type."""
        taken = {path for path in (self.time, self.device, self.boot, self.seq) if path}
        extra: dict[str, object] = {}
        if self.metrics:
            found = {name: _at(fields, path) for name, path in self.metrics.items()}
            metrics = {name: _plain(value) for name, value in found.items() if value is not _MISSING}
            if not metrics:
                raise BadRecord(f"it has none of the fields {', '.join(sorted(self.metrics.values()))}")
        else:
            metrics = {path: value for path, value in _numbers(fields, "") if path not in taken}
            if not metrics:
                raise BadRecord("there is no number in it")
            extra = {name: text for name, text in fields.items() if type(text) is str and name not in taken}
        return Reading(
            metrics,
            device_id=_text(fields, self.device, "device"),
            boot=_text(fields, self.boot, "boot"),
            seq=_whole(_at(fields, self.seq), self.seq) if self.seq else None,
            ts=_time(_at(fields, self.time), self.time) if self.time else None,
            extra=extra,
        )


_MISSING = object()


def _at(fields: object, path: str) -> object:
    """Return the value at a path, or _MISSING if there is none."""
    for name in path.split("."):
        if isinstance(fields, Mapping):
            fields = fields.get(name, _MISSING)
        elif isinstance(fields, list) and name.isascii() and name.isdecimal() and len(name) < 10:
            fields = fields[int(name)] if int(name) < len(fields) else _MISSING
        else:
            return _MISSING
    return fields


def _numbers(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield (path, number) for every number below `value`."""
    if isinstance(value, bool | int | float):
        yield path, _plain(value)
        return
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield from _numbers(one, f"{path}.{name}" if path else str(name))


def _text(fields: Mapping[str, object], path: str | None, what: str) -> str | None:
    if path is None:
        return None
    value = _at(fields, path)
    if type(value) is not str and type(value) is not int:
        raise BadRecord(f"{what}: the field {path} is missing, or neither text nor a whole number")
    return str(value)


def _plain(value: object) -> object:
    """Return True and False as 1.0 and 0.0, and any other value unchanged."""
    return float(value) if type(value) is bool else value


def _whole(value: object, path: str) -> int:
    if type(value) is not int:
        raise BadRecord(f"seq: the field {path} is missing, or not a whole number")
    return value


def _time(value: object, path: str) -> int | None:
    """Return a time in Unix milliseconds, or None if it is missing. Raises BadRecord if it is no time."""
    if value is None or value is _MISSING:
        return None
    try:
        if type(value) is str:
            moment = datetime.fromisoformat(value)
            return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        if type(value) is int or type(value) is float:
            return int(value if value >= _MILLISECONDS_FROM else value * 1000)
    except (ValueError, OverflowError):
        pass
    raise BadRecord(f"time: the field {path} is no time: {shown(value)}")
