"""The sessions by client identifier: CONNECT, takeover, the end of a connection, recovery."""

import secrets
from typing import TYPE_CHECKING

from .connection import Connection
from .packets import ACCEPTED, IDENTIFIER_REJECTED, Connect
from .session import Session
from .store import Recovered

if TYPE_CHECKING:
    from .broker import Broker


class Sessions:
    """Every session there is, each under its client identifier; at most one connection has it."""

    def __init__(self, broker: "Broker") -> None:
        self._config = broker.config
        self._stats = broker.stats
        self._store = broker.store
        self._router = broker.router
        self._by_client_id: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_client_id)

    @property
    def queued(self) -> int:
        """QoS 1 and 2 messages that wait, in all sessions together."""
        return sum(session.queued for session in self._by_client_id.values())

    def recover(self, recovered: Recovered) -> None:
        """Make the sessions that the store had kept."""
        for found in recovered.sessions:
            session = self._new(found.client_id, clean=False)
            session.restore(found)
            for topic_filter, qos in found.subscriptions:
                self._router.add_subscription(session, topic_filter, qos)

    def connect(self, connection: Connection, packet: Connect) -> tuple[int, bool]:
        """Give a connection its session. Returns the CONNACK return code and session_present."""
        client_id = packet.client_id
        if not client_id:
            # [MQTT-3.1.3-8] without an identifier there is nothing a session could be kept under.
            may_name = packet.clean_session and packet.protocol_level == 4
            if not may_name or not self._config.allow_zero_length_client_id:
                return IDENTIFIER_REJECTED, False
            client_id = b"auto-" + secrets.token_hex(8).encode()
        return_code = self._config.permission.connect(packet, connection.peer)
        if return_code != ACCEPTED:
            return return_code, False
        session = self._by_client_id.get(client_id)
        if session is not None and session.connection is not None:
            # [MQTT-3.1.4-2] Its session is taken from the old connection before the new one gets it, so
            # whatever the old one still does, it does to no session.
            self._stats.takeovers += 1
            session.connection.abort()
            session = self._by_client_id.get(client_id)
        session_present = session is not None and not packet.clean_session
        if session is not None and packet.clean_session:
            self._discard(session)
            session = None
        if session is None:
            session = self._new(client_id, packet.clean_session)
            if session.store is not None:
                session.number = session.store.new_session(client_id)
        session.attach(connection)
        connection.session = session
        # [MQTT-3.2.2-2] MQTT 3.1 has no session_present: the byte is reserved there.
        return ACCEPTED, session_present and packet.protocol_level == 4

    def detach(self, connection: Connection) -> None:
        """Take the session from a connection that ends, and publish its will. Safe to call again."""
        session, connection.session = connection.session, None
        if session is None:
            return
        session.detach()
        if session.clean:
            self._discard(session)
        will, connection.will = connection.will, None
        if will is not None:
            self._router.publish_will(will)
            self._router.flush()

    def _new(self, client_id: bytes, clean: bool) -> Session:
        store = self._store if self._store.durable and not clean else None
        session = Session(client_id, clean, store, self._config, self._stats, self._router.dirty)
        self._by_client_id[client_id] = session
        self._stats.sessions = len(self._by_client_id)
        return session

    def _discard(self, session: Session) -> None:
        self._router.remove_session(session)
        del self._by_client_id[session.client_id]
        self._stats.sessions = len(self._by_client_id)
        if session.store is not None:
            session.store.discard_session(session.number)
