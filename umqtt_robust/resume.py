"""Going on after a restart or at another broker: may the client go on with its own half of the session?

Packet ids, PUBREL state and inbound ids belong to one broker and to one life of the store. When the broker says
session_present and the store knows nothing of that session, the two halves do not fit: a stale packet id at the broker
would swallow a new message at QoS 2.

Where the store knows another broker, or is volatile (memory after a reset has lost nothing but its own messages), the
client takes the broker's half over, with what the broker has queued. It begins its own half anew, so a message that was
half done at QoS 2 can come twice. Before a message at QoS 2 leaves, PUBREL makes the broker forget its packet id, if it
knows it, and PUBCOMP says so: one round trip more, as long as the broker keeps the session. A broker that three times
does not answer knows no QoS 2 (RabbitMQ falls silent), so nothing can be swallowed there: it is asked no more. The
store has `~` before the name of a broker whose session was taken over: after a reset that is done again.

A store that should know a session and knows none was erased: the client connects once with clean_session, which makes
the broker forget, and connects again; SessionPurged is reported. keep_broker_queue=False makes it do so always, True
never: it takes the session as it is and asks nothing. Nodes of one cluster share their sessions: with
servers={name: URLs} they have one name, and a failover among them meets no other broker.
"""

from ._platform import NEVER, const, ticks_diff
from .base_errors import LinkLost, ProtocolError, Refused
from .packets import DUP, PUBREL, QOS
from .states import AWAIT_PUBCOMP, STATE
from .store import MAYBE_SENT

_TRIES = const(3)


class SessionPurged(LinkLost):
    """args[0]: the broker, as host:port and, where there is one, path."""


def restore(outbox, found, window):
    """Enters what the store holds when the program starts.

    found: of store.restore(); window: how many messages may have been in flight.
    """
    outbox.lifetimes = {}
    ranks = {}
    for slot, packet_id, flags, rank, lifetime in found:
        # What was sent before the restart was among the first `window` that are left.
        if len(outbox.queue) < window:
            flags |= MAYBE_SENT | (DUP if flags & QOS else 0)
        outbox.enter(slot, packet_id, flags)
        if flags & STATE == AWAIT_PUBCOMP:
            ranks[rank] = packet_id
        if lifetime:
            outbox.lifetimes[packet_id] = lifetime
    for outbox.rank in sorted(ranks):
        outbox.released.append(ranks[outbox.rank])


def refuse(session, return_code):
    """CONNACK said no; raises Refused.

    1, another version of MQTT: tried with 3.1, if that is allowed. 2, 4 and 5 will hardly change: after the longest
    wait, where no other broker is left to try.
    """
    if return_code == 1 and session.allow_mqtt31 and session.level == 4:
        session.level = 3
        session.retry_delay = 0
    elif return_code in (2, 4, 5):
        session.retry_delay = NEVER  # the client takes its longest wait
    raise Refused("connect", return_code)


class Resume:
    """Whether the two halves of a session fit, and what is done where they do not."""

    def __init__(self, session):
        self._session = session
        self._asked = self._free = 0  # packet id whose PUBCOMP is awaited; that the broker does not know
        self._asked_at = self._unanswered = 0  # ms; links in a row that ended before PUBCOMP

    def forget(self, session):
        """The link is gone."""
        if self._asked:
            self._unanswered += 1
        self._asked = 0

    def pump(self):
        """Raises LinkLost when PUBCOMP has not come in time, which is such that all tries together take ack_timeout."""
        session = self._session
        if self._asked and ticks_diff(session.now, self._asked_at) >= session.ack_timeout // _TRIES:
            raise LinkLost("ack_timeout")
        return True

    def is_free(self, packet_id):
        """Whether a new message at QoS 2 may leave under that packet id. Asks the broker where it is not known."""
        session = self._session
        if packet_id == self._free or self._unanswered >= _TRIES:
            return True
        if packet_id != self._asked and session.out.has_room():
            session.out.put_ack(PUBREL, packet_id)
            self._asked = packet_id
            self._asked_at = session.now
        return False

    def handle_pubcomp(self, packet_id):
        """PUBCOMP has come. Returns False if it does not answer a PUBREL of is_free()."""
        if packet_id != self._asked:
            return False
        self._free = packet_id
        self._asked = self._unanswered = 0
        return True

    def check(self):
        """The broker remembers. True: so do we; False: take it as new. Raises SessionPurged."""
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
        """The broker has forgotten, and so do we; raises LinkLost, so that the client connects again."""
        session = self._session
        session.purge = False
        session.retry_delay = 0
        session.begin_session()
        session.belong_to(session.broker, False)  # both halves are empty now
        session.send_disconnect()
        raise LinkLost("reconnecting with a fresh session")


part = Resume  # what Session.part() makes
