"""Delivers messages at QoS 2, both ways (MQTT 3.1.1, 4.3.3). Every step is in OUTBOUND or INBOUND of packets.py."""

from ._platform import const, load, ticks_diff
from .base_errors import ProtocolError
from .errors import Downgraded, StoreError
from .packets import AWAIT_PUBREC, BLOCKED, DONE, DUP, OUTBOUND, PUBACK, PUBCOMP, PUBREC, PUBREL, SKIPPING, STATE, UP

_STORED = const(0x5F)  # the flags that count for the store too: RETAIN, STATE, DUP and MAYBE_SENT
_RETRY = const(60000)  # ms: how long a store that failed is left alone
_FAILURES = const(5)  # in a row: a store that fails less often is tried again at once, on a new link
_HANDED_OVER = const(0x80)  # of a stored message: only its packet id still counts


class MemoryInbound:
    """Keeps up to `slots` received messages in RAM until PUBREL. A store in flash has an object with these methods."""

    def __init__(self, slots=64):
        self.slots = slots
        # Two lists, since a table that grows needs more memory in one piece, and has no order.
        self._ids = []
        self._waiting = []

    def ids(self):
        """Returns the packet ids of all messages in the order of arrival: the list itself, not a copy."""
        return self._ids

    def room(self):
        """Returns how many more messages fit; below 0 if there are more than `slots` already."""
        return self.slots - len(self._ids)

    def put(self, packet_id, flags, topic, payload):
        """Stores a message. Raises MemoryError; then the message is not stored."""
        self._waiting[len(self._ids) :] = [(flags, topic, payload)]  # instead of one whose id found no memory
        self._ids.append(packet_id)

    def get(self, packet_id):
        """Returns (flags, topic, payload), or None if no message has that packet id."""
        return self._waiting[self._ids.index(packet_id)] if packet_id in self._ids else None

    def tombstone(self, packet_id):
        i = self._ids.index(packet_id)
        self._ids.pop(i)
        self._waiting.pop(i)


class Qos2:
    """The messages of one session at QoS 2."""

    def __init__(self, session):
        self._session = session
        store = session.outbox.store
        self._inbound = store.inbound = store.inbound or MemoryInbound()
        # Messages that lay in the store before this start: their handler may have run.
        self._old = self._inbound.ids()[:]
        self._open = []  # packet ids that the program has not acknowledged
        self._done_with = []  # packet ids whose message was handed over after PUBREL, and is not removed yet
        self._resend = []  # packet ids whose PUBREL goes again on this link
        self._done = []  # packet ids whose PUBCOMP waits for room
        self._failures = 0
        self.failed_at = None  # ms: when the store failed on this link; what comes at QoS 2 then waits at the broker

    def forget(self, session):
        """Drops the state that died with the link (`session` true: with the broker's session)."""
        self._resend = []
        self._done = []
        self.failed_at = None
        if not session:
            return
        while self._inbound.ids():
            self._give_up(self._inbound.ids()[0])
        outbox = self._session.outbox
        for packet_id in outbox.released:
            self.change(packet_id, AWAIT_PUBREC, 0)
        outbox.released = []

    def change(self, packet_id, state, rank):
        """Changes the state of a message of ours, first in the store. rank: its place among those released, or 0."""
        session = self._session
        outbox = session.outbox
        if rank:
            session.belong_to(outbox.broker, True)  # the record counts for that broker alone
        slot = outbox.slot_of[packet_id]
        flags = outbox.flags[slot] & ~STATE | state
        outbox.store.change(slot, flags & _STORED, rank)
        outbox.flags[slot] = flags

    def pump(self):
        """Sends the PUBCOMPs and PUBRELs that wait. Returns False if there is no room for all of them."""
        session = self._session
        while self._done and session.out.has_room():
            session.out.put_ack(PUBCOMP, self._done.pop(0))
        while self._resend and session.in_flight < session.window:  # quarantine.py may allow one at a time, or none
            if not session.out.has_room():
                return False
            self._send_pubrel(self._resend.pop(0))
        if self.failed_at is not None:
            session.idle = False
            if ticks_diff(session.now, self.failed_at) >= _RETRY:
                load("backpressure").fetch(session, "could not be stored")
        return not self._done

    # To the broker

    def handle_acknowledgement(self, head, packet_id):
        """Handles PUBREC, PUBREL, PUBCOMP or, at QoS 2, PUBACK. The send buffer must have room for the answer.

        Raises ProtocolError and StoreError.
        """
        session = self._session
        if head == PUBREL:
            try:
                self.handle_pubrel(packet_id)
            except MemoryError:
                if session.clean_session:
                    raise
                session.refuse(PUBREL, packet_id, b"")
            return
        outbox = session.outbox
        slot = outbox.slot_of.get(packet_id)
        if slot is None or not outbox.flags[slot] & DUP:
            if not (session.taken_over and head == PUBCOMP and session.part("resume").handle_pubcomp(packet_id)):
                session.unexpected += 1  # of a message from before a session that was lost
            if head == PUBREC:
                # All the same: otherwise the broker would keep it for ever.
                session.out.put_ack(PUBREL, packet_id)
            return
        state = OUTBOUND.get((outbox.flags[slot] & STATE) << 8 | head)
        if state is None:
            raise ProtocolError("acknowledgement of another QoS")
        if state == DONE:
            if head == PUBACK:
                session.downgraded += 1
                if session.downgraded == 1:
                    session.report(Downgraded("the broker takes QoS 2 for QoS 1"))
            session.remove(packet_id)
            if session.on_acknowledged:
                session.on_acknowledged(packet_id)
            return
        if packet_id not in outbox.released:
            outbox.rank += 1
            self.change(packet_id, state, outbox.rank)  # durable before PUBREL
            outbox.released.append(packet_id)
            self._send_pubrel(packet_id)
        else:
            session.out.put_ack(PUBREL, packet_id)

    def _send_pubrel(self, packet_id):
        session = self._session
        session.in_flight += session.outbox.mark_in_flight(packet_id, session.now)
        session.out.put_ack(PUBREL, packet_id)

    def resend_pubrels(self):
        """Queues a PUBREL for every PUBREC, in their order, on a new link to the same session [MQTT-4.6.0-4]."""
        self._resend = list(self._session.outbox.released)

    # From the broker

    def has_room(self):
        """Returns True if another message can be kept: never behind one that could not be kept."""
        return self._session.handover_limit != SKIPPING and self._inbound.room() > 0

    def knows(self, packet_id):
        """Returns True if a message with that packet id awaits PUBREL."""
        return self._inbound.get(packet_id) is not None

    def handle_publish(self, head, packet_id, topic, payload):
        """Handles PUBLISH: message and id are durable before PUBREC. With DUP and a known id it is the same message."""
        known = self._inbound.get(packet_id)
        mqtt5 = self._session.mqtt5
        plain = topic.split(b"\0")[0] if mqtt5 else topic  # properties may change on the way
        same = known and (known[0] & _HANDED_OVER or known[2] == payload and known[1].split(b"\0")[0] == plain)
        if not (same and head & DUP):
            session = self._session
            if not session.check_inbound(plain) and session.part("malformed").refuse(head, packet_id, plain):
                return
            if known:
                # The broker uses the id for another message: it has lost the session, and we the CONNACK that said so.
                self._give_up(packet_id)
            if not self.has_room() and not self._makes_room():
                self._session.part("backpressure").refuse(head, packet_id, plain)
                return
            if not self.put(packet_id, head & 15, topic, payload):
                return
        self._session.out.put_ack(PUBREC, packet_id)

    def _makes_room(self):
        # A broker that forgets the session with the link would send nothing again. It does not within a link either
        # [MQTT-4.4.0-1], so there the first message can be handed over, and its id forgotten, before its PUBREL.
        session = self._session
        if not session.clean_session:
            return False
        if session.pending <= session.handover_limit:
            for packet_id in self._inbound.ids():
                if packet_id not in self._open:
                    self._give_up(packet_id)
                    break
            return True
        return session.part("backpressure").has_plenty()

    def handle_large(self, head, packet_id):
        """Handles the end of a large message, which was handed over or skipped as it arrived: keeps only its id."""
        if self.knows(packet_id) and not head & DUP:
            self._give_up(packet_id)
        forgets = self._session.clean_session and not self.has_room()  # see _makes_room()
        if forgets or self.knows(packet_id) or self.put(packet_id, head & 15 | _HANDED_OVER, b"", b""):
            self._session.out.put_ack(PUBREC, packet_id)

    def put(self, packet_id, flags, topic, payload):
        """Stores a message of the broker. Raises StoreError, or returns False if the store fails again and again.

        Then the message and all that come after it are left unacknowledged, in their order; on another link the broker
        sends them again.
        """
        if self.failed_at is None:
            try:
                self._inbound.put(packet_id, flags, topic, payload)
                self._failures = 0
                return True
            except StoreError as error:
                self._failures += 1
                if self._failures < _FAILURES:
                    raise
                self.failed_at = self._session.now
                self._session.report(error)
        return False

    def handle_pubrel(self, packet_id):
        """Handles PUBREL: hands the message over and completes it. Raises MemoryError."""
        message = self._inbound.get(packet_id)
        session = self._session
        if message is None:  # PUBCOMP was lost
            session.out.put_ack(PUBCOMP, packet_id)
        elif packet_id not in self._open:
            if session.pending > session.handover_limit:
                session.part("backpressure").take(PUBREL, packet_id)
                return
            if packet_id not in self._done_with:
                self._done_with.append(packet_id)  # first: there may be no memory, or the removal may fail
                try:
                    if session.manual_ack and not message[0] & _HANDED_OVER:
                        self._open.append(packet_id)
                    self._hand_over(packet_id, message)
                except MemoryError:  # before its handler was called: what one raises does not come here
                    self._postpone(packet_id)
                    raise
                if session.handover_limit == BLOCKED:
                    self._postpone(packet_id)
                    self._old.append(packet_id)  # its handler has run
                    session.part("backpressure").put_back(PUBREL, packet_id)
                    return
            if packet_id not in self._open and packet_id in self._done_with:
                self._complete(packet_id)

    def _postpone(self, packet_id):
        # The message will be handed over again.
        self._done_with.remove(packet_id)
        if packet_id in self._open:
            self._open.remove(packet_id)

    def acknowledge(self, packet_id):
        """Acknowledges a message for the program. Returns False if no message with that packet id waits."""
        if packet_id not in self._open:
            return False
        self._open.remove(packet_id)
        try:
            self._complete(packet_id)
        except StoreError as error:  # the message comes again on another link
            self._session.broken = error
        return True

    def _hand_over(self, packet_id, message):
        flags, topic, payload = message
        if not flags & _HANDED_OVER:
            session = self._session
            session.describe(flags, packet_id, packet_id in self._old)
            session.hand_over(topic if session.mqtt5 else topic.split(b"\0")[0], payload)

    def _give_up(self, packet_id):
        # Its PUBREL will never come, and a stale id would swallow a new message. The message is ours since PUBREC.
        message = self._inbound.get(packet_id)
        if message is None:  # the handler of another one was done with it
            return
        if packet_id in self._open:
            self._open.remove(packet_id)
        elif packet_id not in self._done_with:
            session = self._session
            waits = session.pending > session.handover_limit
            if not waits:
                self._hand_over(packet_id, message)
            if (waits or session.handover_limit == BLOCKED) and not message[0] & _HANDED_OVER:
                session.part("backpressure").keep(message)
        self.remove(packet_id)

    def remove(self, packet_id):
        """Forgets a message of the broker, and its packet id."""
        self._inbound.tombstone(packet_id)
        for packet_ids in (self._old, self._done_with):
            while packet_id in packet_ids:
                packet_ids.remove(packet_id)

    def _complete(self, packet_id):
        # Removed before PUBCOMP: after it, the broker may use the id for another message, which a stale id would
        # swallow. A power cut right here hands the message over again, flagged as redelivered.
        self.remove(packet_id)
        if self._session.state == UP:
            self._done.append(packet_id)
            self.pump()


part = Qos2  # what Session.part() makes
