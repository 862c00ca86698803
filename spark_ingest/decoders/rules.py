"""``ingest.toml``: which decoder reads which topic. ::

    [[decoder]]                               # the first whose topic matches reads the message
    topic = "zigbee2mqtt/{device}"            # + and # as in a topic filter; {device}: the level with the device id
    format = "json"                           # json, cbor, protobuf, number, umqtt, sparkplug, or Python: "a.py"
    metrics = { temp_c = "temperature" }      # metric = field; without this key every number is a metric

The pipeline reads a topic that no rule matches as it does without ``ingest.toml``. Paths are relative to that file.
"""

import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from ..toml_file import read_toml, take_tables
from . import sparkplug
from .cbor import cbor_object
from .fields import FieldMap
from .json import json_object
from .number import number
from .reading import BadRecord, Decode, Reading, Topic, each_payload
from .record import read_record

_MAPPING = frozenset(("metrics", "time", "device", "boot", "seq"))
_KEYS: Mapping[str, frozenset[str]] = {
    "json": _MAPPING,
    "cbor": _MAPPING,
    "protobuf": _MAPPING | {"descriptor", "message"},
    "number": frozenset(("metric",)),
    "umqtt": frozenset(),
    "sparkplug": frozenset(),
}
_NAMED = ("{device}", "{metric}")


class Match(NamedTuple):
    """The decoder that reads a message, the topic to pass to it, and the decoder's name: its format or its file."""

    decode: Decode
    topic: Topic
    name: str


class Rules(NamedTuple):
    """The rules of a pipeline: whether ids in records are trusted, which decoder reads which topic. Can be pickled.

    :ivar trust_ids: accept a telemetry record's id, whatever topic it came on.
    :ivar decoders: the checked tables of an ingest.toml, as the JSON text that :func:`load` returns; "" without one.
    """

    trust_ids: bool = False
    decoders: str = ""

    def match(self, topic: str) -> Match | None:
        """Return the decoder of the first rule that matches `topic`, or None if no rule does."""
        if not self.decoders:
            return None
        # Long topics are not cached: clients could fill the memory with made-up topics of up to 64 KB.
        return _remembered(self.decoders, topic) if len(topic) <= _REMEMBERED_LENGTH else _match(self.decoders, topic)

    @property
    def has_sparkplug(self) -> bool:
        """Whether a rule reads Sparkplug, whose messages are readable only with the births before them."""
        return any(table["format"] == "sparkplug" for table in json.loads(self.decoders or "[]"))


NO_RULES = Rules()


def load(path: Path) -> str:
    """Read and check the decoders in `path`; return them as JSON text for :class:`Rules`.

    :raises UsageError: the file, or a file that it names, cannot be read or is invalid.
    """
    content = read_toml(path)
    tables = take_tables(path, content, "decoder", "a topic and a format")
    if content:
        raise UsageError(f"{path}: there is no key {min(content)}; there is [[decoder]]")
    for index, table in enumerate(tables, 1):
        where = f"{path}: decoder {index}"
        _check(where, table)
        for key in ("descriptor", "format"):
            if key in table and (key == "descriptor" or table[key].endswith(".py")):
                table[key] = str((path.parent / table[key]).absolute())
        try:
            _decoder(table)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
    return json.dumps(tables)


def _check(where: str, table: dict[str, Any]) -> None:
    """Check one [[decoder]] table.

    :raises UsageError: the table is invalid.
    """
    for key in ("topic", "format"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise UsageError(f"{where}: there is no {key}")
    levels = table["topic"].split("/")
    odd = [one for one in levels if re.search(r"[{}+#]", one) and one not in (*_NAMED, "+", "#")]
    if odd or "#" in levels[:-1] or any(levels.count(one) > 1 for one in _NAMED):
        raise UsageError(
            f"{where}: topic {table['topic']!r} is no pattern: {{device}}, {{metric}} and + are whole levels, each "
            "name stands there once, and # is the last"
        )
    kind = "python" if table["format"].endswith(".py") else table["format"]
    if kind not in (*_KEYS, "python"):
        raise UsageError(f"{where}: there is no format {kind!r}; there are {', '.join(_KEYS)}, and files ending in .py")
    known = _KEYS.get(kind, frozenset())
    for key, value in table.items():
        if key not in known | {"topic", "format"}:
            raise UsageError(f"{where}: {kind} has no key {key}; it has {', '.join(sorted(known)) or 'none'}")
        names = isinstance(value, dict) and value and all(isinstance(one, str) and one for one in value.values())
        if not names if key == "metrics" else not isinstance(value, str) or not value:
            raise UsageError(f"{where}: {key} = {value!r} must be {'a table of names' if key == 'metrics' else 'text'}")
    if (table.get("boot") is None) != (table.get("seq") is None):
        raise UsageError(f"{where}: boot and seq are one identity: give both or neither")
    if kind == "sparkplug":
        if levels[0] != "spBv1.0" or "{device}" in levels or "{metric}" in levels:
            raise UsageError(f"{where}: topic of sparkplug begins with spBv1.0/ and has no {{device}}: spBv1.0/#")
    elif ("{device}" in levels) == ("device" in table) and kind != "python":
        raise UsageError(f"{where}: give the device either as {{device}} in the topic, or with the key device")
    if kind == "number" and ("{metric}" in levels) == ("metric" in table):
        raise UsageError(f"{where}: the metric's name is {{metric}} in the topic, or the key metric")
    if kind == "protobuf" and not {"descriptor", "message"} <= table.keys():
        raise UsageError(f"{where}: protobuf needs a descriptor and a message")


def _match(decoders: str, name: str) -> Match | None:
    for pattern, decode, decoder_name in _compiled(decoders):
        found = pattern.fullmatch(name)
        if found:
            named = found.groupdict()
            if decode is sparkplug.read_alone:
                named = {"device": sparkplug.node_of(name)}
            return Match(decode, Topic(name, **named), decoder_name)
    return None


_REMEMBERED_LENGTH = 256
_remembered = lru_cache(maxsize=20_000)(_match)


@cache
def _compiled(decoders: str) -> list[tuple[re.Pattern[str], Decode, str]]:
    tables = json.loads(decoders)
    return [(_pattern(table["topic"]), _decoder(table), Path(table["format"]).name) for table in tables]


def _pattern(topic: str) -> re.Pattern[str]:
    """Compile a topic pattern. [MQTT-4.7]: a wildcard as the first level does not match topics that begin with $."""
    shapes = {"+": "[^/]*", "#": ".*"} | {name: f"(?P<{name[1:-1]}>[^/]+)" for name in _NAMED}
    levels = topic.split("/")
    whole = "/".join(shapes.get(level, re.escape(level)) for level in levels)
    if levels[-1] == "#" and len(levels) > 1:
        whole = whole.removesuffix("/.*") + "(/.*)?"
    return re.compile(("(?!\\$)" if levels[0] in shapes else "") + whole, re.DOTALL)


def _decoder(table: Mapping[str, Any]) -> Decode:
    """Return the decoder that a checked [[decoder]] table describes.

    :raises UsageError: a file that the table names cannot be used.
    """
    kind = table["format"]
    if kind.endswith(".py"):
        return _python(Path(kind))
    if kind == "umqtt":
        return each_payload(_own)
    if kind == "sparkplug":
        return sparkplug.read_alone
    if kind == "number":
        metric = table.get("metric")
        return each_payload(lambda topic, payload: Reading({metric or topic.metric or "": number(payload)}))
    mapping = FieldMap(table.get("metrics", {}), *(table.get(key) for key in ("time", "device", "boot", "seq")))
    readers: dict[str, Callable[[bytes], dict[str, object]]] = {"json": json_object, "cbor": cbor_object}
    if kind == "protobuf":
        from .protobuf import message_reader

        readers[kind] = message_reader(Path(table["descriptor"]), table["message"])
    read = readers[kind]
    return each_payload(lambda _topic, payload: mapping.read(read(payload)))


def _own(topic: Topic, payload: bytes) -> Reading:
    """Read a telemetry record on a rule's topic. Raises BadRecord if its id is not the topic's device."""
    reading = read_record(payload)
    if reading.device_id != topic.device:
        raise BadRecord(f"id {ascii(reading.device_id)[:60]} is not the topic's device {ascii(topic.device)[:60]}")
    return reading


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
