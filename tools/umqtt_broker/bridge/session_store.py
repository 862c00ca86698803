"""The client state of a bridge's session with the remote broker, kept in the bridge's session at the local broker.

umqtt_robust's client needs a store. This one writes nothing itself: packet identifiers are the same at both ends, so
the local session, which the broker keeps in its own store, already contains that state.

    outbound    a message leaves the local session when the remote broker has acknowledged it: PUBACK is passed on; at
                QoS 2, PUBREC and PUBCOMP are. After a crash the local session resends PUBLISH with DUP, or PUBREL,
                under the identifier that the remote broker knows.
    inbound     the local session records the packet identifiers of incoming QoS 2 messages; each message is routed in
                the transaction that records its identifier (4.3.3, method B).
    session     which remote broker this state belongs to: recorded as a subscription of the local session to
                $bridge/HOST:PORT. Messages published there, if any, are ignored.

A store promises that a change is durable when the method returns. RemoteLink keeps that promise: it sends nothing
before the local broker has answered.
"""

import time
from collections.abc import Callable, Iterator

from ..clients.internal_client import LocalEnd
from ..protocol.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from ..protocol.packets5 import shorten_expiry

NOTE = b"$bridge/"

# Flags of umqtt_robust's stores: an outbound message that awaits PUBCOMP; an inbound message that was delivered, whose
# packet identifier alone is still needed.
_AWAIT_PUBCOMP = 0x44
_HANDED_OVER = 0x80

# deliver(flags, packet_id, topic_name, payload) publishes an inbound message at the local broker.
Deliver = Callable[[int, int, bytes, bytes], None]


class BridgeStore:
    """The store interface of umqtt_robust (its store.py).

    local: the local end of the bridge. slots: how many messages may be in flight. persistent: False if neither broker
    keeps the session. deliver: see Deliver. clock: returns a monotonic time in seconds.
    """

    def __init__(
        self,
        local: LocalEnd,
        slots: int,
        persistent: bool,
        deliver: Deliver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots
        self.inbound = BridgeInbound(local, deliver)
        self._local = local
        self._persistent = persistent
        self._messages: dict[int, tuple[int, int, bytes, bytes]] = {}
        # By slot, the time at which put() got the message.
        self._taken_at: dict[int, float] = {}
        self._clock = clock
        notes = [name for name in local.session.subscriptions if name.startswith(NOTE)]
        self._session = notes[0][len(NOTE) :].decode() if len(notes) == 1 else None

    def restore(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the messages between PUBREC and PUBCOMP. The local session no longer has their payloads."""
        for slot, packet_id in enumerate(self._local.released):
            self._messages[slot] = packet_id, _AWAIT_PUBCOMP, b"", b""
            yield slot, packet_id, _AWAIT_PUBCOMP, slot + 1, 0

    def put(self, slot: int, packet_id: int, flags: int, topic: bytes, payload: bytes, lifetime: int) -> None:
        """Keep a message that the local session has in flight."""
        del lifetime
        self._messages[slot] = packet_id, flags, topic, payload
        self._taken_at[slot] = self._clock()

    def load(self, slot: int) -> tuple[bytes, bytes]:
        """Return topic and payload. The message expiry interval is reduced by the time spent here [MQTT-3.3.2-6]."""
        _, _, topic, payload = self._messages[slot]
        name, nul, properties = topic.partition(b"\0")
        waited = int(self._clock() - self._taken_at[slot]) if nul else 0
        return (b"\0".join((name, shorten_expiry(properties, waited))) if waited else topic), payload

    def change(self, slot: int, flags: int, rank: int) -> None:
        """Change a message's flags; if it was answered with PUBREC, pass that on to the local broker.

        The local broker answers with PUBREL once it has recorded the PUBREC. Before that, `rank` is a mark of
        umqtt_robust's quarantine.py, which no crash needs to outlive.
        """
        packet_id, _, topic, payload = self._messages[slot]
        self._messages[slot] = packet_id, flags, topic, payload
        if rank and flags & _AWAIT_PUBCOMP == _AWAIT_PUBCOMP:
            self._local.acknowledge(PUBREC, packet_id)

    def tombstone(self, slot: int) -> None:
        """Pass PUBACK or PUBCOMP on to the local broker: the remote broker has the message."""
        packet_id, flags, _, _ = self._messages.pop(slot)
        self._taken_at.pop(slot, None)
        if flags & _AWAIT_PUBCOMP == 4:  # a remote broker without QoS 2 has answered with PUBACK
            self._local.acknowledge(PUBREC, packet_id)
        self._local.acknowledge(PUBCOMP if flags & 4 else PUBACK, packet_id)

    @property
    def session(self) -> str | None:
        """The remote broker that the packet identifiers belong to, as HOST:PORT; None if it is not known."""
        return self._session

    @session.setter
    def session(self, name: str | None) -> None:
        if self._persistent:
            if self._session is not None:
                self._local.unsubscribe(NOTE + self._session.encode())
            if name is not None:
                self._local.subscribe(NOTE + name.encode(), 0)
        self._session = name


class BridgeInbound:
    """The inbound QoS 2 messages that wait for PUBREL: only their packet identifiers, since each is routed at once."""

    def __init__(self, local: LocalEnd, deliver: Deliver) -> None:
        self._local = local
        self._deliver = deliver
        self._ids = set(local.session.inbound)

    def ids(self) -> list[int]:
        """Return the packet identifiers."""
        return list(self._ids)

    def room(self) -> int:
        """Return how many more messages it takes; only the number of packet identifiers limits that."""
        return 65535 - len(self._ids)

    def get(self, packet_id: int) -> tuple[int, bytes, bytes] | None:
        """Return a message that waits for PUBREL, marked as delivered and without topic and payload; else None."""
        return (_HANDED_OVER, b"", b"") if packet_id in self._ids else None

    def put(self, packet_id: int, flags: int, topic: bytes, payload: bytes) -> None:
        """Route a message, which records its packet identifier too. A large message was routed with its last piece."""
        self._ids.add(packet_id)
        if not flags & _HANDED_OVER:
            self._deliver(flags, packet_id, topic, payload)

    def tombstone(self, packet_id: int) -> None:
        """Free a packet identifier: PUBREL has come."""
        self._ids.discard(packet_id)
        self._local.acknowledge(PUBREL, packet_id)
