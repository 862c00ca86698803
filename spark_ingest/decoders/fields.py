"""From the fields of an object to a reading: what JSON, CBOR and Protobuf payloads share.

A field is named by its path, with dots: ``SI7021.Temperature``, ``meters.0.power``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from .json import shown
from .reading import BadRecord, Reading

# A Unix time from here on is in milliseconds: in seconds it would be in the year 5138.
_MILLISECONDS_FROM = 1e11


@dataclass(frozen=True)
class FieldMap:
    """Which fields of an object make a reading; each is a path.

    :ivar metrics: metric to field; empty: every number is a metric, under its path.
    :ivar time: when the reading was taken: Unix seconds or milliseconds, or ISO 8601, UTC where it names no zone.
    :ivar device: the device's id, where the topic does not have it.
    :ivar boot: with `seq`, the identity; see :class:`Reading`.
    """

    metrics: Mapping[str, str]
    time: str | None = None
    device: str | None = None
    boot: str | None = None
    seq: str | None = None

    def read(self, fields: Mapping[str, object]) -> Reading:
        """The reading that an object makes; raises BadRecord."""
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
    """The value at a path; _MISSING where there is none."""
    for name in path.split("."):
        if isinstance(fields, Mapping):
            fields = fields.get(name, _MISSING)
        elif isinstance(fields, list) and name.isascii() and name.isdecimal() and len(name) < 10:
            fields = fields[int(name)] if int(name) < len(fields) else _MISSING
        else:
            return _MISSING
    return fields


def _numbers(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every number below `value`, with its path."""
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
    """True and false as numbers."""
    return float(value) if type(value) is bool else value


def _whole(value: object, path: str) -> int:
    if type(value) is not int:
        raise BadRecord(f"seq: the field {path} is missing, or not a whole number")
    return value


def _time(value: object, path: str) -> int | None:
    """Unix milliseconds."""
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
