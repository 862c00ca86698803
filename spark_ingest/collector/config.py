"""Settings of collectors: one is configured on the command line, several in a TOML file, which docs/collector.md shows.

Paths are relative to the file and may contain environment variables ($CREDENTIALS_DIRECTORY).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from umqtt_cli.clouds import CLOUDS
from umqtt_cli.numbers import parse_bytes
from umqtt_robust.errors import InvalidArgument
from umqtt_robust.topics import check_topic_filter

from ..errors import UsageError
from ..spool.writer import DEFAULT_SEGMENT_BYTES
from ..toml_file import read_toml, take_tables
from .access import Access

DEFAULT_TOPIC_FILTERS = ("fleet/+/telemetry", "fleet/+/status", "fleet/+/log")
DEFAULT_NAME = "collector"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SMALLEST_LIMIT = 64 << 10
# A full spool must have several segments: only whole segments are removed, and the newest never is.
_SEGMENTS_IN_LIMIT = 8


@dataclass(frozen=True)
class CollectorConfig:
    """The settings of one collector.

    :ivar broker: the broker's URL, or the URLs of a cluster's nodes, separated by commas.
    :ivar spool: the folder that contains all spools.
    :ivar name: the collector's own folder in `spool`, and part of its client id.
    :ivar topic_filters: the topic filters to subscribe to, at QoS 1; empty: those of the cloud, or the default ones.
    :ivar cloud: a name of ``umqtt_cli.clouds``, or None.
    :ivar everything: whether a filter may select every topic.
    :ivar keep_alive: keep-alive time in seconds; 0 switches pings off.
    :ivar segment_bytes: size in bytes at which a new segment begins.
    :ivar group_bytes: size in bytes at which a group is synced.
    :ivar group_ms: milliseconds that a small group waits for more messages; under load no group waits.
    :ivar max_spool_bytes: limit of the spool's size, see :class:`DiskQuota`; 0 for no limit.
    :ivar min_free_bytes: disk space to leave free, see :class:`DiskQuota`.
    :ivar longest_delay_s: longest wait between attempts to connect, in seconds.

    The other attributes are those of :class:`Access`.
    """

    broker: str
    spool: Path
    name: str
    topic_filters: tuple[str, ...] = ()
    cloud: str | None = None
    everything: bool = False
    keep_alive: int = 60
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    group_bytes: int = 1 << 20
    group_ms: float = 5.0
    max_spool_bytes: int = 0
    min_free_bytes: int = 256 << 20
    longest_delay_s: float = 128.0
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if not self.topic_filters:
            cloud = CLOUDS.get(self.cloud or "")
            filters = cloud.filters if cloud else DEFAULT_TOPIC_FILTERS
            filled = tuple(one.replace("{username}", self.username or "") for one in filters)
            object.__setattr__(self, "topic_filters", filled)

    @property
    def client_id(self) -> str:
        """The client id. It never changes, so the broker always keeps one session for this collector."""
        return f"umqtt-collector-{self.name}"

    @property
    def access(self) -> Access:
        """The address and credentials for the broker."""
        alpn = CLOUDS[self.cloud].alpn if self.cloud else ()
        return Access(self.broker, self.username, self.password_file, self.ca, self.cert, self.key, alpn)

    @property
    def folder(self) -> Path:
        """The folder of this collector's spool."""
        return self.spool / self.name

    @property
    def segment_limit(self) -> int:
        """The segment size in bytes: `segment_bytes`, or an eighth of `max_spool_bytes` if that is less."""
        return min(self.segment_bytes, self.max_spool_bytes // _SEGMENTS_IN_LIMIT or self.segment_bytes)

    def check(self) -> None:
        """Check the values.

        :raises UsageError: a value cannot work; the message names the option.
        """
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"--name {self.name} is not a plain name; use letters, digits, dots and hyphens")
        _between("--keep-alive", self.keep_alive, 0, 65535, "seconds")
        _between("--group-ms", self.group_ms, 0, 10_000, "milliseconds")
        _between("--group-bytes", self.group_bytes, 1, 1 << 30, "bytes")
        _between("--segment-bytes", self.segment_bytes, 1, 1 << 40, "bytes")
        _between("--longest-delay", self.longest_delay_s, 0, 86_400, "seconds")
        if self.max_spool_bytes:
            _between("--max-spool-bytes", self.max_spool_bytes, _SMALLEST_LIMIT, 1 << 60, "bytes (0: no limit)")
        _between("--min-free-bytes", self.min_free_bytes, 0, 1 << 60, "bytes")
        if self.cloud is not None:
            self._check_cloud(self.cloud)
        for topic_filter in self.topic_filters:
            _check_filter(topic_filter, everything=self.everything)
        self.access.check()

    def _check_cloud(self, name: str) -> None:
        cloud = CLOUDS.get(name)
        if cloud is None:
            raise UsageError(f"--cloud {name} is not known; there are {', '.join(CLOUDS)}")
        if cloud.refusal:
            raise UsageError(f"{cloud.title}: nothing can be collected from it: {cloud.refusal}")
        _between(f"{cloud.title}: --keep-alive", self.keep_alive, *cloud.keep_alive, "seconds")
        if cloud.most_filters and len(self.topic_filters) > cloud.most_filters:
            most = cloud.most_filters
            raise UsageError(f"{cloud.title}: a client has at most {most} subscriptions: give fewer --topic")


def load(path: Path, *, spool: Path | None = None, shared: Mapping[str, Any] | None = None) -> list[CollectorConfig]:
    """Read the collectors of a TOML file and check them.

    :param spool: the folder of all spools; overrides the ``spool`` at the top of the file.
    :param shared: values for every collector that has none of its own; they override the keys at the top of the file.
    :raises UsageError: the file cannot be read, or a value in it cannot work.
    """
    content = read_toml(path)
    tables = take_tables(path, content, "collector", "a name and a broker")
    if spool is not None:
        content["spool"] = str(spool.absolute())
    configs = [_from_table(path, {**content, **(shared or {}), **table}) for table in tables]
    names = [config.name for config in configs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{path}: two collectors are called {', '.join(sorted(twice))}: a name is a folder")
    return configs


_PATHS = frozenset({"spool", "password_file", "ca", "cert", "key"})
_SIZES = frozenset({"segment_bytes", "group_bytes", "max_spool_bytes", "min_free_bytes"})
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_SIZES, (str, int)),
    "everything": bool,
    "keep_alive": int,
    "group_ms": (int, float),
    "longest_delay_s": (int, float),
}
_IN_WORDS: Mapping[type | tuple[type, ...], str] = {
    str: "text, in quotes",
    bool: "true or false",
    int: "a whole number",
    (int, float): "a number",
    (str, int): 'a number of bytes, like 1048576 or "20G"',
}


def _from_table(path: Path, table: Mapping[str, Any]) -> CollectorConfig:
    known = {field.name for field in fields(CollectorConfig)} - {"topic_filters"} | {"topics"}
    where = f"{path}: collector {table.get('name', '?')}"
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{where}: there is no key {key}; there are {', '.join(sorted(known))}")
        if key == "topics":
            if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
                raise UsageError(f"{where}: topics must be a list of topic filters")
            if not value:
                raise UsageError(f"{where}: no topic filter given: such a collector would never receive anything")
            values["topic_filters"] = tuple(value)
        elif not isinstance(value, _KINDS.get(key, str)) or (isinstance(value, bool) and key != "everything"):
            raise UsageError(f"{where}: {key} = {value!r} must be {_IN_WORDS[_KINDS.get(key, str)]}")
        elif key in _SIZES:
            values[key] = _bytes(where, key, value)
        elif key in _PATHS:
            values[key] = path.parent / os.path.expandvars(str(value))
        else:
            values[key] = value
    for key in ("name", "broker", "spool"):
        if key not in values:
            raise UsageError(f"{where}: there is no {key}")
    config = CollectorConfig(**values)
    try:
        config.check()
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return config


def _bytes(where: str, key: str, value: str | int) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise UsageError(f"{where}: {key}: {error}") from error


def _between(option: str, value: float, least: float, most: float, unit: str) -> None:
    if not least <= value <= most:
        raise UsageError(f"{option} {value} is not in {least}..{most} {unit}")


def _check_filter(topic_filter: str, *, everything: bool) -> None:
    """Raise UsageError if the filter is malformed [MQTT-4.7], or selects every topic and `everything` is False."""
    try:
        check_topic_filter(topic_filter)
    except InvalidArgument as error:
        raise UsageError(
            f"--topic {topic_filter!r} is not a topic filter: + and # are whole levels, and # is the last"
        ) from error
    levels = topic_filter.split("/")
    # In a shared subscription, the topic filter follows $share/GROUP.
    selecting = levels[2:] if levels[0] == "$share" else levels
    if selecting[-1:] == ["#"] and set(selecting[:-1]) <= {"+"} and not everything:
        raise UsageError(
            f"--topic {topic_filter} selects every topic of the broker, commands and other people's too: "
            "name what is wanted, or add --everything"
        )
