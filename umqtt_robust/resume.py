"""A broker that remembers this client: may the client go on with its own half of the session?

Packet ids, PUBREL state and inbound ids belong to one broker and to one life of the store. When the broker says
session_present and the store knows nothing of that session (another broker of the list, an erased flash, memory after
a reboot), the two halves do not fit: a stale packet id at the broker would swallow a new message. Then the client
connects once with clean_session, which makes the broker forget, and connects again; SessionPurged is reported. With
keep_broker_queue it takes the session as it is, for the messages that the broker has queued.
"""

from .base_errors import LinkLost, ProtocolError
from .parts import load


class SessionPurged(LinkLost):
    """args[0]: the broker, as host:port and, where there is one, path."""


class Part:
    """See Session.part()."""

    def __init__(self, session):
        self._session = session

    def forget(self, session):
        """Nothing here belongs to a link."""

    def pump(self):
        return True

    def check(self, broker):
        """The broker remembers. True: so do we; False: take it as new. Raises SessionPurged."""
        client = self._session
        if client.clean_session:
            raise ProtocolError("session_present after clean_session")  # [MQTT-3.2.2-1]
        if client.outbox.store.session == broker:
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
        client.outbox.store.session = broker  # both halves are empty now
        client.say_goodbye()
        raise LinkLost("reconnecting with a fresh session")
