"""Decides, after a restart or at another broker, whether the client can resume its own half of the session.

Packet ids, PUBREL state and inbound ids belong to one broker and to one life of the store. If the broker reports
session_present but the store does not know that session, the two halves do not fit: the broker would take a new message
at QoS 2 for an old one with the same packet id, and drop it.

If the store knows another broker, or is volatile (a reset of RAM loses only its own messages), the client takes over
the broker's half, with the messages that the broker has queued. It starts its own half again, so a message at QoS 2
that was half delivered can arrive twice. Before it sends a message at QoS 2, it sends PUBREL, so that the broker
forgets the packet id if it knows it, and waits for PUBCOMP: one more round trip, as long as the broker keeps the
session. A broker that does not answer three times has no QoS 2 (RabbitMQ stays silent), so it cannot drop a message
that way, and is not asked again. In the store, `~` stands before the name of a broker whose session was taken over:
after a reset the client takes it over again.

A store that should know a session but knows none was erased: the client connects once with clean_session, which makes
the broker forget the session, and connects again; SessionPurged is reported. keep_broker_queue=False does this in every
case. True never does: the client accepts the session as it is and asks nothing. Nodes of one cluster share their
sessions: with servers={name: URLs} they have one name, so a failover among them meets no other broker.
"""

from ._platform import collect, const, ticks_diff
from .base_errors import LinkLost, ProtocolError
from .packets import AWAIT_PUBCOMP, DUP, PUBREL, QOS, STATE
from .store import MAYBE_SENT, STRIKES_AT, STRUCK, USED

_TRIES = const(3)
_EVERY = const(32)


class SessionPurged(LinkLost):
    """The broker had a session that this client does not know; args[0]: the broker, as host:port and, if any, path."""


def restore(outbox, found=None, window=0):
    """Enters the messages that the store holds when the program starts into the outbox.

    found: what store.restore() returned, None: the next ones; window: how many messages may have been in flight. Raises
    StoreError.
    """
    is_start = found is not None
    if not is_start:
        found = outbox.store.restore(True)
        outbox.more = outbox.store.more
    if outbox.lifetimes is None:
        outbox.lifetimes = {}
    ranks = {}
    n = 0
    for slot, packet_id, flags, rank, lifetime in found:
        n += 1
        if not n % _EVERY:
            collect()  # the store's garbage between what stays would leave no large piece of the heap
        # What was sent before the restart was among the first `window` that are left, besides those set aside.
        if is_start and n - outbox.aside <= window:
            flags |= MAYBE_SENT | (DUP if flags & QOS else 0)
        outbox.flags[slot] = flags | USED
        outbox.slot_of[packet_id] = slot
        if flags & STATE == AWAIT_PUBCOMP:
            ranks[rank & (1 << STRIKES_AT) - 1] = packet_id
            if rank >> STRIKES_AT:
                outbox.marks += ((packet_id, rank >> STRIKES_AT),)
        elif rank and is_start:  # only the first of all have been in flight
            outbox.marks += ((packet_id, rank),)
            if rank >= STRUCK:  # an acknowledgement does not count for it
                outbox.flags[slot] &= ~DUP
                outbox.ids[slot] = packet_id
                outbox.aside += 1
                continue
        outbox.append(packet_id, slot)
        if outbox.size:
            outbox.size.add(slot, *outbox.store.load(slot))
        if lifetime:
            outbox.lifetimes[packet_id] = lifetime
    for outbox.rank in sorted(ranks):
        outbox.released.append(ranks[outbox.rank])


class Resume:
    """Compares the two halves of a session, and takes over or purges the broker's half if they do not fit."""

    def __init__(self, session):
        self._session = session
        self._asked = self._free = 0  # packet id whose PUBCOMP is awaited; one that the broker does not know
        self._asked_at = self._unanswered = 0  # ms; links in a row that ended before PUBCOMP

    def forget(self, session):
        """Counts a PUBREL of is_free() that the broker left unanswered."""
        if self._asked:
            self._unanswered += 1
        self._asked = 0

    def pump(self):
        """Raises LinkLost if PUBCOMP does not arrive in time: all tries together take ack_timeout. Returns True."""
        session = self._session
        if self._asked:
            session.idle = False
            if ticks_diff(session.now, self._asked_at) >= session.ack_timeout // _TRIES:
                raise LinkLost("ack_timeout")
        return True

    def is_free(self, packet_id):
        """Returns True if a new message at QoS 2 may be sent under that packet id. Asks the broker if unknown."""
        session = self._session
        if packet_id == self._free or self._unanswered >= _TRIES:
            return True
        if packet_id != self._asked and session.out.has_room():
            session.out.put_ack(PUBREL, packet_id)
            self._asked = packet_id
            self._asked_at = session.now
        return False

    def handle_pubcomp(self, packet_id):
        """Handles PUBCOMP. Returns False if it does not answer a PUBREL of is_free()."""
        if packet_id != self._asked:
            return False
        self._free = packet_id
        self._asked = self._unanswered = 0
        return True

    def check(self):
        """Decides what to do with the session that the broker reports.

        Returns True if the client resumes or takes over the session, False if it begins a new one on its own side.
        Raises SessionPurged if the broker must forget it, and ProtocolError.
        """
        session = self._session
        if session.clean_session:
            raise ProtocolError("session_present after clean_session")  # [MQTT-3.2.2-1]
        known = session.outbox.broker
        if known == session.broker:
            return True
        if session.keep_broker_queue is None and (known or getattr(session.outbox.store, "volatile", False)):
            taken = "~" + session.broker
            if session.taken_over != taken:
                session.begin_session(taken)
                self._free = self._unanswered = 0
            session.taken_over = taken
            return True
        if session.keep_broker_queue:
            return False
        session.purge = True
        session.retry_delay = 0
        session.send_disconnect()  # without it the broker would publish the will
        raise SessionPurged(session.broker)

    def handle_purged(self):
        """Forgets the session after the broker has. Raises LinkLost, so that the client connects again."""
        session = self._session
        session.purge = False
        session.retry_delay = 0
        session.begin_session()
        session.belong_to(session.broker, False)  # both halves are empty now
        session.send_disconnect()
        raise LinkLost("reconnecting with a fresh session")


part = Resume  # what Session.part() makes
