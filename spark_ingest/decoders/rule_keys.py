"""The keys of a [[decoder]] table, and their checks."""

import math
from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import UsageError
from .patterns import has_variable_metric, is_pattern, meanings, topics_of
from .times import UNITS

_EVERY = frozenset(("topic", "format", "begins", "skip_retained"))
_TIME = frozenset(("time", "unit", "zone"))
_FIELDS = frozenset(("at", "metrics", "texts", "value", "numbers_in_text", "map", "when", "has", "series"))
_MAPPING = _FIELDS | _TIME | {"each", "where", "device", "boot", "seq", "seq_absent"}
FORMATS: Mapping[str, frozenset[str]] = {
    "json": _MAPPING,
    "cbor": _MAPPING,
    "protobuf": _MAPPING | {"descriptor", "message"},
    "number": frozenset(("metric", "map")),
    "value": frozenset(("metric", "map")),
    "text": frozenset(("metric",)),
    "status": frozenset(("field", "online", "offline", "device", "when")),
    "ignore": frozenset(("when",)),
    "umqtt": frozenset(),
    "sparkplug": frozenset(),
    "senml": frozenset(("device",)),
    "influx": frozenset(("device", "series", "unit", "map")),
    "cayenne": frozenset(("device", "field", *_TIME, "boot", "seq", "seq_absent")),
}
"""Format to the keys that its rules may have, besides topic, format, begins and skip_retained."""


def kind_of(table: Mapping[str, Any]) -> str:
    """Return a rule's format; ``python`` for a file."""
    return "python" if table["format"].endswith(".py") else table["format"]


def check(where: str, table: dict[str, Any]) -> None:
    """Check one [[decoder]] table.

    :param where: the file and the table, for the error message.
    :raises UsageError: the table is invalid.
    """
    _check_topics(where, table)
    if not _is_text(table.get("format")):
        raise UsageError(f"{where}: there is no format")
    kind = kind_of(table)
    if kind not in (*FORMATS, "python"):
        raise UsageError(
            f"{where}: there is no format {kind!r}; there are {', '.join(FORMATS)}, and files ending in .py"
        )
    known = FORMATS.get(kind, frozenset())
    for key, value in table.items():
        if key not in known | _EVERY:
            raise UsageError(f"{where}: {kind} has no key {key}; it has {', '.join(sorted(known)) or 'none'}")
        holds, what = _KINDS[key]
        if not holds(value):
            raise UsageError(f"{where}: {key} = {value!r} must be {what}")
    if (table.get("boot") is None) != (table.get("seq") is None):
        raise UsageError(f"{where}: boot and seq are one identity: give both or neither")
    if "seq_absent" in table and "seq" not in table:
        raise UsageError(f"{where}: seq_absent is the number where seq is absent: give seq")
    _check_zone(where, table)
    _check_names(where, kind, table)


def _check_topics(where: str, table: dict[str, Any]) -> None:
    if not _is_texts(table.get("topic")):
        raise UsageError(f"{where}: there is no topic")
    topics = topics_of(table["topic"])
    for topic in topics:
        if not is_pattern(topic):
            raise UsageError(
                f"{where}: topic {topic!r} is no pattern: {{device}}, {{metric}}, {{any}} and + are whole levels, one "
                "of them at most stands for several ({device...}), and # is the last"
            )
        if ("device" in meanings(topic)) != ("device" in meanings(topics[0])):
            raise UsageError(f"{where}: either all of its topics have a {{device}}, or none has")


def _check_zone(where: str, table: dict[str, Any]) -> None:
    try:
        if "zone" in table:
            ZoneInfo(table["zone"])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"{where}: zone = {table['zone']!r} is no time zone: like Europe/Berlin") from None


def _check_names(where: str, kind: str, table: dict[str, Any]) -> None:
    """Check that the rule says which device and which metric a value belongs to."""
    topics = topics_of(table["topic"])
    has_device, has_metric = "device" in meanings(topics[0]), all("metric" in meanings(topic) for topic in topics)
    if kind == "sparkplug":
        if any(not topic.startswith("spBv1.0/") or "{" in topic for topic in topics):
            raise UsageError(f"{where}: topic of sparkplug begins with spBv1.0/ and has no {{device}}: spBv1.0/#")
        return
    if kind == "influx" and not has_device and "device" not in table:
        raise UsageError(f'{where}: give the device as {{device}} in the topic, or as a tag: device = "tags.host"')
    if kind not in ("python", "ignore") and has_device == ("device" in table):
        raise UsageError(f"{where}: give the device either as {{device}} in the topic, or with the key device")
    if kind == "senml" and table.get("device", "bn") != "bn":
        raise UsageError(f'{where}: the device of senml is {{device}} in the topic, or device = "bn", the base name')
    if kind in ("number", "value", "text") and not has_metric and "metric" not in table:
        raise UsageError(f"{where}: the metric's name is {{metric}} in the topic, or the key metric")
    if kind in ("number", "value", "text") and "metric" not in table and any("#" in topic for topic in topics):
        raise UsageError(f"{where}: # may stand for no level at all: use {{metric...}}, or the key metric")
    if "value" in table and not has_metric and "series" not in table and "each" not in table:
        raise UsageError(f"{where}: value has no name: give {{metric}} or + in the topic, series, or use metrics")
    if kind == "protobuf" and not {"descriptor", "message"} <= table.keys():
        raise UsageError(f"{where}: protobuf needs a descriptor and a message")


def has_variable_names(table: Mapping[str, Any]) -> bool:
    """Return whether the names of a rule's metrics have different numbers of levels."""
    topics = topics_of(table["topic"])
    return any(map(has_variable_metric, topics)) or len({_metric_levels(topic) for topic in topics}) > 1


def _metric_levels(topic: str) -> int:
    return sum(level in ("+", "{metric}", "$+") for level in topic.split("/"))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_texts(value: object) -> bool:
    return _is_text(value) or (isinstance(value, list) and value != [] and all(map(_is_text, value)))


def _is_names(value: object) -> bool:
    return isinstance(value, dict) and value != {} and all(map(_is_text, value.values()))


def _is_map(value: object) -> bool:
    return isinstance(value, dict) and value != {} and all(map(_is_number, value.values()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _are_conditions(value: object) -> bool:
    one_or_more = [one if isinstance(one, list) else [one] for one in value.values()] if isinstance(value, dict) else []
    return one_or_more != [] and all(some != [] and all(map(_is_scalar, some)) for some in one_or_more)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_seq(value: object) -> bool:
    return type(value) is int and value >= 0


_TEXT = (_is_text, "text")
_TEXTS = (_is_texts, "text or a list of texts")
_NAMES = (_is_names, "a table of names")
_CONDITIONS = (_are_conditions, "a table of fields and values")
_FLAG = (_is_flag, "true or false")
_KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("format", "begins", "at", "value", "time", "zone", "boot", "seq", "each", "field"), _TEXT),
    **dict.fromkeys(("descriptor", "message", "metric"), _TEXT),
    **dict.fromkeys(("topic", "device", "series", "has", "online", "offline"), _TEXTS),
    **dict.fromkeys(("metrics", "texts"), _NAMES),
    **dict.fromkeys(("when", "where"), _CONDITIONS),
    **dict.fromkeys(("skip_retained", "numbers_in_text"), _FLAG),
    "map": (_is_map, "a table of numbers"),
    "seq_absent": (_is_seq, "a whole number from 0"),
    "unit": (lambda value: value in UNITS, f"one of {', '.join(UNITS)}"),
}
