"""The bridge's half of the session with the remote broker, kept in its session at the local one.

umqtt_robust's client asks for a store. This one writes nothing itself: packet identifiers are the same at both ends, so
the local session, which the broker keeps in its own store, is that half already.

    outbound    a message leaves the local session when the remote broker has acknowledged it: PUBACK is handed on, at
                QoS 2 PUBREC and PUBCOMP are. After a crash the local session sends again PUBLISH with DUP or PUBREL,
                under the identifier that the remote broker knows.
    inbound     the local session has the identifiers at QoS 2 that came; each message was routed in the transaction
                that recorded its identifier (4.3.3, method B).
    session     the remote broker that both belong to: a subscription of the local session to $bridge/HOST:PORT, whose
                messages, should anybody publish there, are left out.

What a store promises, that a change is durable when the method returns, RemoteLink makes true: nothing leaves before
the local broker has answered.
"""

import time
from collections.abc import Callable, Iterator

from ..clients.internal_client import LocalEnd
from ..protocol.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from ..protocol.packets5 import shorten_expiry

NOTE = b"$bridge/"

# Of umqtt_robust's stores: an outbound message that awaits PUBCOMP; an inbound one of which only its packet identifier
# still counts.
_AWAIT_PUBCOMP = 0x44
_HANDED_OVER = 0x80

# deliver(flags, packet_id, topic_name, payload) hands an inbound message to the local broker.
Deliver = Callable[[int, int, bytes, bytes], None]


class BridgeStore:
    """A store as umqtt_robust/store.py describes it. slots: messages that may be in flight. clock: in seconds."""

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
        # Of those, when each was taken, in seconds.
        self._taken_at: dict[int, float] = {}
        self._clock = clock
        notes = [name for name in local.session.subscriptions if name.startswith(NOTE)]
        self._session = notes[0][len(NOTE) :].decode() if len(notes) == 1 else None

    def restore(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Return the messages between PUBREC and PUBCOMP. The local session has let go of their payloads."""
        for slot, packet_id in enumerate(self._local.released):
            self._messages[slot] = packet_id, _AWAIT_PUBCOMP, b"", b""
            yield slot, packet_id, _AWAIT_PUBCOMP, slot + 1, 0

    def put(self, slot: int, packet_id: int, flags: int, topic: bytes, payload: bytes, lifetime: int) -> None:
        """Take a message that the local session has in flight."""
        del lifetime
        self._messages[slot] = packet_id, flags, topic, payload
        self._taken_at[slot] = self._clock()

    def load(self, slot: int) -> tuple[bytes, bytes]:
        """Return topic and payload. The message expiry interval is shorter by the time spent here [MQTT-3.3.2-6]."""
        _, _, topic, payload = self._messages[slot]
        name, nul, properties = topic.partition(b"\0")
        waited = int(self._clock() - self._taken_at[slot]) if nul else 0
        return (b"\0".join((name, shorten_expiry(properties, waited))) if waited else topic), payload

    def change(self, slot: int, flags: int, rank: int) -> None:
        """Hand on PUBREC; its answer, PUBREL, comes when the local broker has recorded that."""
        packet_id, _, topic, payload = self._messages[slot]
        self._messages[slot] = packet_id, flags, topic, payload
        if rank:
            self._local.acknowledge(PUBREC, packet_id)

    def tombstone(self, slot: int) -> None:
        """Hand on PUBACK or PUBCOMP: the remote broker has the message."""
        packet_id, flags, _, _ = self._messages.pop(slot)
        self._taken_at.pop(slot, None)
        if flags & _AWAIT_PUBCOMP == 4:  # a remote broker without QoS 2 has answered with PUBACK
            self._local.acknowledge(PUBREC, packet_id)
        self._local.acknowledge(PUBCOMP if flags & 4 else PUBACK, packet_id)

    @property
    def session(self) -> str | None:
        """The remote broker that packet identifiers belong to, as HOST:PORT."""
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
    """Where inbound messages at QoS 2 wait for PUBREL: their identifiers only, since each is routed at once."""

    def __init__(self, local: LocalEnd, deliver: Deliver) -> None:
        self._local = local
        self._deliver = deliver
        self._ids = set(local.session.inbound)

    def ids(self) -> list[int]:
        """Return the packet identifiers."""
        return list(self._ids)

    def room(self) -> int:
        """Return how many more it takes: an identifier needs no room."""
        return 65535 - len(self._ids)

    def get(self, packet_id: int) -> tuple[int, bytes, bytes] | None:
        """Return the message as one that was handed over, or None."""
        return (_HANDED_OVER, b"", b"") if packet_id in self._ids else None

    def put(self, packet_id: int, flags: int, topic: bytes, payload: bytes) -> None:
        """Route a message, and record its identifier with it. A large one was routed when its last piece came."""
        self._ids.add(packet_id)
        if not flags & _HANDED_OVER:
            self._deliver(flags, packet_id, topic, payload)

    def tombstone(self, packet_id: int) -> None:
        """Free an identifier."""
        self._ids.discard(packet_id)
        self._local.acknowledge(PUBREL, packet_id)
