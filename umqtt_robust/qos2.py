"""QoS 2, both ways: MQTT 3.1.1, 4.3.3. Every step is in OUTBOUND or INBOUND."""

from ._platform import const
from .base_errors import ProtocolError
from .errors import Downgraded
from .states import DONE, UP

_PUBACK = const(0x40)
_PUBREC = const(0x50)
_PUBREL = const(0x62)  # with the flags that it must have [MQTT-3.6.1-1]
_PUBCOMP = const(0x70)
_DUP = const(0x08)
_STATE = const(0x46)
_STORED = const(0x5F)  # the flags that count for the store too
_BLOCKED = const(-2)
_SKIPPING = const(-3)
_HANDED_OVER = const(0x80)  # of a stored message: only its packet id still counts

# An outbound message, as it stands in its flags; packet << 8 | state: next state.
AWAIT_PUBREC = 0x04
AWAIT_PUBCOMP = 0x44

OUTBOUND = {
    0x4000 | AWAIT_PUBREC: DONE,  # by a broker that knows no QoS 2 and takes it for QoS 1
    0x5000 | AWAIT_PUBREC: AWAIT_PUBCOMP,
    0x5000 | AWAIT_PUBCOMP: AWAIT_PUBCOMP,  # PUBREC again: PUBREL again
    0x7000 | AWAIT_PUBCOMP: DONE,
}

# An inbound message at QoS 2: stored at its PUBLISH, handed over at its PUBREL; packet << 8 | state: next state.
UNKNOWN = 0
AWAIT_PUBREL = 1

INBOUND = {
    0x3000 | UNKNOWN: AWAIT_PUBREL,
    0x3000 | AWAIT_PUBREL: AWAIT_PUBREL,  # the same message again: PUBREC again
    0x6000 | AWAIT_PUBREL: UNKNOWN,
    0x6000 | UNKNOWN: UNKNOWN,  # PUBCOMP was lost: PUBCOMP again
}


class MemoryInbound:
    """Where inbound messages wait for PUBREL: in RAM, `slots` of them. A store that keeps them in flash is like it."""

    def __init__(self, slots=64):
        self._slots = slots
        self._messages = {}

    def ids(self):
        """The packet ids of all of them."""
        return list(self._messages)

    def room(self):
        """How many more messages it takes."""
        return self._slots - len(self._messages)

    def put(self, packet_id, flags, topic, payload):
        """Only where there is room."""
        self._messages[packet_id] = flags, topic, payload

    def get(self, packet_id):
        """(flags, topic, payload), or None."""
        return self._messages.get(packet_id)

    def tombstone(self, packet_id):
        del self._messages[packet_id]


class Part:
    """See Session.part()."""

    def __init__(self, session):
        self._session = session
        store = session.outbox.store
        # In RAM, and of a session that the broker forgets with the link, nothing can be left for later.
        self._inbound = store.inbound = store.inbound or MemoryInbound(65535 if session.clean_session else 64)
        # Messages that lay in the store before this start: their handler may have run.
        self._old = self._inbound.ids()
        self._open = []  # packet ids that the program has not acknowledged
        self._resend = []  # packet ids whose PUBREL goes again on this link
        self._done = []  # packet ids whose PUBCOMP waits for room

    def forget(self, session):
        """The link, or with `session` the broker's session, is gone."""
        self._resend = []
        self._done = []
        if not session:
            return
        for packet_id in self._inbound.ids():
            self._give_up(packet_id)
        outbox = self._session.outbox
        for packet_id in outbox.released:
            self._change(packet_id, AWAIT_PUBREC, 0)
        outbox.released = []

    def _give_up(self, packet_id):
        # Its PUBREL will never come, and a stale id would swallow a new message. The message is ours since PUBREC.
        message = self._inbound.get(packet_id)
        if message is None:  # the handler of another one was done with it
            return
        if packet_id in self._open:
            self._open.remove(packet_id)
        else:
            self._deliver(packet_id, message)
            if self._session._room == _BLOCKED:
                self._session.part("holding").put_back(message[0] & ~6, 0, message[1], message[2])
        self._remove(packet_id)

    def _remove(self, packet_id):
        self._inbound.tombstone(packet_id)
        while packet_id in self._old:
            self._old.remove(packet_id)

    def _deliver(self, packet_id, message):
        flags, topic, payload = message
        if not flags & _HANDED_OVER:
            session = self._session
            session.describe(flags, packet_id, packet_id in self._old)
            if session.on_raw:
                k = len(topic)
                session.hand_over(session.on_raw, topic + payload, 0, k, k, k + len(payload))
            else:
                if topic != session.seen:
                    session.find_route(topic)
                session.deliver(topic, payload)

    def _change(self, packet_id, state, rank):
        session = self._session
        outbox = session.outbox
        if rank:
            session.belong_to(outbox.broker, True)  # the record counts for that broker alone
        slot = outbox.slot_of[packet_id]
        flags = outbox.flags[slot] & ~AWAIT_PUBCOMP | state
        outbox.store.change(slot, flags & _STORED, rank)
        outbox.flags[slot] = flags

    # Outbound

    def acknowledged(self, kind, packet_id):
        """PUBREC, PUBREL, PUBCOMP or, at QoS 2, PUBACK has come; there is room for the answer."""
        session = self._session
        if kind == _PUBREL & 0xF0:
            self.release(packet_id)
            return
        outbox = session.outbox
        slot = outbox.slot_of.get(packet_id)
        if slot is None or not outbox.flags[slot] & _DUP:
            if not (session.taken_over and kind == _PUBCOMP and session.part("resume").answered(packet_id)):
                session.unexpected += 1  # of a message from before a session that was lost
        else:
            state = OUTBOUND.get(kind << 8 | outbox.flags[slot] & _STATE)
            if state is None:
                raise ProtocolError("acknowledgement of another QoS")
            if state == DONE:
                if kind == _PUBACK:
                    session.downgraded += 1
                    if session.downgraded == 1:
                        session.report(Downgraded("the broker takes QoS 2 for QoS 1"))
                session.delivered(packet_id)
            elif packet_id not in outbox.released:
                outbox.rank += 1
                self._change(packet_id, state, outbox.rank)  # durable before PUBREL
                outbox.released.append(packet_id)
                session.in_flight += outbox.resumed(packet_id, session.now)
        if kind == _PUBREC:
            # For an unknown id too: otherwise the broker would keep it for ever.
            session.out.put_ack(_PUBREL, packet_id)

    def resend(self):
        """A new link to the same session: PUBREL for every PUBREC, in their order [MQTT-4.6.0-4]."""
        self._resend = list(self._session.outbox.released)

    def pump(self):
        """Sends the PUBCOMPs and PUBRELs that wait; False while there is no room for all of them."""
        session = self._session
        while self._done and session.out.has_room():
            session.out.put_ack(_PUBCOMP, self._done.pop(0))
        while self._resend:
            if not session.out.has_room():
                return False
            packet_id = self._resend.pop(0)
            session.in_flight += session.outbox.resumed(packet_id, session.now)
            session.out.put_ack(_PUBREL, packet_id)
        return not self._done

    # Inbound

    def has_room(self):
        """Whether another message can be kept; none can behind one that could not."""
        return self._session._room != _SKIPPING and self._inbound.room() > 0

    def knows(self, packet_id):
        return self._inbound.get(packet_id) is not None

    def received(self, head, packet_id, topic, payload):
        """PUBLISH: message and id are durable before PUBREC; with DUP under a known id it is the same message again."""
        known = self._inbound.get(packet_id)
        if not (known and head & _DUP and (known[0] & _HANDED_OVER or known[1:] == (topic, payload))):
            self._session.check_inbound(topic)
            if known:
                # The broker uses the id for another message: it has lost the session, and we the CONNACK that said so.
                self._give_up(packet_id)
            if not self.has_room():
                self._session.part("holding").skip()
                return
            self._inbound.put(packet_id, head & 15, topic, payload)
        self._session.out.put_ack(_PUBREC, packet_id)

    def received_large(self, head, packet_id):
        """A message that was handed over, or skipped, while it arrived: only its id is kept."""
        if self.knows(packet_id) and not head & _DUP:
            self._give_up(packet_id)
        if not self.knows(packet_id):
            self._inbound.put(packet_id, head & 15 | _HANDED_OVER, b"", b"")
        self._session.out.put_ack(_PUBREC, packet_id)

    def release(self, packet_id):
        """PUBREL has come: hands the message over and completes it."""
        message = self._inbound.get(packet_id)
        session = self._session
        if message is None:  # PUBCOMP was lost
            session.out.put_ack(_PUBCOMP, packet_id)
        elif packet_id not in self._open:
            if session.pending > session._room:
                session.part("holding").take(_PUBREL, packet_id)
                return
            if session.manual_ack and not message[0] & _HANDED_OVER:
                self._open.append(packet_id)
            self._deliver(packet_id, message)
            if session._room == _BLOCKED:
                session.part("holding").put_back(_PUBREL, packet_id)
            elif packet_id not in self._open and self.knows(packet_id):
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
        self._old.append(packet_id)  # should the removal fail, it comes again
        self._remove(packet_id)
        if self._session.state == UP:
            self._done.append(packet_id)
            self.pump()
