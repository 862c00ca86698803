"""Sparkplug B: messages on ``spBv1.0/GROUP/KIND/NODE[/DEVICE]``, which only a birth certificate makes readable.

A birth (NBIRTH, DBIRTH) names its metrics and gives each an alias and a type; data may have the alias alone. So what
births have said is remembered, for each edge node as a collector hears it.

A node's messages make one series: a reading is of ``GROUP/NODE``, and metrics of its devices are ``DEVICE/METRIC``.
Its boot is ``bdSeq-TIMESTAMP`` of the NBIRTH, so a restart and a rebirth begin a new one. Its seq is counted on from
NBIRTH, since Sparkplug's goes from 255 to 0.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, cast

from .json import shown
from .plain import TS_END
from .reading import BadRecord, Reading, Topic, each_payload
from .record import a_name

_NODE_KINDS = ("NBIRTH", "NDATA", "NDEATH")
_DEVICE_KINDS = ("DBIRTH", "DDATA", "DDEATH")
_SEQ_END = 256
# So many messages back a redelivered one finds its number.
_POINT_EVERY = 64
_POINTS = 64
_SESSIONS = 2
# Metrics and aliases of all nodes: about 200 MB.
_LARGEST = 1_000_000

_STRING, _BYTES, _UINT32, _UINT64, _FLOAT, _DOUBLE, _BOOL, _MESSAGE = 9, 12, 13, 4, 2, 1, 8, 11
_OPTIONAL, _REPEATED = 1, 3
# Message: (field, its number, its type in descriptor.proto). Data sets, templates and properties are not read: bytes.
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
# Data type of a metric: how many bits its two's complement has.
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
    """From an NBIRTH to the next.

    :ivar metrics: path to data type; :ivar aliases: alias to path.
    :ivar points: (timestamp, number) of some messages, both rising; the last is the newest.
    """

    boot: str
    born: int
    first_seq: int
    metrics: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    points: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Metrics and aliases that it defines."""
        return len(self.metrics) + len(self.aliases)

    def number(self, seq: int, timestamp: int, redelivered: bool) -> int:
        """A message's number since NBIRTH, which has 0."""
        position = (seq - self.first_seq) % _SEQ_END
        if redelivered:
            # From before the newest, perhaps by more than one round: its time says where to count from.
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
            # The one before stays only where it is far enough from the one before that.
            if len(self.points) > 1 and newest - self.points[-2][1] < _POINT_EVERY:
                self.points.pop()
            self.points.append((max(timestamp, newest_at), number))
            del self.points[:-_POINTS]
        return number


class Births:
    """What the births of all nodes have said.

    :param content: what :meth:`to_bytes` returned; empty: nothing yet.
    :ivar changed: whether a message has added to it; whoever saves it sets it back.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.changed = False
        self._nodes: dict[str, list[_Session]] = {}
        for node, sessions in json.loads(content or b"{}").items():
            self._nodes[node] = [_Session(**one) for one in sessions]
        self._size = sum(one.size for sessions in self._nodes.values() for one in sessions)

    def to_bytes(self) -> bytes:
        """Everything, for :class:`Births`."""
        content = {node: [asdict(one) for one in sessions] for node, sessions in self._nodes.items()}
        return json.dumps(content, separators=(",", ":")).encode()

    def result(self, collector: str, topic: str, payload: bytes, redelivered: bool) -> Reading | BadRecord:
        """As :meth:`read`, which raises."""
        try:
            return self.read(collector, topic, payload, redelivered=redelivered)
        except BadRecord as error:
            return error

    def read(self, collector: str, topic: str, payload: bytes, *, redelivered: bool = False) -> Reading:
        """The reading that a message makes. A collector's messages are read in the order in which it received them.

        :param redelivered: the broker may have sent the message before (DUP).
        :raises BadRecord: it cannot be read.
        """
        node, kind, device = parse_topic(topic)
        content = _parse(payload)
        if kind == "NDEATH":
            # The will: it has no seq and no time of its own.
            metrics, extra = _values(_found(content, "", None))
            return Reading(metrics, node, extra={**extra, "sparkplug": kind})
        seq, timestamp = _place(content, kind)
        self.changed = True
        prefix = f"{device}/" if device else ""
        key = f"{collector}\0{a_name(node, 'group/node')}"
        if kind in ("NBIRTH", "DBIRTH"):
            # Looked at before anything is remembered of it.
            for one in content.metrics:
                a_name(prefix + one.name if one.name else None, "a metric's name")
        if kind == "NBIRTH":
            session, number = self._begin(key, content), 0
        else:
            session = self._session(key, timestamp, redelivered)
            number = session.number(seq, timestamp, redelivered)
        if kind in ("NBIRTH", "DBIRTH"):
            self._define(session, content, prefix)
        metrics, extra = _values(_found(content, prefix, session))
        if kind not in ("NDATA", "DDATA"):
            extra["sparkplug"] = f"{kind} {device}" if device else kind
        return Reading(metrics, node, session.boot, number, ts=timestamp, extra=extra)

    def _begin(self, key: str, content: Any) -> _Session:
        counters = [one.long_value or one.int_value for one in content.metrics if one.name == "bdSeq"]
        if not counters:
            raise BadRecord("NBIRTH without bdSeq")
        boot, born = f"{counters[0]}-{content.timestamp}", content.timestamp
        # Who spoke last comes last.
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

    def _define(self, session: _Session, content: Any, prefix: str) -> None:
        before = session.size
        for one in content.metrics:
            session.metrics[prefix + one.name] = one.datatype
            if one.HasField("alias"):
                session.aliases[str(one.alias)] = prefix + one.name
        self._size += session.size - before
        while self._size > _LARGEST and len(self._nodes) > 1:
            # The node that was silent for longest is unknown until its next birth.
            silent = self._nodes.pop(next(iter(self._nodes)))
            self._size -= sum(one.size for one in silent)


def parse_topic(topic: str) -> tuple[str, str, str | None]:
    """``GROUP/NODE``, the kind of message, and the device, if it is of one; raises BadRecord for other topics."""
    levels = topic.split("/")
    kinds = {4: _NODE_KINDS, 5: _DEVICE_KINDS}.get(len(levels), ())
    if levels[0] != "spBv1.0" or levels[2:3] == [] or levels[2] not in kinds or not all(levels):
        raise BadRecord("its topic is not one of Sparkplug's births, data and deaths")
    return f"{levels[1]}/{levels[3]}", levels[2], levels[4] if len(levels) == 5 else None


def node_of(topic: str) -> str | None:
    """``GROUP/NODE`` of a topic; None for other topics."""
    try:
        return parse_topic(topic)[0]
    except BadRecord:
        return None


@each_payload
def read_alone(topic: Topic, payload: bytes) -> Reading:
    """A message as it reads without the births before it: for what needs its device alone."""
    return Births().read("", topic.name, payload)


def _parse(payload: bytes) -> Any:
    from google.protobuf import message

    try:
        content = _parser()(payload)
    except (message.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"not a Sparkplug payload: {error}") from None
    # Protobuf leaves it to the reader whether a text is one, and then gives its bytes.
    if not all(type(one.name) is str and type(one.string_value) is str for one in content.metrics):
        raise BadRecord("not a Sparkplug payload: a text is not UTF-8")
    return content


def _place(content: Any, kind: str) -> tuple[int, int]:
    """seq and timestamp of a message; raises BadRecord."""
    for name in ("seq", "timestamp"):
        if not content.HasField(name):
            raise BadRecord(f"{kind} without {name}")
    if content.seq >= _SEQ_END or content.timestamp >= TS_END:
        raise BadRecord(f"seq or timestamp is out of range: {content.seq}, {content.timestamp}")
    return content.seq, content.timestamp


def _found(content: Any, prefix: str, session: _Session | None) -> Iterator[tuple[str, object]]:
    """(path, value) of each metric. One that no birth has named is refused alone, as what is no number is."""
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
    """Metrics and texts. A value that is neither, or one of several of a metric, is refused by its rule alone."""
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
