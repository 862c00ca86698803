"""A reference for what a broker owes its clients, simple enough to be trusted, and the check of a real broker.

The reference keeps lists; it has no windows, commits, pages on disk or cached routes. What the specification leaves
open
is left open here too: the order of the retained messages for a new subscription, of wills that are due at the same
time, and DUP on a message that a restarted broker may have sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count

from broker_peer import Closed, Packet, Peer
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL

Will = tuple[bytes, bytes, int, bool]


def matches(topic_filter: bytes, topic_name: bytes) -> bool:
    """Match by section 4.7, with one regular expression per filter, independent of any trie."""
    if topic_filter[:1] in (b"+", b"#") and topic_name[:1] == b"$":
        return False
    pattern = re.escape(topic_filter).replace(rb"\+", rb"[^/]*")
    if pattern == rb"\#":
        pattern = rb".*"
    elif pattern.endswith(rb"/\#"):
        pattern = pattern[:-3] + rb"(/.*)?"
    return re.fullmatch(pattern, topic_name, re.DOTALL) is not None


@dataclass
class Message:
    """A message owed to one client. `group`: messages of the same group may come in any order."""

    topic_name: bytes
    payload: bytes
    qos: int
    retain: bool
    group: int
    packet_id: int = 0
    sent: bool = False
    maybe_sent: bool = False

    def is_in(self, packet: Packet) -> bool:
        """Return whether the packet carries this message."""
        return (self.topic_name, self.payload, self.qos, self.retain) == (
            packet.topic_name,
            packet.payload,
            packet.qos,
            packet.retain,
        )


@dataclass
class Session:
    """What is owed to one client, and what the client owes.

    queue: messages of QoS 1 and 2 not sent on this connection. in_flight: sent and unacknowledged. released: packet
    identifiers of PUBRELs without a PUBCOMP. unfinished: the client's own QoS 2 messages without a PUBREL.
    owed_first: PUBRELs sent again after a reconnect, before any message. owed_pubrels: those that answer a PUBREC,
    among messages.
    """

    clean: bool
    peer: Peer | None = None
    will: Will | None = None
    subscriptions: dict[bytes, int] = field(default_factory=dict)
    queue: list[Message] = field(default_factory=list)
    in_flight: list[Message] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    unfinished: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    owed_qos0: list[Message] = field(default_factory=list)
    owed_first: list[int] = field(default_factory=list)
    owed_pubrels: list[int] = field(default_factory=list)
    owed_answers: list[tuple[int, int]] = field(default_factory=list)

    def go_offline(self) -> None:
        """End the connection: unacknowledged messages come again, first and in order; QoS 0 messages are lost."""
        for message in self.in_flight:
            message.sent = True
        self.queue[:0] = self.in_flight
        self.in_flight, self.owed_qos0, self.owed_answers = [], [], []
        self.owed_first, self.owed_pubrels = [], []
        self.peer, self.will = None, None

    def go_online(self, peer: Peer, will: Will | None) -> None:
        """Begin a new connection; PUBRELs come again first."""
        self.peer, self.will = peer, will
        self.owed_first = list(self.released)


class Reference:
    """All sessions and retained messages. `window`: the broker's max_inflight_messages."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.sessions: dict[bytes, Session] = {}
        self.retained: dict[bytes, tuple[bytes, int]] = {}
        self._groups = count()

    @property
    def connected(self) -> list[bytes]:
        """Return the client identifiers with a connection."""
        return [client_id for client_id, session in self.sessions.items() if session.peer is not None]

    def publish(self, topic_name: bytes, payload: bytes, qos: int, retain: bool, group: int | None = None) -> None:
        """Route a message: each session gets it once, at the lower of its QoS and the highest QoS granted."""
        group = next(self._groups) if group is None else group
        if retain and payload:
            self.retained[topic_name] = payload, qos
        elif retain:
            self.retained.pop(topic_name, None)
        for session in self.sessions.values():
            granted = [each for name, each in session.subscriptions.items() if matches(name, topic_name)]
            if granted:
                self._mark_pending(session, Message(topic_name, payload, min(qos, max(granted)), False, group))

    def subscribe(self, session: Session, topic_filter: bytes, qos: int) -> None:
        """Add or replace a subscription; in both cases its retained messages are sent."""
        session.subscriptions[topic_filter] = qos
        group = next(self._groups)
        for topic_name, (payload, retained_qos) in self.retained.items():
            if matches(topic_filter, topic_name):
                self._mark_pending(session, Message(topic_name, payload, min(qos, retained_qos), True, group))

    def connect(self, client_id: bytes, clean: bool) -> bool:
        """Let a client in. Returns session_present."""
        self.disconnect(client_id, with_will=True)
        found = self.sessions.get(client_id)
        present = found is not None and not clean
        if not present:
            self.sessions[client_id] = Session(clean)
        return present

    def disconnect(self, client_id: bytes, *, with_will: bool) -> None:
        """End the connection of a client, if it has one."""
        session = self.sessions.get(client_id)
        if session is None or session.peer is None:
            return
        will = session.will
        if session.clean:
            del self.sessions[client_id]
        session.go_offline()
        if will is not None and with_will:
            self.publish(*will)

    def restart(self) -> None:
        """Restart the broker with its store: every connection ends, every will is published."""
        group = next(self._groups)
        for session in list(self.sessions.values()):
            if session.will is not None:
                self.publish(*session.will, group)
        for client_id, session in list(self.sessions.items()):
            if session.clean:
                del self.sessions[client_id]
            for message in session.queue:
                message.maybe_sent = True
            session.go_offline()

    @staticmethod
    def _mark_pending(session: Session, message: Message) -> None:
        if message.qos:
            session.queue.append(message)
        elif session.peer is not None:
            session.owed_qos0.append(message)

    # The check against a real broker

    def settle(self) -> None:
        """Receive what is owed to everyone connected, and nothing else. Raises AssertionError."""
        for client_id in self.connected:
            self._settle(client_id, self.sessions[client_id])

    def _settle(self, client_id: bytes, session: Session) -> None:
        assert session.peer is not None
        while self._is_owed(session):
            try:
                packet = session.peer.receive()
            except (TimeoutError, Closed) as error:
                raise AssertionError(f"{client_id!r} did not get what it is owed: {session}") from error
            self._take(client_id, session, packet)
        extra = session.peer.flush()
        assert not extra, (client_id, extra)

    def _has_room(self, session: Session) -> bool:
        return len(session.in_flight) + len(session.released) < self.window

    def _is_owed(self, session: Session) -> bool:
        waiting = session.queue and self._has_room(session)
        owed = (session.owed_qos0, session.owed_first, session.owed_pubrels, session.owed_answers)
        return bool(waiting or any(owed))

    def _take(self, client_id: bytes, session: Session, packet: Packet) -> None:
        if packet.kind == PUBREL:
            owed = session.owed_first or session.owed_pubrels
            assert owed and owed.pop(0) == packet.packet_id, (client_id, packet)
        elif packet.kind != PUBLISH:
            assert session.owed_answers, (client_id, packet)
            assert session.owed_answers.pop(0) == (packet.kind, packet.packet_id), (client_id, packet)
        elif packet.qos == 0:
            found = [message for message in session.owed_qos0 if message.is_in(packet)]
            assert found, (client_id, packet, session.owed_qos0)
            session.owed_qos0.remove(found[0])
        else:
            self._take_from_queue(client_id, session, packet)

    def _take_from_queue(self, client_id: bytes, session: Session, packet: Packet) -> None:
        assert session.queue, (client_id, "owed nothing", packet)
        assert self._has_room(session), (client_id, "more than the window", packet)
        assert not session.owed_first, (client_id, "before PUBRELs", packet)
        used = {*session.released, *(message.packet_id for message in session.in_flight)}
        assert packet.packet_id not in used, (client_id, "identifier in use", packet)
        first = session.queue[0]
        found = next((each for each in session.queue if each.group == first.group and each.is_in(packet)), None)
        assert found is not None, (client_id, "owed first", first, packet)
        if found.sent:
            assert packet.dup and packet.packet_id == found.packet_id, (client_id, "sent before", found, packet)
        else:
            assert found.maybe_sent or not packet.dup, (client_id, "never sent before", found, packet)
        found.packet_id = packet.packet_id
        session.queue.remove(found)
        session.in_flight.append(found)

    def acknowledge(self, session: Session, message: Message) -> int:
        """Answer a message as the client. Returns the kind of its packet."""
        session.in_flight.remove(message)
        if message.qos == 1:
            return PUBACK
        session.released.append(message.packet_id)
        session.owed_pubrels.append(message.packet_id)
        return PUBREC

    def complete(self, session: Session, packet_id: int) -> int:
        """Answer a PUBREL as the client. Returns the kind of its packet."""
        session.released.remove(packet_id)
        return PUBCOMP
