"""QoS 2, both ways: MQTT 3.1.1, 4.3.3. The steps are those of states.OUTBOUND and states.INBOUND."""

from ._platform import const
from .packets import check_inbound_topic
from .states import AWAIT_PUBREC, UP

_PUBREC = const(0x50)
_PUBREL = const(0x62)  # with the flags that it must have [MQTT-3.6.1-1]
_PUBCOMP = const(0x70)
_HANDED_OVER = const(0x80)  # of a stored message: only its packet id still counts


class QoS2:
    def __init__(self, session):
        self._session = session
        self._store = session.outbox.store
        # Messages that lay in the store before this start: their handler may have run.
        self._old = list(self._store.inbound_ids())
        self._open = []  # packet ids that the program has not acknowledged
        self._resend = []  # slots whose PUBREL goes again on this link

    # Outbound

    def acknowledged(self, kind, packet_id):
        """PUBREC, PUBREL or PUBCOMP has come; there is room for the answer."""
        session = self._session
        if kind == _PUBREL & 0xF0:
            self._release(packet_id)
            return
        slot = session.acknowledged(packet_id, kind)
        if kind == _PUBREC:
            if slot >= 0 and session.outbox.state[slot] == AWAIT_PUBREC:
                session.outbox.release(slot, session.out.now)
            # For an unknown id too: otherwise the broker would keep it for ever.
            session.out.put_ack(_PUBREL, packet_id)
        elif slot < 0:
            session.pump()

    def resend(self):
        """A new link to the same session: PUBREL for every PUBREC, in their order [MQTT-4.6.0-4]."""
        self._resend = list(self._session.outbox.released)

    def pump(self):
        """Sends the PUBRELs that wait; False while there is no room for all of them."""
        session = self._session
        while self._resend:
            if not session.out.has_room_for_ack() and not session.out.flush():
                return False
            slot = self._resend.pop(0)
            session.outbox.resumed(slot, session.out.now)
            session.out.put_ack(_PUBREL, session.outbox.packet_id[slot])
        return True

    def link_lost(self):
        self._resend = []
        self._open = []

    # Inbound

    def received(self, head, packet_id, topic, payload):
        """PUBLISH: message and id are durable before PUBREC; an id that is known is the same message again."""
        if self._store.get_inbound(packet_id) is None:
            check_inbound_topic(topic)
            self._store.put_inbound(packet_id, head & 15, topic, payload)
        self._session.out.put_ack(_PUBREC, packet_id)

    def knows(self, packet_id):
        return self._store.get_inbound(packet_id) is not None

    def received_large(self, head, packet_id):
        """A message that was handed over, or skipped, while it arrived: only its id is kept."""
        if not self.knows(packet_id):
            self._store.put_inbound(packet_id, head & 15 | _HANDED_OVER, b"", b"")
        self._session.put_ack(_PUBREC, packet_id)

    def _release(self, packet_id):
        message = self._store.get_inbound(packet_id)
        if message is None:  # PUBCOMP was lost
            self._session.out.put_ack(_PUBCOMP, packet_id)
            return
        if packet_id in self._open:
            return
        flags, topic, payload = message
        session = self._session
        if session.manual_ack and not flags & _HANDED_OVER:
            self._open.append(packet_id)
        if not flags & _HANDED_OVER:
            session.inbound.deliver_stored(flags, packet_id, topic, payload, packet_id in self._old)
        if packet_id not in self._open and self.knows(packet_id):
            self._complete(packet_id)

    def handled(self, packet_id):
        """The program acknowledges a message; False when none of that id waits."""
        if packet_id not in self._open:
            return False
        self._open.remove(packet_id)
        self._complete(packet_id)
        return True

    def _complete(self, packet_id):
        # Removed before PUBCOMP: after it, the broker may use the id for another message, which a stale id would
        # swallow. A power cut right here hands the message over again, flagged as redelivered.
        self._store.tombstone_inbound(packet_id)
        if packet_id in self._old:
            self._old.remove(packet_id)
        if self._session.state == UP:
            self._session.put_ack(_PUBCOMP, packet_id)
