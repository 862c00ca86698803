"""A broker that remembers this client: may the client go on with its own half of the session?

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

from ._platform import const, ticks_diff
from .base_errors import LinkLost, ProtocolError
from .parts import load

_PUBREL = const(0x62)
_TRIES = const(3)


class SessionPurged(LinkLost):
    """args[0]: the broker, as host:port and, where there is one, path."""


class Part:
    """See Session.part()."""

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
            session.out.put_ack(_PUBREL, packet_id)
            self._asked = packet_id
            self._asked_at = session.now
        return False

    def answered(self, packet_id):
        """PUBCOMP has come. False: not for a PUBREL of is_free()."""
        if packet_id != self._asked:
            return False
        self._free = packet_id
        self._asked = self._unanswered = 0
        return True

    def check(self, broker):
        """The broker remembers. True: so do we; False: take it as new. Raises SessionPurged."""
        client = self._session
        if client.clean_session:
            raise ProtocolError("session_present after clean_session")  # [MQTT-3.2.2-1]
        known = client.outbox.broker
        if known == broker:
            return True
        if client.keep_broker_queue is None and (known or getattr(client.outbox.store, "volatile", False)):
            taken = "~" + broker
            if client.taken_over != taken:
                client.begin_session(taken)
                self._free = self._unanswered = 0
            client.taken_over = taken
            return True
        if not client.keep_broker_queue:
            client.purge = load("packets").connect(
                *client.connect_as, level=4 if client.connect_as_usual[1] == 4 else 3, purge=True
            )
            client.again = True
            client.say_goodbye()  # without it the broker would publish the will
            raise SessionPurged(broker)
        return False

    def purged(self, broker):
        """The broker has forgotten, and so do we; raises LinkLost, so that the client connects again."""
        client = self._session
        client.purge = None
        client.again = True
        client.begin_session()
        client.belong_to(broker, False)  # both halves are empty now
        client.say_goodbye()
        raise LinkLost("reconnecting with a fresh session")
