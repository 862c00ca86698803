"""The law that a traced run of the broker must satisfy: nothing leaves before the fdatasync that covers it.

A killed process proves nothing about fsync: the page cache survives it. So the system calls themselves are read, as
strace saw them: what the broker received, wrote to its store, synced, and sent, in that order. The law has one exact
exception: a message delivered at QoS 1 need not be on the disk once every persistent session subscribed to it has
acknowledged it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from broker_peer import Packet, decode
from law_peer import mirrored
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, parse_properties
from umqtt_testkit.strace import Event, events

CALLS = "accept4,recvfrom,recvmsg,read,sendto,sendmsg,write,writev,pwrite64,fdatasync,fsync"
"""System calls that the law looks at."""

CONNECT, SUBSCRIBE = 1, 8


class _Wire:
    """One direction of one connection: bytes in, packets out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, Packet]]:
        """Return the first byte and the packet of each packet that is now complete."""
        self._buffer += data
        packets = []
        while True:
            length, at = 0, 1
            while at < len(self._buffer) and self._buffer[at] & 128:
                length |= (self._buffer[at] & 127) << 7 * (at - 1)
                at += 1
            if at >= len(self._buffer):
                return packets
            length |= self._buffer[at] << 7 * (at - 1)
            end = at + 1 + length
            if len(self._buffer) < end:
                return packets
            packets.append((self._buffer[0], decode(self._buffer[0], bytes(self._buffer[at + 1 : end]))))
            del self._buffer[:end]


class _Connection:
    def __init__(self) -> None:
        self.received, self.sent = _Wire(), _Wire()
        self.protocol_level = 4
        self.client_id = b""
        self.is_persistent = False
        # What the client waits for, by kind of answer and packet identifier: the line of its request, and the
        # request.
        self.asked: dict[tuple[int, int], tuple[int, Packet]] = {}
        self.delivered: dict[int, bytes] = {}

    def without_properties(self, packet: Packet) -> Packet:
        """Return a PUBLISH whose payload is only that."""
        if self.protocol_level < 5 or packet.kind != PUBLISH:
            return packet
        return packet._replace(payload=packet.payload[parse_properties(packet.payload, 0)[1] :])

    def parts_of(self, payload: bytes) -> tuple[bytes, ...]:
        """Return what must be stored of a message."""
        return (payload, mirrored(payload)) if self.protocol_level == 5 else (payload,)


def _behind_properties(connection: _Connection, body: bytes, at: int) -> int:
    return parse_properties(body, at)[1] if connection.protocol_level == 5 else at


class TraceLaw:
    """Reads a trace line by line and keeps what broke the law in `violations`.

    subscribers: by topic name, the persistent sessions that get its QoS 1 and 2 messages.
    checked: number of packets checked, by kind.
    needless: PUBACKs that left with no fdatasync because every subscriber had acknowledged.
    Payloads must be unique, and none a part of another. With MQTT 5 the user property of a message must be safe, too.
    """

    def __init__(self, subscribers: dict[bytes, set[bytes]]) -> None:
        self.violations: list[str] = []
        self.checked: Counter[int] = Counter()
        self.needless = 0
        self._subscribers = subscribers
        self._connections: dict[int, _Connection] = {}
        self._line = 0
        # What was written to files, by line; completed fdatasyncs, as (begin, end) lines, in order of their ends.
        self._write_lines: list[int] = []
        self._writes: list[bytes] = []
        self._syncs: list[tuple[int, int]] = []
        self._acknowledged: set[tuple[bytes, bytes]] = set()
        self._published: dict[bytes, int] = {}

    def read(self, path: Path) -> None:
        """Check the whole trace."""
        for event in events(path):
            self._line = event.line
            if event.result is not None:
                self._end_call(event)
            # Data counts as sent when the call begins: from then on it may leave.
            elif event.name in ("sendto", "sendmsg", "write", "writev", "pwrite64"):
                self._begin_output(event)

    def _begin_output(self, event: Event) -> None:
        connection = self._connections.get(event.descriptor)
        if event.name == "pwrite64":
            self._write_lines.append(self._line)
            self._writes.append(event.data)
        elif connection is not None:
            for first_byte, packet in connection.sent.feed(event.data):
                self._on_sent(connection, first_byte >> 4, connection.without_properties(packet))

    def _end_call(self, event: Event) -> None:
        if event.name in ("fdatasync", "fsync"):
            self._syncs.append((event.begin, self._line))
        elif event.name == "accept4":
            assert event.result is not None
            self._connections[event.result] = _Connection()
        elif event.name in ("recvfrom", "recvmsg", "read"):
            connection = self._connections.get(event.descriptor)
            if connection is not None:
                for first_byte, packet in connection.received.feed(event.data):
                    self._on_received(connection, first_byte >> 4, connection.without_properties(packet))

    # What the client sent

    def _on_received(self, connection: _Connection, kind: int, packet: Packet) -> None:
        if kind == CONNECT:
            connection.protocol_level = packet.body[6]
            connection.is_persistent = not packet.body[7] & 2
            at = _behind_properties(connection, packet.body, 10)
            size = packet.body[at] << 8 | packet.body[at + 1]
            connection.client_id = packet.body[at + 2 : at + 2 + size]
            connection.asked[CONNACK, 0] = (self._line, packet)
        elif kind == PUBLISH and packet.qos:
            self._published.setdefault(packet.payload, self._line)
            connection.asked[PUBACK if packet.qos == 1 else PUBREC, packet.packet_id] = (self._line, packet)
        elif kind == PUBREL:
            connection.asked[PUBCOMP, packet.packet_id] = (self._line, packet)
        elif kind == PUBREC:
            connection.asked[PUBREL, packet.packet_id] = (self._line, packet)
        elif kind == SUBSCRIBE:
            connection.asked[SUBACK, packet.packet_id] = (self._line, packet)
        elif kind == PUBACK and packet.packet_id in connection.delivered:
            self._acknowledged.add((connection.client_id, connection.delivered.pop(packet.packet_id)))

    # What the broker answered

    def _on_sent(self, connection: _Connection, kind: int, packet: Packet) -> None:
        if kind == PUBLISH:
            connection.delivered[packet.packet_id] = packet.payload
            if packet.qos == 2 and connection.is_persistent:
                parts = connection.parts_of(packet.payload)
                self._require(kind, packet.payload, self._published[packet.payload], *parts)
            return
        asked = connection.asked.pop((kind, 0 if kind == CONNACK else packet.packet_id), None)
        if asked is None:
            return
        when, question = asked
        if kind in (PUBACK, PUBREC):
            self._on_publish_answered(connection, kind, when, question)
        elif not connection.is_persistent:
            return  # nothing of it outlives the connection
        elif kind == CONNACK:
            if not packet.body[0]:  # a session that was found was created, and safe, before
                self._require(kind, connection.client_id, when, connection.client_id)
        elif kind == SUBACK:
            at = _behind_properties(connection, question.body, 2)
            size = question.body[at] << 8 | question.body[at + 1]
            self._require(kind, b"of " + connection.client_id, when, question.body[at + 2 : at + 2 + size])
        else:
            self._require(kind, b"%d of %s" % (packet.packet_id, connection.client_id), when)

    def _on_publish_answered(self, connection: _Connection, kind: int, when: int, question: Packet) -> None:
        waiting = self._subscribers.get(question.topic_name, set())
        missing = any((name, question.payload) not in self._acknowledged for name in waiting)
        if kind == PUBACK and not missing and not question.retain:
            self.checked[kind] += 1
            if waiting and not self._is_safe(when, [question.payload]):
                self.needless += 1
            return
        # PUBREC also says that the packet identifier is safe: something was written, even if not the message.
        parts = connection.parts_of(question.payload) if missing or question.retain else ()
        self._require(kind, question.payload, when, *parts)

    def _require(self, kind: int, what: bytes, since: int, *parts: bytes) -> None:
        """Require that something written after line `since`, which contains all parts, is on the disk now."""
        self.checked[kind] += 1
        if not self._is_safe(since, parts):
            self.violations.append(f"line {self._line}: packet {kind} for {what!r}, asked in line {since}: not synced")

    def _is_safe(self, since: int, parts: Sequence[bytes]) -> bool:
        first = bisect.bisect_right(self._write_lines, since)
        for at in range(first, len(self._writes)):
            if all(part in self._writes[at] for part in parts):
                written = self._write_lines[at]
                return any(begin > written for begin, _ in self._syncs[bisect.bisect(self._syncs, (since, 0)) :])
        return False
