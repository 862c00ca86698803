"""Sparkplug B: messages on ``spBv1.0/GROUP/KIND/NODE[/DEVICE]``, readable only with their birth certificate.

A birth (NBIRTH, DBIRTH) names its metrics and gives each an alias and a type; data messages may use the alias alone.
So the content of births is remembered, separately for each pair of collector and edge node.

The messages of a node make up one series: the device_id is ``GROUP/NODE``, and metrics of the node's devices are
named ``DEVICE/METRIC``. The boot is ``bdSeq-TIMESTAMP`` of the NBIRTH, so a restart and a rebirth each begin a new
boot. The seq counts messages from the NBIRTH on, because Sparkplug's own seq wraps from 255 to 0.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, cast

from .fast_decode import TS_END
from .json import shown
from .reading import BadRecord, Reading, Topic, each_payload
from .record import a_name

_NODE_KINDS = ("NBIRTH", "NDATA", "NDEATH")
_DEVICE_KINDS = ("DBIRTH", "DDATA", "DDEATH")
_SEQ_END = 256
# All points but the newest are at least _POINT_EVERY messages apart, and at most _POINTS are kept: a redelivered
# message finds its number if it is newer than the oldest point.
_POINT_EVERY = 64
_POINTS = 64
_SESSIONS = 2
# At most this many metrics and aliases of all nodes: about 200 MB. Long names count as several.
_LARGEST = 1_000_000
_COUNTED_LENGTH = 64

_STRING, _BYTES, _UINT32, _UINT64, _FLOAT, _DOUBLE, _BOOL, _MESSAGE = 9, 12, 13, 4, 2, 1, 8, 11
_OPTIONAL, _REPEATED = 1, 3
# Message to (field, number, type in descriptor.proto). Data sets, templates and properties are not parsed: bytes.
_FIELDS = {
    "Metric": (
        ("name", 1, _STRING),
        ("alias", 2, _UINT64),
        ("timestamp", 3, _UINT64),
        ("datatype", 4, _UINT32),
        ("is_historical", 5, _BOOL),
        ("is_transient", 6, _BOOL),
        ("is_null", 7, _BOOL),
        ("metadata", 8, _BYTES),
        ("properties", 9, _BYTES),
        ("int_value", 10, _UINT32),
        ("long_value", 11, _UINT64),
        ("float_value", 12, _FLOAT),
        ("double_value", 13, _DOUBLE),
        ("boolean_value", 14, _BOOL),
        ("string_value", 15, _STRING),
        ("bytes_value", 16, _BYTES),
        ("dataset_value", 17, _BYTES),
        ("template_value", 18, _BYTES),
    ),
    "Payload": (
        ("timestamp", 1, _UINT64),
        ("metrics", 2, _MESSAGE),
        ("seq", 3, _UINT64),
        ("uuid", 4, _STRING),
        ("body", 5, _BYTES),
    ),
}
# Signed data type of a metric to the number of bits of its two's complement.
_SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}
_PACKAGE = "sparkplug_b"


@cache
def _parser() -> Callable[[bytes], Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _FIELDS.items():
        one = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            label: Any = _REPEATED if kind == _MESSAGE else _OPTIONAL
            added = one.field.add(name=field_name, number=number, type=cast(Any, kind), label=label)
            if kind == _MESSAGE:
                added.type_name = f".{_PACKAGE}.Metric"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Payload")).FromString


@dataclass
class _Session:
    """The session of a node: from one NBIRTH to the next.

    :ivar boot: the boot of its readings, ``bdSeq-TIMESTAMP``.
    :ivar born: timestamp of the NBIRTH, Unix milliseconds.
    :ivar first_seq: Sparkplug's seq of the NBIRTH.
    :ivar metrics: path to data type.
    :ivar aliases: alias to path.
    :ivar points: (timestamp, number) of some messages, both ascending; the last is the newest message.
    """

    boot: str
    born: int
    first_seq: int
    metrics: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    points: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of metrics and aliases that the session defines; long names count as several."""
        return _size(self.metrics) + len(self.aliases)

    def number(self, seq: int, timestamp: int, redelivered: bool) -> int:
        """Return a message's number in the session; the NBIRTH has 0.

        :param seq: Sparkplug's seq, 0 to 255.
        :param timestamp: of the message, Unix milliseconds.
        :param redelivered: the broker may have sent the message before.
        :raises BadRecord: a redelivered message is older than every remembered point.
        """
        position = (seq - self.first_seq) % _SEQ_END
        if redelivered:
            # It may be more than one round of seq older than the newest, so its timestamp decides where to count from.
            older = [number for at, number in self.points if at < timestamp]
            if not older and self.points[0][1]:
                raise BadRecord("it came again, and is older than what is remembered of its node")
            base = older[-1] if older else 0
            number = base + (position - base) % _SEQ_END
        else:
            base = self.points[-1][1] + 1
            number = base + (position - base) % _SEQ_END
        newest_at, newest = self.points[-1]
        if number > newest:
            # The last point is replaced if it is less than _POINT_EVERY messages after the point before it.
            if len(self.points) > 1 and newest - self.points[-2][1] < _POINT_EVERY:
                self.points.pop()
            self.points.append((max(timestamp, newest_at), number))
            del self.points[:-_POINTS]
        return number


class Births:
    """The remembered content of the births of all nodes.

    :param content: the result of :meth:`to_bytes`; empty if there were no births yet.
    :ivar changed: whether a message has changed it since it was saved; whoever saves it resets this.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.changed = False
        self._nodes: dict[str, list[_Session]] = {}
        for node, sessions in json.loads(content or b"{}").items():
            self._nodes[node] = [_Session(**one) for one in sessions]
        self._size = sum(one.size for sessions in self._nodes.values() for one in sessions)

    def to_bytes(self) -> bytes:
        """Return the whole content as JSON, to be passed to :class:`Births` later."""
        content = {node: [asdict(one) for one in sessions] for node, sessions in self._nodes.items()}
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    def result(self, collector: str, topic: str, payload: bytes, redelivered: bool) -> Reading | BadRecord:
        """Return the result of :meth:`read`, or the BadRecord that it raised."""
        try:
            return self.read(collector, topic, payload, redelivered=redelivered)
        except BadRecord as error:
            return error

    def read(self, collector: str, topic: str, payload: bytes, *, redelivered: bool = False) -> Reading:
        """Return the reading in a message. Call this in the order in which the collector received the messages.

        :param redelivered: the broker may have sent the message before (DUP).
        :raises BadRecord: the message cannot be read.
        """
        node, kind, device = parse_topic(topic)
        content = _parse(payload)
        if kind == "NDEATH":
            # NDEATH is the node's will: it has no seq and no timestamp.
            metrics, extra = _values(_found(content, "", None))
            return Reading(metrics, node, extra={**extra, "sparkplug": kind})
        seq, timestamp = _place(content, kind)
        self.changed = True
        prefix = f"{device}/" if device else ""
        key = f"{collector}\0{a_name(node, 'group/node')}"
        if kind in ("NBIRTH", "DBIRTH"):
            # Check all names before anything of this birth is remembered.
            for one in content.metrics:
                a_name(prefix + one.name if one.name else None, "a metric's name")
        if kind == "NBIRTH":
            session, number = self._begin(key, content), 0
        else:
            session = self._session(key, timestamp, redelivered)
            number = session.number(seq, timestamp, redelivered)
        if kind in ("NBIRTH", "DBIRTH"):
            self._define(self._nodes[key], session, content, prefix)
        metrics, extra = _values(_found(content, prefix, session))
        if kind not in ("NDATA", "DDATA"):
            extra["sparkplug"] = f"{kind} {device}" if device else kind
        return Reading(metrics, node, session.boot, number, ts=timestamp, extra=extra)

    def _begin(self, key: str, content: Any) -> _Session:
        counters = [one.long_value or one.int_value for one in content.metrics if one.name == "bdSeq"]
        if not counters:
            raise BadRecord("NBIRTH without bdSeq")
        boot, born = f"{counters[0]}-{content.timestamp}", content.timestamp
        # Move the node to the end: nodes are ordered by when they were last heard.
        sessions = self._nodes[key] = self._nodes.pop(key, [])
        for one in sessions:
            if one.boot == boot:
                return one
        sessions.append(_Session(boot, born, content.seq, points=[(born, 0)]))
        self._size -= sum(old.size for old in sessions[:-_SESSIONS])
        del sessions[:-_SESSIONS]
        return sessions[-1]

    def _session(self, key: str, timestamp: int, redelivered: bool) -> _Session:
        if key not in self._nodes:
            raise BadRecord("the birth certificate of its node was not received: ask the node for a rebirth")
        sessions = self._nodes[key] = self._nodes.pop(key)
        before = [one for one in sessions if one.born <= timestamp] if redelivered else []
        return before[-1] if before else sessions[-1]

    def _define(self, sessions: list[_Session], session: _Session, content: Any, prefix: str) -> None:
        """Remember the metrics of a birth.

        :param sessions: the sessions of the node, of which `session` is one.
        :raises BadRecord: the node would have more than _LARGEST; nothing of the birth is remembered.
        """
        metrics = {prefix + one.name: one.datatype for one in content.metrics}
        aliases = {str(one.alias): prefix + one.name for one in content.metrics if one.HasField("alias")}
        added = _size(metrics.keys() - session.metrics.keys()) + len(aliases.keys() - session.aliases.keys())
        if session is sessions[-1] and sum(one.size for one in sessions) + added > _LARGEST:
            self._size -= sum(one.size for one in sessions[:-1])
            del sessions[:-1]
        if sum(one.size for one in sessions) + added > _LARGEST:
            raise BadRecord(f"its node has births of more than {_LARGEST:,} metrics and aliases: this one is too many")
        session.metrics.update(metrics)
        session.aliases.update(aliases)
        self._size += added
        self._forget_silent(keep=1)

    def _forget_silent(self, keep: int) -> None:
        """Forget the nodes that were silent for longest, down to _LARGEST; they are unknown until their next birth.

        :param keep: the number of nodes to keep in any case.
        """
        while self._size > _LARGEST and len(self._nodes) > keep:
            silent = self._nodes.pop(next(iter(self._nodes)))
            self._size -= sum(one.size for one in silent)


def _size(paths: Iterable[str]) -> int:
    return sum(1 + len(path) // _COUNTED_LENGTH for path in paths)


def parse_topic(topic: str) -> tuple[str, str, str | None]:
    """Return ``GROUP/NODE``, the kind of message, and the device or None. Raises BadRecord for other topics."""
    levels = topic.split("/")
    kinds = {4: _NODE_KINDS, 5: _DEVICE_KINDS}.get(len(levels), ())
    if levels[0] != "spBv1.0" or levels[2:3] == [] or levels[2] not in kinds or not all(levels):
        raise BadRecord("its topic is not one of Sparkplug's births, data and deaths")
    return f"{levels[1]}/{levels[3]}", levels[2], levels[4] if len(levels) == 5 else None


def node_of(topic: str) -> str | None:
    """Return ``GROUP/NODE`` of a Sparkplug topic, or None for other topics."""
    try:
        return parse_topic(topic)[0]
    except BadRecord:
        return None


@each_payload
def read_alone(topic: Topic, payload: bytes) -> Reading:
    """Read a message without the births before it, for callers that need only its device."""
    return Births().read("", topic.name, payload)


def _parse(payload: bytes) -> Any:
    from google.protobuf import message

    try:
        content = _parser()(payload)
    except (message.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"not a Sparkplug payload: {error}") from None
    # For text that is not UTF-8, Protobuf returns bytes and leaves the check to the reader.
    if not all(type(one.name) is str and type(one.string_value) is str for one in content.metrics):
        raise BadRecord("not a Sparkplug payload: a text is not UTF-8")
    return content


def _place(content: Any, kind: str) -> tuple[int, int]:
    """Return the seq and timestamp of a message. Raises BadRecord if one is missing or out of range."""
    for name in ("seq", "timestamp"):
        if not content.HasField(name):
            raise BadRecord(f"{kind} without {name}")
    if content.seq >= _SEQ_END or content.timestamp >= TS_END:
        raise BadRecord(f"seq or timestamp is out of range: {content.seq}, {content.timestamp}")
    return content.seq, content.timestamp


def _found(content: Any, prefix: str, session: _Session | None) -> Iterator[tuple[str, object]]:
    """Yield (path, value) of each metric; a value of type bytes is the reason why this metric alone is refused.

    A metric is refused if no birth has named it, or if its value is neither a number nor text.
    """
    for one in content.metrics:
        path = prefix + one.name if one.name else None
        if path is None and session is not None and one.HasField("alias"):
            path = session.aliases.get(str(one.alias))
        if path is None:
            yield f"alias {one.alias}", b"no birth certificate has it"
        else:
            yield path, _value(one, one.datatype or (session.metrics.get(path, 0) if session else 0))


def _value(one: Any, datatype: int) -> object:
    if one.is_null:
        return None
    bits = _SIGNED.get(datatype)
    for name in ("int_value", "long_value"):
        if one.HasField(name):
            number = getattr(one, name)
            if bits is None:
                return number
            number &= (1 << bits) - 1
            return number - (1 << bits) if number >> (bits - 1) else number
    for name in ("float_value", "double_value", "string_value"):
        if one.HasField(name):
            return getattr(one, name)
    if one.HasField("boolean_value"):
        return float(one.boolean_value)
    is_other = any(one.HasField(name) for name in ("bytes_value", "dataset_value", "template_value"))
    return b"a value that is neither number nor text" if is_other else None


def _values(found: Iterator[tuple[str, object]]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the metrics and the texts. A path's second value becomes the metric ``PATH again``, which is refused."""
    metrics: dict[str, object] = {}
    extra: dict[str, object] = {}
    for path, value in found:
        if path in metrics or path in extra:
            metrics[f"{path} again"] = f"one of several values: {shown(value)}"
        elif isinstance(value, str):
            extra[path] = value
        else:
            metrics[path] = value
    return metrics, extra
