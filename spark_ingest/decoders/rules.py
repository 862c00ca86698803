"""``ingest.toml``: which decoder reads which topic; docs/decoders.md explains it.

A topic that no rule matches is read as without ``ingest.toml``. Paths are relative to that file. Ready-made rules are
the files in :mod:`systems`.
"""

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from ..toml_file import read_toml, take_tables
from . import sparkplug
from .build import decoder_of
from .fast_fields import FastReader, fast_reader
from .patterns import Pattern, compiled, topics_of
from .reading import Decode, Topic
from .rule_keys import check

SYSTEMS = (
    *("sparkplug", "chirpstack", "ttn", "zigbee2mqtt", "tasmota", "homie", "zwave-js-ui", "victron", "rtl_433"),
    *("openmqttgateway", "owntracks", "telegraf", "homeassistant-statestream", "esphome", "shelly"),
)
"""The systems with ready-made rules, in the order in which the rules are tried, whatever the order in `include`.

The topics of the last ones begin with the device, so that they match those of other systems too.
"""
_SOURCE = "#source"


class Match(NamedTuple):
    """The rule that reads a message.

    :ivar decode: its decoder.
    :ivar topic: the topic to pass to it.
    :ivar name: the decoder's name: its format or its file.
    :ivar rule: where the rule stands: ``decoder 2``, ``tasmota: decoder 1``.
    :ivar skip_retained: messages that the broker had retained are not read.
    :ivar fast: reads most payloads faster than `decode`, with the same result; its metrics have the names `metrics`.
    :ivar later: the rule that reads what this one leaves: see :data:`UNMATCHED`.
    """

    decode: Decode
    topic: Topic
    name: str
    rule: str = ""
    skip_retained: bool = False
    later: "Match | None" = None
    fast: FastReader | None = None
    metrics: tuple[str, ...] = ()


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
    has_transform = content.pop("transform", None) is not None
    include = content.pop("include", [])
    if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
        raise UsageError(f"{path}: include = {include!r} must be a list of names")
    unknown = [name for name in include if name not in SYSTEMS]
    if unknown:
        raise UsageError(f"{path}: there are no rules for {unknown[0]!r}; there are {', '.join(SYSTEMS)}")
    tables = _checked(path, content, required=not include and not has_transform)
    return json.dumps(tables + ready_made(include))


def ready_made(names: list[str]) -> list[dict[str, Any]]:
    """Return the tables of the ready-made rules of some systems."""
    tables: list[dict[str, Any]] = []
    for name in SYSTEMS:
        if name in names:
            file = Path(__file__).parent / "systems" / f"{name}.toml"
            some = _checked(file, read_toml(file), required=True)
            tables += [table | {_SOURCE: f"{name}: {table[_SOURCE]}"} for table in some]
    return tables


def _checked(path: Path, content: dict[str, Any], *, required: bool) -> list[dict[str, Any]]:
    tables = take_tables(path, content, "decoder", "a topic and a format", required=required)
    if content:
        raise UsageError(f"{path}: there is no key {min(content)}; there are include, transform and [[decoder]]")
    for index, table in enumerate(tables, 1):
        where = f"{path}: decoder {index}"
        check(where, table)
        for key in ("descriptor", "format"):
            if key in table and (key == "descriptor" or table[key].endswith(".py")):
                table[key] = str((path.parent / table[key]).absolute())
        try:
            decoder_of(table)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        table[_SOURCE] = f"decoder {index}"
    return tables


def transform_of(path: Path) -> Path | None:
    """Return the file that the key ``transform`` of an ingest.toml names, or None without the key.

    :raises UsageError: `path` cannot be read, or the key is no name of a Python file.
    """
    name = read_toml(path).get("transform")
    if name is None:
        return None
    if not isinstance(name, str) or not name.endswith(".py"):
        raise UsageError(f"{path}: transform = {name!r} must be the name of a Python file")
    return (path.parent / name).absolute()


class _Rule(NamedTuple):
    patterns: list[Pattern]
    decode: Decode
    name: str
    source: str
    skip_retained: bool
    is_partial: bool
    fast: FastReader | None
    metrics: tuple[str, ...]


def _match(decoders: str, name: str) -> Match | None:
    """Return the first rule for a topic, with those after it as far as it may leave messages to them."""
    found: list[Match] = []
    for rule, topic in _matching(decoders, name):
        # A slash in a name may have to be escaped, which the decoder does.
        fast = rule.fast if topic.device is not None and not any("/" in name for name in rule.metrics) else None
        prefix = "" if topic.metric is None else f"{topic.metric}/"
        names = tuple(prefix + name for name in rule.metrics)
        found.append(Match(rule.decode, topic, rule.name, rule.source, rule.skip_retained, None, fast, names))
        if not rule.is_partial:
            break
    later: Match | None = None
    for match in reversed(found):
        later = match._replace(later=later)
    return later


def _matching(decoders: str, name: str) -> Iterator[tuple[_Rule, Topic]]:
    for rule in _rules(decoders):
        levels = next(filter(None, (pattern.match(name) for pattern in rule.patterns)), None)
        if levels is not None:
            device = sparkplug.node_of(name) if rule.decode is sparkplug.read_alone else levels[0]
            yield rule, Topic(name, device, levels[1])


_REMEMBERED_LENGTH = 256
_remembered = lru_cache(maxsize=20_000)(_match)


@cache
def _rules(decoders: str) -> list[_Rule]:
    return [
        _Rule(
            [compiled(topic) for topic in topics_of(table["topic"])],
            decoder_of(table),
            Path(table["format"]).name,
            table.get(_SOURCE, ""),
            table.get("skip_retained", False),
            bool(table.keys() & {"when", "has", "begins"}),
            fast_reader(table),
            tuple(table.get("metrics", ())),
        )
        for table in json.loads(decoders)
    ]
