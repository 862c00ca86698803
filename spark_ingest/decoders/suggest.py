"""Write a first ingest.toml from messages: ready-made rules for the systems that they are of, comments for the rest."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from umqtt_cli.escape import printable

from .cbor import cbor_value
from .json import json_value
from .number import is_no_value, number_in
from .reading import UNMATCHED, BadRecord, Reading, Status, run
from .rules import SYSTEMS, Rules, ready_made
from .sparkplug import parse_topic
from .times import unix_ms

_OWN = re.compile(r"fleet/[^/]+/(telemetry|status|log|cmd|reply)")
# So many payloads of a topic are looked at, and so many topics that no system has.
_EACH_TOPIC = 3
_MOST_TOPICS = 10_000
_MOST_SHAPES = 40
_TIMES = ("time", "timestamp", "ts", "Time", "Timestamp", "datetime", "last_seen", "tst", "t", "at", "received_at")
# Topics of these begin with the device, so a topic alone does not tell; their values do.
_GENERIC = ("esphome", "shelly")


class _Shape(NamedTuple):
    levels: int
    first: str
    last: str
    kind: str


def suggest(messages: Iterable[tuple[str, bytes]]) -> str:
    """Return the text of an ingest.toml for `messages`: (topic, payload) of each, in any order."""
    rules = {name: Rules(False, json.dumps(ready_made([name]))) for name in SYSTEMS}
    seen: Counter[str] = Counter()
    of_system: Counter[str] = Counter()
    shapes: defaultdict[_Shape, dict[str, bytes]] = defaultdict(dict)
    owner: dict[str, str] = {}
    own = 0
    for topic, payload in messages:
        seen[topic] += 1
        if _OWN.fullmatch(topic):
            own += 1
        elif topic in owner:
            of_system[owner[topic]] += 1
        elif seen[topic] <= _EACH_TOPIC and len(seen) <= _MOST_TOPICS:
            system = next((name for name in SYSTEMS if _reads(rules[name], name, topic, payload)), None)
            if system:
                owner[topic] = system
                of_system[system] += seen[topic]
            else:
                levels = topic.split("/")
                shapes[_Shape(len(levels), levels[0], levels[-1], _kind(payload))].setdefault(topic, payload)
    rest = {
        shape: left
        for shape, topics in shapes.items()
        if (left := {topic: payload for topic, payload in topics.items() if topic not in owner})
    }
    # A system whose topics only hold what it leaves out is known by others of its topics.
    return _written(sum(seen.values()), own, of_system, _without_ignored(rest, rules, of_system), seen)


def _reads(rules: Rules, name: str, topic: str, payload: bytes) -> bool:
    """Return whether a system's rules make a reading or a status of a message."""
    match = rules.match(topic)
    while match is not None:
        if match.name == "sparkplug":
            return _is_sparkplug(topic)
        results = run(match.decode, match.name, match.topic, [payload])[0]
        if results is not UNMATCHED:
            several = results if isinstance(results, list) else [results]
            # A plain text is what any topic may hold.
            plain = name in _GENERIC and match.name == "value"
            good = [one for one in several if isinstance(one, Status) or (isinstance(one, Reading) and not one.refused)]
            return bool(good) and not (plain and isinstance(good[0], Reading) and not good[0].metrics)
        match = match.later
    return False


def _is_sparkplug(topic: str) -> bool:
    try:
        return bool(parse_topic(topic))
    except BadRecord:
        return False


def _without_ignored(
    rest: dict[_Shape, dict[str, bytes]], rules: dict[str, Rules], of_system: Counter[str]
) -> dict[_Shape, dict[str, bytes]]:
    found = [rules[name] for name in of_system]
    left: dict[_Shape, dict[str, bytes]] = {}
    for shape, topics in rest.items():
        unknown = {topic: payload for topic, payload in topics.items() if not any(one.match(topic) for one in found)}
        if unknown:
            left[shape] = unknown
    return left


def _kind(payload: bytes) -> str:
    """Return the format in which a payload seems to be: a key of _SAID, or "" for bytes."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return _binary(payload)
    if number_in(text, {}) is not None:
        return "number"
    if is_no_value(text):
        return "no value"
    try:
        value = json_value(payload)
    except BadRecord:
        return "influx" if re.fullmatch(r"[^\s=]+ [^\s=]+=\S.*", text.strip(), re.DOTALL) else "text"
    if isinstance(value, list):
        is_senml = bool(value) and all(isinstance(one, dict) and one.keys() & {"n", "bn"} for one in value)
        return "senml" if is_senml else "array" if all(isinstance(one, dict) for one in value) else "text"
    return "json" if isinstance(value, dict) else "text"


def _binary(payload: bytes) -> str:
    try:
        return "cbor" if isinstance(cbor_value(payload), dict | list) else ""
    except BadRecord:
        return ""


_SAID = {
    "json": ("JSON objects", 'format = "json"'),
    "array": ("JSON arrays", 'format = "json"\neach = "."'),
    "senml": ("SenML", 'format = "senml"'),
    "influx": ("line protocol", 'format = "influx"'),
    "number": ("numbers", 'format = "number"'),
    "text": ("texts", 'format = "value"'),
    "no value": ("no value", 'format = "ignore"'),
    "cbor": ("CBOR", 'format = "cbor"'),
    "": ("bytes", 'format = "decoder.py"'),
}


def _written(
    total: int, own: int, of_system: Counter[str], rest: dict[_Shape, dict[str, bytes]], seen: Counter[str]
) -> str:
    names = [name for name in SYSTEMS if name in of_system]
    lines = [f"# A first file, from {total:,} messages. docs/decoders.md explains it.", ""]
    lines += [f"# {of_system[name]:,} messages of {name}" for name in names]
    lines += [f"# {own:,} messages of this project's own firmware, which need no rule"] if own else []
    lines += [f"include = {json.dumps(names)}"]
    by_size = sorted(rest.items(), key=lambda one: (-sum(seen[topic] for topic in one[1]), one[0]))
    for shape, topics in by_size[:_MOST_SHAPES]:
        lines += ["", *_shape_lines(shape, topics, sum(seen[topic] for topic in topics))]
    if len(by_size) > _MOST_SHAPES:
        lines += ["", f"# {len(by_size) - _MOST_SHAPES} further shapes of topics are left out."]
    return "\n".join(lines) + "\n"


def _shape_lines(shape: _Shape, topics: dict[str, bytes], count: int) -> list[str]:
    """Return the comment for topics of one shape, with a rule that may fit."""
    what, keys = _SAID[shape.kind]
    example = printable(min(topics))[:100]
    pattern = _pattern(list(topics), shape)
    lines = [f"# {count:,} messages on {len(topics):,} topics such as {example}: {what}", "# [[decoder]]"]
    lines.append(f"# topic = {json.dumps(pattern)}")
    lines += [f"# {line}" for line in keys.split("\n")]
    if shape.kind in ("number", "text") and "{metric}" not in pattern:
        lines.append('# metric = "value"')
    if shape.kind == "json":
        lines += [f"# {line}" for line in _json_lines(min(topics.values(), key=len))]
    return lines


def _pattern(topics: list[str], shape: _Shape) -> str:
    """Return a pattern: the first level that differs is the device, the others are parts of the metric's name."""
    columns = list(zip(*(topic.split("/") for topic in topics), strict=True))
    varying = [i for i, texts in enumerate(columns) if len(set(texts)) > 1]
    device = varying[0] if varying else min(1, shape.levels - 1)
    last = shape.levels - 1
    levels = []
    for i, texts in enumerate(columns):
        if i == device:
            levels.append("{device}")
        elif i in varying or (i == last and shape.kind in ("number", "text", "no value")):
            levels.append("{metric}")
        else:
            levels.append(printable(texts[0]))
    return "/".join(levels)


def _json_lines(payload: bytes) -> list[str]:
    """Return the keys of a rule that an object suggests."""
    value = json_value(payload)
    if not isinstance(value, dict):
        return []
    for name in _TIMES:
        try:
            unix_ms(value.get(name), None, None)
        except BadRecord:
            continue
        return [f"time = {json.dumps(name)}"]
    return []
