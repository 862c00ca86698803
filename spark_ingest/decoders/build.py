"""Make a decoder from a rule of ingest.toml."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from ..errors import UsageError
from . import sparkplug
from .cbor import cbor_value
from .fields import FieldMap, value_at
from .json import json_value, shown
from .number import is_no_value, number, number_in, text_of
from .reading import UNMATCHED, BadRecord, Decode, Reading, Result, Results, Status, Topic, each_payload
from .record import read_record
from .rule_keys import has_variable_names

_ONLINE = frozenset(("online", "true", "1", "on", "connected", "ready", "init", "alive", "awake"))
_OFFLINE = frozenset(("offline", "false", "0", "off", "disconnected", "lost", "sleeping", "dead"))


def decoder_of(table: Mapping[str, Any]) -> Decode:
    """Return the decoder that a checked [[decoder]] table describes.

    :raises UsageError: a file that the table names cannot be used.
    """
    kind = table["format"]
    if kind.endswith(".py"):
        decode = _python(Path(kind))
    elif kind == "sparkplug":
        # The pipeline recognises it by this function, and reads such messages with the births before them.
        return sparkplug.read_alone
    else:
        decode = each_payload(_SIMPLE[kind](table) if kind in _SIMPLE else _mapped(kind, table))
    return _beginning(table["begins"].encode(), decode) if "begins" in table else decode


def _beginning(begins: bytes, decode: Decode) -> Decode:
    def read(topic: Topic, payloads: Sequence[bytes]) -> list[Any]:
        mine = [payload.lstrip().startswith(begins) for payload in payloads]
        if all(mine):
            return list(decode(topic, payloads))
        results = iter(decode(topic, [one for one, is_mine in zip(payloads, mine, strict=True) if is_mine]))
        return [next(results) if is_mine else UNMATCHED for is_mine in mine]

    return read


_Read = Callable[[Topic, bytes], Any]


def _mapped(kind: str, table: Mapping[str, Any]) -> _Read:
    mapping = FieldMap(table, ZoneInfo(table["zone"]) if "zone" in table else None, has_variable_names(table))
    readers: dict[str, Callable[[bytes], object]] = {"json": json_value, "cbor": cbor_value}
    if kind == "protobuf":
        from .protobuf import message_reader

        readers[kind] = message_reader(Path(table["descriptor"]), table["message"])
    read = readers[kind]

    def decode(topic: Topic, payload: bytes) -> Results:
        # A retained message is removed by an empty payload, which no other format has.
        return mapping.read(topic, read(payload)) if payload or kind == "protobuf" else []

    return decode


def _influx(table: Mapping[str, Any]) -> _Read:
    from .line_protocol import MAPPING, points_in

    mapping = FieldMap({**MAPPING, **table}, variable_levels=has_variable_names(table))

    def decode(topic: Topic, payload: bytes) -> list[Result]:
        results: list[Result] = []
        for point in points_in(payload):
            one = point if isinstance(point, BadRecord) else mapping.read(topic, point)
            results += one if isinstance(one, list) else [one]
        return results

    return decode


def _senml(table: Mapping[str, Any]) -> _Read:
    from .senml import senml_reader

    read = senml_reader("device" in table, has_variable_names(table))
    return lambda topic, payload: read(topic, payload) if payload else []


def _cayenne(table: Mapping[str, Any]) -> _Read:
    from .cayenne import cayenne_object, from_base64

    field = table.get("field")
    if field is None:
        mapping = FieldMap({})
        return lambda topic, payload: mapping.read(topic, cayenne_object(payload)) if payload else []
    mapping = FieldMap({**table, "at": "cayenne"}, ZoneInfo(table["zone"]) if "zone" in table else None)

    def decode(topic: Topic, payload: bytes) -> Results:
        content = json_value(payload) if payload else {}
        values = cayenne_object(from_base64(value_at(content, field), field)) if content else {}
        return mapping.read(topic, {**content, "cayenne": values} if isinstance(content, dict) else content)

    return decode


def _name(table: Mapping[str, Any], topic: Topic) -> str:
    return "/".join(part for part in (topic.metric, table.get("metric")) if part is not None)


def _number(table: Mapping[str, Any]) -> _Read:
    mapped = table.get("map", {})

    def decode(topic: Topic, payload: bytes) -> Results:
        value = number(payload, mapped)
        return [] if value is None else Reading({_name(table, topic): value})

    return decode


def _value(table: Mapping[str, Any]) -> _Read:
    mapped = table.get("map", {})

    def decode(topic: Topic, payload: bytes) -> Results:
        text = text_of(payload)
        value = number_in(text, mapped)
        if value is not None:
            return Reading({_name(table, topic): value})
        return [] if is_no_value(text) else Reading({}, extra={_name(table, topic): text})

    return decode


def _text(table: Mapping[str, Any]) -> _Read:
    def decode(topic: Topic, payload: bytes) -> Results:
        text = text_of(payload)
        return Reading({}, extra={_name(table, topic): text}) if text else []

    return decode


def _status(table: Mapping[str, Any]) -> _Read:
    own_online, own_offline = (frozenset(_list(table.get(key))) for key in ("online", "offline"))
    # A rule's own words are all words.
    online = own_online or _ONLINE - {text.lower() for text in own_offline}
    offline = own_offline or _OFFLINE - {text.lower() for text in own_online}
    mapping = FieldMap({key: table[key] for key in ("when", "device") if key in table})
    needs_fields = bool(table.keys() & {"field", "device", "when"})

    def decode(topic: Topic, payload: bytes) -> Results:
        if not payload:
            # A retained status was removed.
            return [] if needs_fields and topic.device is None else Status(False, "cleared")
        content = json_value(payload) if needs_fields and payload.lstrip()[:1] in (b"{", b"[") else None
        if "when" in table and (content is None or not mapping.holds(content)):
            return UNMATCHED
        found = text_of(payload).strip() if content is None else value_at(content, table.get("field", "."))
        text = str(found).lower() if isinstance(found, bool | int | float) else found
        device = mapping.device_of(content) if "device" in table else None
        if isinstance(text, str):
            for is_online, words in ((True, online), (False, offline)):
                if text in words or text.lower() in words:
                    return Status(is_online, None if is_online else text, device)
        raise BadRecord(f"neither online nor offline: {shown(found)}")

    return decode


def _list(value: object) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _ignore(table: Mapping[str, Any]) -> _Read:
    if "when" not in table:
        return lambda _topic, _payload: []
    mapping = FieldMap({"when": table["when"]})

    def decode(_topic: Topic, payload: bytes) -> Results:
        try:
            return [] if mapping.holds(json_value(payload)) else UNMATCHED
        except BadRecord:
            return UNMATCHED

    return decode


def _umqtt(_table: Mapping[str, Any]) -> _Read:
    def decode(topic: Topic, payload: bytes) -> Reading:
        """Read a telemetry record on a rule's topic. Raises BadRecord if its id is not the topic's device."""
        reading = read_record(payload)
        if reading.device_id != topic.device:
            raise BadRecord(f"id {ascii(reading.device_id)[:60]} is not the topic's device {ascii(topic.device)[:60]}")
        return reading

    return decode


_SIMPLE: Mapping[str, Callable[[Mapping[str, Any]], _Read]] = {
    "number": _number,
    "value": _value,
    "text": _text,
    "status": _status,
    "ignore": _ignore,
    "umqtt": _umqtt,
    "senml": _senml,
    "influx": _influx,
    "cayenne": _cayenne,
}


def _python(path: Path) -> Decode:
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    decode = getattr(module, "decode", None)
    if not callable(decode):
        raise UsageError(f"{path} has no function decode(topic, payloads)")
    return decode  # pyrefly: ignore[bad-return] - run() looks at what it returns
