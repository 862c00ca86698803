"""Sparkplug B: messages on ``spBv1.0/GROUP/KIND/NODE[/DEVICE]``, readable only with their birth certificate.

A birth (NBIRTH, DBIRTH) names its metrics and gives each an alias and a type; data messages may use the alias alone.
So the content of births is remembered, separately for each pair of collector and edge node. A death ends that: births
are QoS 0 and may be lost, and the aliases of the next session can be others.

The messages of a node make up one series: the device_id is ``GROUP/NODE``, and metrics of the node's devices are
named ``DEVICE/METRIC``. The boot is ``bdSeq-TIMESTAMP`` of the NBIRTH, so a restart and a rebirth each begin a new
boot. The seq counts messages from the NBIRTH on, because Sparkplug's own seq wraps from 255 to 0.

Each metric has a time of its own. A message with several times becomes several readings: the newest has the message's
number, and the others are identified by their place.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from .fast_decode import TS_END
from .json import shown
from .reading import BadRecord, Reading, Result, Status, Topic, each_payload
from .record import a_name
from .sparkplug_payload import Value, parse, values

_NODE_KINDS = ("NBIRTH", "NDATA", "NDEATH")
_DEVICE_KINDS = ("DBIRTH", "DDATA", "DDEATH")
_SEQ_END = 256
# All points but the newest are at least _POINT_EVERY messages apart, and at most _POINTS are kept: a redelivered
# message finds its number if it is newer than the oldest point.
_POINT_EVERY = 64
_POINTS = 64
_SESSIONS = 2
_KIND = "sparkplug"
# At most this many metrics, aliases and devices of all nodes: about 200 MB. Long names count as several, a session as
# _OF_A_SESSION. When they are full, the largest of the nodes with more than one share of them gives way.
_LARGEST = 1_000_000
_SHARES = 64
_COUNTED_LENGTH = 64
_OF_A_SESSION = 8


@dataclass
class _Session:
    """The session of a node: from one NBIRTH to the next.

    :ivar boot: the boot of its readings, ``bdSeq-TIMESTAMP``.
    :ivar born: timestamp of the NBIRTH, Unix milliseconds.
    :ivar first_seq: Sparkplug's seq of the NBIRTH.
    :ivar bd_seq: its bdSeq, which its NDEATH has too.
    :ivar metrics: name to data type, by device; "" for the node's own metrics.
    :ivar aliases: alias to path, by device: an alias of another is unknown.
    :ivar defined: the number of the birth that `aliases` are from, by device.
    :ivar points: (timestamp, number) of some messages, both ascending; the last is the newest message.
    :ivar is_dead: its NDEATH was received.
    """

    boot: str
    born: int
    first_seq: int
    bd_seq: int
    metrics: dict[str, dict[str, int]] = field(default_factory=dict)
    aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)
    points: list[tuple[int, int]] = field(default_factory=list)
    is_dead: bool = False

    @property
    def size(self) -> int:
        """What the session counts as: itself, its metrics, aliases and devices; long names count as several."""
        metrics = sum(map(_size, self.metrics.values()))
        return _OF_A_SESSION + metrics + _size(self.defined) + sum(map(len, self.aliases.values()))

    def is_of_another(self, path: str, device: str | None) -> bool:
        """Return whether a path is that of another series: one of the node's own metrics, or one of a device's.

        The node's own metric of that path, if the births have one, is the one that it names.
        """
        if device:
            return path in self.metrics.get("", ())
        other, _, name = path.partition("/")
        return other != "" and name in self.metrics.get(other, ()) and path not in self.metrics.get("", ())

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
                raise BadRecord(_TOO_OLD)
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


_read_nodes = msgspec.json.Decoder(dict[str, list[_Session]]).decode


class Births:
    """The remembered content of the births of all nodes.

    :param content: the result of :meth:`to_bytes`; empty if there were no births yet.
    :ivar changed: whether a message has changed it since it was saved; whoever saves it resets this.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.changed = False
        self._nodes: dict[str, list[_Session]] = _read_nodes(content or b"{}")
        self._size = 0
        self._sizes: dict[str, int] = {}
        # The nodes with more than their share.
        self._large: set[str] = set()
        for node, sessions in self._nodes.items():
            self._count(node, sum(one.size for one in sessions))

    def to_bytes(self) -> bytes:
        """Return the whole content as JSON, to be passed to :class:`Births` later."""
        return msgspec.json.encode(self._nodes)

    def result(self, collector: str, topic: str, payload: bytes, redelivered: bool) -> list[Result]:
        """Return the result of :meth:`read`, or the BadRecord that it raised."""
        try:
            return self.read(collector, topic, payload, redelivered=redelivered)
        except BadRecord as error:
            return [error]

    def read(self, collector: str, topic: str, payload: bytes, *, redelivered: bool = False) -> list[Result]:
        """Return what is in a message. Call this in the order in which the collector received the messages.

        The first is the reading that has the message's number; readings of other times, which have none, and the
        node's status follow.

        :param redelivered: the broker may have sent the message before (DUP).
        :raises BadRecord: the message cannot be read.
        """
        node, kind, device = parse_topic(topic)
        content = parse(payload)
        key = f"{collector}\0{a_name(node, 'group/node')}"
        if kind == "NDEATH":
            return self._end(key, node, content)
        seq, timestamp = _place(content, kind)
        self.changed = True
        if kind in ("NBIRTH", "DBIRTH"):
            # Check all names before anything of this birth is remembered.
            for one in content.metrics:
                a_name(f"{device}/{one.name}" if device and one.name else one.name or None, "a metric's name")
        if kind == "NBIRTH":
            session, number, repeated = self._begin(key, content, redelivered)
        else:
            session = self._session(key, timestamp, redelivered)
            known = session.points[-1][1]
            number = None if seq is None else session.number(seq, timestamp, redelivered)
            repeated = redelivered and number is not None and number <= known
        # What a birth or death says is news only once: a later message may have changed it.
        if kind in ("NBIRTH", "DBIRTH") and not repeated:
            self._define(key, session, content, device, number or 0)
        readings = _readings(node, content, session, device, timestamp, number)
        extra, refused = dict(readings[0].extra), [*readings[0].refused]
        if kind not in ("NDATA", "DDATA"):
            if _KIND in extra:
                taken = "the name under which extra has the kind of the message"
                refused.append(f"metric {shown(_KIND)} has {taken}: {shown(extra[_KIND])}")
            extra[_KIND] = f"{kind} {device}" if device else kind
        if kind == "DDEATH" and device and not repeated:
            self._count(key, -len(session.aliases.pop(device, {})))
        boot = None if number is None else session.boot
        results: list[Result] = [
            replace(readings[0], boot=boot, seq=number, extra=extra, refused=refused),
            *readings[1:],
        ]
        if kind == "NBIRTH":
            results.append(Status(True, kind, node, session.boot))
        return results

    def _end(self, key: str, node: str, content: Any) -> list[Result]:
        """Read an NDEATH: the node's will, which has no seq. That of an earlier session is no news."""
        bd_seq = _bd_seq(content)
        newest = self._nodes[key][-1] if key in self._nodes else None
        if newest is not None:
            if bd_seq is not None and _is_older(bd_seq, newest.bd_seq):
                return []
            newest.is_dead = self.changed = True
        boot = newest.boot if newest is not None and newest.bd_seq == bd_seq else None
        return [Status(False, "NDEATH", node, boot, {} if bd_seq is None else {"bdSeq": bd_seq})]

    def _begin(self, key: str, content: Any, redelivered: bool) -> tuple[_Session, int, bool]:
        """Begin the session of an NBIRTH; return it, the NBIRTH's number, and whether the NBIRTH was known."""
        bd_seq = _bd_seq(content)
        if bd_seq is None:
            raise BadRecord("NBIRTH without bdSeq")
        boot, born = f"{bd_seq}-{content.timestamp}", content.timestamp
        # Move the node to the end: nodes are ordered by when they were last heard.
        sessions = self._nodes[key] = self._nodes.pop(key, [])
        for one in sessions:
            if one.boot == boot:
                one.is_dead &= redelivered
                return one, 0, redelivered
        if redelivered and sessions and born < sessions[-1].born:
            # Which session followed it is not known any more.
            raise BadRecord(_TOO_OLD)
        sessions.append(_Session(boot, born, content.seq, bd_seq, points=[(born, 0)]))
        self._count(key, _OF_A_SESSION)
        self._keep_sessions(key, _SESSIONS)
        return sessions[-1], 0, False

    def _session(self, key: str, timestamp: int, redelivered: bool) -> _Session:
        if key not in self._nodes:
            raise BadRecord(f"the birth certificate of its node was not received: {_REBIRTH}")
        sessions = self._nodes[key] = self._nodes.pop(key)
        before = [one for one in sessions if one.born <= timestamp] if redelivered else []
        if redelivered and not before:
            raise BadRecord(_TOO_OLD)
        session = before[-1] if before else sessions[-1]
        # What was sent before the death may come again after it.
        if session.is_dead and not (redelivered and timestamp <= session.points[-1][0]):
            raise BadRecord(f"its node died, and the next birth certificate was not received: {_REBIRTH}")
        return session

    def _define(self, key: str, session: _Session, content: Any, device: str | None, number: int) -> None:
        """Remember the metrics of a birth.

        :raises BadRecord: there is no room for them; nothing of the birth is remembered.
        """
        name, prefix = device or "", f"{device}/" if device else ""
        metrics = {one.name: one.datatype for one in content.metrics}
        aliases = {str(one.alias): prefix + one.name for one in content.metrics if one.HasField("alias")}
        mine = session.metrics.get(name, {})
        added = _size(metrics.keys() - mine.keys()) + len(aliases) - len(session.aliases.get(name, {}))
        added += _size({name} - session.defined.keys())
        self._make_room(key, session, added)
        session.metrics[name] = mine | metrics
        # A birth has all metrics, so aliases of the one before are over.
        session.aliases[name] = aliases
        session.defined[name] = number
        self._count(key, added)

    def _make_room(self, key: str, session: _Session, added: int) -> None:
        """Forget nodes until `added` more of a node's session fit; they are unknown until their next birth.

        The largest node with more than its share gives way; if there is none, the one that was silent for longest.

        :raises BadRecord: that is the node itself.
        """
        share = _LARGEST // _SHARES
        while self._size + added > _LARGEST:
            mine = self._sizes[key] + added
            largest, node = max(((self._sizes[one], one) for one in self._large - {key}), default=(0, ""))
            if mine <= max(share, largest):
                self._forget(node or next(iter(self._nodes)))
            elif session is self._nodes[key][-1] and len(self._nodes[key]) > 1:
                self._keep_sessions(key, 1)
            else:
                raise BadRecord(
                    f"only {_LARGEST:,} metrics and aliases of births are remembered, and its node would have most of "
                    "them: this birth is too many"
                )

    def _keep_sessions(self, key: str, number: int) -> None:
        sessions = self._nodes[key]
        self._count(key, -sum(old.size for old in sessions[:-number]))
        del sessions[:-number]

    def _forget(self, key: str) -> None:
        del self._nodes[key]
        self._count(key, -self._sizes[key])
        del self._sizes[key]

    def _count(self, key: str, change: int) -> None:
        self._size += change
        size = self._sizes[key] = self._sizes.get(key, 0) + change
        (self._large.add if size > _LARGEST // _SHARES else self._large.discard)(key)


_TOO_OLD = "it came again, and is older than what is remembered of its node"
_REBIRTH = "ask the node for a rebirth (umqtt sparkplug rebirth GROUP/NODE)"


def _size(names: Iterable[str]) -> int:
    return sum(1 + len(name) // _COUNTED_LENGTH for name in names)


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
def read_alone(topic: Topic, payload: bytes) -> list[Result]:
    """Read a message without the births before it, for callers that need only its device."""
    return Births().read("", topic.name, payload)


def _bd_seq(content: Any) -> int | None:
    return next((one.long_value or one.int_value for one in content.metrics if one.name == "bdSeq"), None)


def _is_older(bd_seq: int, than: int) -> bool:
    """Return whether a session is older than another one; bdSeq begins again after 255."""
    if max(bd_seq, than) < _SEQ_END:
        return (bd_seq - than) % _SEQ_END > _SEQ_END // 2
    return bd_seq < than


def _place(content: Any, kind: str) -> tuple[int | None, int]:
    """Return the seq and timestamp of a message. Raises BadRecord if one is missing or out of range."""
    # Some libraries send a DDEATH without seq; it has no values, and tells all the same that the device is gone.
    for name in ("timestamp",) if kind == "DDEATH" else ("seq", "timestamp"):
        if not content.HasField(name):
            raise BadRecord(f"{kind} without {name}")
    if content.seq >= _SEQ_END or content.timestamp >= TS_END:
        raise BadRecord(f"seq or timestamp is out of range: {content.seq}, {content.timestamp}")
    return content.seq if content.HasField("seq") else None, content.timestamp


class _Values:
    """The values of one time in a message."""

    def __init__(self) -> None:
        self.metrics: dict[str, object] = {}
        self.extra: dict[str, object] = {}
        self.refused: list[str] = []

    def add(self, path: str, value: Value) -> None:
        if value.refused:
            self.refused.append(f"metric {shown(path)} is {value.refused}")
        elif path in self.metrics or path in self.extra:
            self.refused.append(f"metric {shown(path)} has several values of one time: {shown(value.value)}")
        elif value.beside is not None:
            self.extra[path] = value.beside
        elif isinstance(value.value, str):
            self.extra[path] = value.value
        else:
            self.metrics[path] = value.value


def _readings(
    node: str, content: Any, session: _Session, device: str | None, timestamp: int, number: int | None
) -> list[Reading]:
    """Return one reading for each time in a message, the newest first."""
    # A message from before the newest birth that comes again has aliases that are not known any more.
    is_current = number is None or number >= session.defined.get(device or "", 0)
    aliases = session.aliases.get(device or "", {}) if is_current else {}
    times: dict[int, _Values] = {}
    refused: list[str] = []
    for one in content.metrics:
        at = one.timestamp if one.HasField("timestamp") else timestamp
        if at >= TS_END:
            refused.append(f"time: the timestamp of metric {shown(one.name)} is no time: {at}")
            at = timestamp
        mine = times.setdefault(at, _Values())
        for path, value in _named(one, session, aliases, device):
            mine.add(path, value)
    newest = max(times, default=timestamp)
    times.setdefault(newest, _Values()).refused[:0] = refused
    return [
        Reading(mine.metrics, node, ts=at, extra=mine.extra, refused=mine.refused)
        for at, mine in sorted(times.items(), reverse=True)
    ]


def _named(one: Any, session: _Session, aliases: dict[str, str], device: str | None) -> Iterator[tuple[str, Value]]:
    """Yield the path of each value of a metric, and the value."""
    prefix = f"{device}/" if device else ""
    path = prefix + one.name if one.name else aliases.get(str(one.alias))
    if path is None or not (one.name or one.HasField("alias")):
        whose = f"of {shown(device)}" if device else "of the node"
        yield f"alias {one.alias}", Value("", None, refused=f"unknown: no birth certificate {whose} has it")
        return
    known = session.metrics.get(device or "", {})
    for value in values(one, one.datatype or known.get(path[len(prefix) :], 0)):
        inner = path + value.name
        if session.is_of_another(inner, device):
            value = value._replace(refused=f"the node's and a device's: {shown(value.value)}")
        elif value.name and inner[len(prefix) :] in known:
            value = value._replace(refused="a part of another metric, and the name of a metric of its own")
        yield inner, value
