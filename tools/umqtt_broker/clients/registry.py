"""The sessions by client identifier: CONNECT, takeover, the end of a connection, wills, expiry, recovery."""

import asyncio
import secrets
from collections.abc import Iterator

from ..access.permission import Peer, Permission, Rights
from ..core.context import BrokerContext
from ..core.queue_limits import QueueLimits
from ..log import log_connect, log_disconnect
from ..protocol.messages import Will
from ..protocol.packets import IDENTIFIER_REJECTED, NOT_AUTHORIZED, Connect
from ..protocol.topics import check_topic_name, mounted_name
from ..routing.retained_delivery import RetainedDelivery
from ..routing.router import Router
from ..sessions.durable import DurableSession
from ..sessions.session import Session
from ..settings.broker import Listener
from ..store import Recovered
from ..transport.tls import identity_of
from .ports import SessionClient

# Sessions forgotten at a time: a fleet that expires together must not stall the rest.
_MOST_AT_ONCE = 1000


class Sessions:
    """Every session there is, each under its client identifier; at most one connection has it.

    Listeners with different mount points share nothing, client identifiers included: a session is found under its
    `key`, which is the identifier, or mount point, U+0000 and identifier. U+0000 is in neither [MQTT-1.5.3-2].
    """

    def __init__(self, context: BrokerContext, router: Router) -> None:
        self._config = context.config
        self._context = context
        self._stats = context.stats
        self._store = context.store
        self._router = router
        self._by_client_id: dict[bytes, Session] = {}
        # Persistent sessions without a connection, those that left first first.
        self._away: dict[Session, None] = {}

    def __len__(self) -> int:
        return len(self._by_client_id)

    def __iter__(self) -> Iterator[Session]:
        """Iterate over the sessions there are now; they may come and go meanwhile."""
        return iter(list(self._by_client_id.values()))

    def get(self, client_id: bytes, mount: bytes = b"") -> Session | None:
        """Return the session of a client."""
        return self._by_client_id.get(_key(mount, client_id))

    @property
    def queued(self) -> int:
        """QoS 1 and 2 messages that wait, in all sessions and groups together."""
        return sum(session.queued for session in self._by_client_id.values()) + self._router.shares.queued

    # Recovery

    def recover(self, recovered: Recovered) -> None:
        """Make the sessions that the store had kept."""
        now = self._context.expiry.now()
        self._router.shares.recover(recovered.shares)
        for found in recovered.sessions:
            mount, _, client_id = found.client_id.rpartition(b"\0")
            session = self._new(found.client_id, client_id, mount, clean=False)
            assert isinstance(session, DurableSession)
            session.restore(found)
            if not self._config.session_expiry:
                if session.away_since:
                    # Nobody keeps it up to date from now on.
                    self._store.set_away(session.number, 0)
                session.away_since = now
            elif not session.away_since:
                # It was connected when the broker ended without a word, or nobody counted.
                self._set_away(session, now)
            self._router.bridge_loops.recover(session)
            session.set_rights(self._recovered_rights(session))
            for topic_filter, qos in found.subscriptions:
                self._router.add_subscription(session, topic_filter, qos)
            self._recover_retained_delivery(session, found.retained_pending)
        self._router.shares.end_empty()
        self._away = dict.fromkeys(sorted(self._by_client_id.values(), key=lambda session: session.away_since))

    def _recover_retained_delivery(self, session: Session, topic_filters: list[bytes]) -> None:
        """Go on with retained messages once the client is back. They are not recovered yet, and need not be."""
        if topic_filters:
            session.retained_delivery = RetainedDelivery(session, self._router, self._context)
            for topic_filter in topic_filters:
                session.retained_delivery.recover(topic_filter, session.subscriptions[topic_filter])

    def publish_recovered_wills(self, wills: dict[bytes, Will]) -> None:
        """Publish the wills of the clients that were connected when the broker was killed: they got no DISCONNECT."""
        for key, will in wills.items():
            self._publish(will)
            self._store.set_will(key, None)

    def _recovered_rights(self, session: Session) -> Rights | None:
        """Return what a session may do before its client is back: what some listener with its mount point allows."""
        permissions = {
            self._permission(listener)
            for listener in self._config.all_listeners()
            if listener.mount_point == session.mount
        }
        rights = [permission.rights(session.client_id, session.username) for permission in permissions]
        found = [one for one in rights if one is not None]
        if len(found) < len(rights) or not found:
            return None
        return found[0] if len(found) == 1 else _AnyOf(found)

    # CONNECT

    def identify(self, connection: SessionClient, packet: Connect) -> tuple[int | asyncio.Future[int], Connect]:
        """Find out who connects. Returns the CONNACK return code or its future, and the CONNECT for connect().

        That has the identifier of the session, and a will with the mount point. Raises MalformedPacket.
        """
        listener, config = connection.listener, self._config
        named = packet
        if packet.client_id:
            if not listener.internal and not self._may_call_itself(packet.client_id, listener):
                return IDENTIFIER_REJECTED, packet
        else:
            # [MQTT-3.1.3-8] without an identifier there is nothing a session could be kept under.
            may_name = packet.clean_session and packet.protocol_level == 4
            is_allowed = listener.allow_zero_length_client_id
            if is_allowed is None:
                is_allowed = config.allow_zero_length_client_id
            if not (may_name and is_allowed):
                return IDENTIFIER_REJECTED, packet
            prefix = config.auto_id_prefix if listener.auto_id_prefix is None else listener.auto_id_prefix
            named = packet._replace(client_id=prefix + secrets.token_hex(8).encode())
        peer = _peer(connection)
        if listener.use_identity_as_username and peer.identity is None:
            return NOT_AUTHORIZED, packet
        if packet.will is not None and listener.mount_point:
            topic_name = mounted_name(listener.mount_point, packet.will.topic_name)
            named = named._replace(will=packet.will._replace(topic_name=topic_name))
        if named.will is not None:
            check_topic_name(named.will.topic_name, config.max_topic_levels)
        # Asked with the CONNECT as it came: rules for identifiers are about those that clients choose.
        return self._permission(listener).connect(packet, peer), named

    def may_bridge(self, connection: SessionClient, packet: Connect) -> bool:
        """Tell whether a client that is let in may be the bridge that it says it is."""
        listener = connection.listener
        users = listener.bridge_users
        return listener.internal or b"*" in users or _peer(connection).username(packet) in users

    def _may_call_itself(self, client_id: bytes, listener: Listener) -> bool:
        config = self._config
        # The session of a bridge is for the bridge alone.
        is_taken = not listener.mount_point and any(client_id == bridge.local_client_id for bridge in config.bridges)
        return not is_taken and client_id.startswith(config.client_id_prefixes or b"")

    def connect(self, connection: SessionClient, packet: Connect) -> bool:
        """Give a connection that is let in its session. Returns session_present."""
        listener = connection.listener
        mount, client_id = listener.mount_point, packet.client_id
        key = _key(mount, client_id)
        session = self._by_client_id.get(key)
        if session is not None and session.connection is not None:
            # [MQTT-3.1.4-2] Its session is taken from the old connection before the new one gets it, so whatever the
            # old one still does, it does to no session.
            self._stats.takeovers += 1
            session.connection.ending = f"taken over from {connection.peer}"
            session.connection.abort()
            session = self._by_client_id.get(key)
        username = _peer(connection).username(packet) or None
        rights = self._permission(listener).rights(client_id, username)
        if session is not None and rights is not None and session.username != username:
            # What waits for one user is not for another.
            self._stats.sessions_of_others += 1
            self.discard(session)
            session = None
        session_present = session is not None and not packet.clean_session
        if session is not None and packet.clean_session:
            self.discard(session)
            session = None
        if session is None:
            session = self._new(key, client_id, mount, packet.clean_session)
            if session.store is not None:
                session.number = session.store.new_session(key, username)
        else:
            self._return(session, username)
        session.username = username
        session.listener = listener
        if session.rights is not rights or session.is_bridge != packet.bridge:
            session.set_rights(rights)
            session.is_bridge = packet.bridge
            if session.subscriptions:
                self._router.forget_routes()
        self._set_will(session, packet.will)
        session.attach(connection)
        connection.session = session
        log_connect(
            client_id, connection.peer, username, clean_session=packet.clean_session, keep_alive=packet.keep_alive
        )
        # [MQTT-3.2.2-2] MQTT 3.1 has no session_present: the byte is reserved there.
        return session_present and packet.protocol_level == 4

    def _permission(self, listener: Listener) -> Permission:
        return listener.permission or self._config.permission

    def _return(self, session: Session, username: bytes | None) -> None:
        """A persistent session has a connection again."""
        self._away.pop(session, None)
        if session.store is not None:
            if session.username != username:
                session.store.set_username(session.number, username)
            if self._config.session_expiry:
                session.store.set_away(session.number, 0)
        session.away_since = 0

    # The end

    def detach(self, connection: SessionClient) -> None:
        """Take the session from a connection that ends, and publish its will. Safe to call again."""
        session, connection.session = connection.session, None
        if session is None:
            return
        session.detach()
        log_disconnect(session.client_id, connection.ending)
        if session.clean:
            self.discard(session)
        else:
            self._away[session] = None
            self._set_away(session, self._context.expiry.now())
        self.publish_will(session)
        self._router.flush()

    def _set_away(self, session: Session, since: int) -> None:
        session.away_since = since
        # Without an expiry nobody asks, and a fleet that comes and goes need not wait for the disk.
        if session.store is not None and self._config.session_expiry:
            session.store.set_away(session.number, since)

    def discard(self, session: Session) -> None:
        """Forget a session that has no connection, and everything of it."""
        self._router.remove_session(session)
        del self._by_client_id[session.key]
        self._away.pop(session, None)
        self._stats.sessions = len(self._by_client_id)
        session.retained_delivery = None
        if self._context.limits is not None:
            self._context.limits.forget(session)
        if session.store is not None:
            session.store.discard_session(session.number)

    def expire(self) -> None:
        """Forget the sessions whose clients stayed away too long; drop old messages that hold publishers back."""
        limits, expiry = self._context.limits, self._config.session_expiry
        if limits is not None:
            for session in limits.waited_for():
                session.drop_expired()
        if not expiry:
            return
        before = self._context.expiry.now() - expiry
        expired: list[Session] = []
        for session in self._away:
            if session.away_since > before or len(expired) == _MOST_AT_ONCE:
                break
            expired.append(session)
        for session in expired:
            self._stats.sessions_expired += 1
            self.discard(session)

    # Wills

    def _set_will(self, session: Session, will: Will | None) -> None:
        """Keep the will of a client that has connected; in the store, since the broker may be killed before it."""
        if will is not None and self._store.durable and _may_publish(session, will):
            self._store.set_will(session.key, will)
        session.will = will

    def publish_will(self, session: Session) -> None:
        """Publish the will of a session, if it still has one, as if its client had (3.1.2.5)."""
        will = session.will
        if will is None:
            return
        self.forget_will(session)
        if _may_publish(session, will):
            self._publish(will, session if session.is_bridge else None)
        else:
            self._stats.denied += 1

    def _publish(self, will: Will, source: Session | None = None) -> None:
        most = self._config.max_payload_size
        if most and len(will.payload) > most:
            self._stats.dropped_too_large += 1
            return
        self._stats.wills += 1
        retain = int(will.retain and self._config.retain_available)
        if source is None:
            self._router.publish(will.topic_name, will.payload, will.qos, retain)
        else:
            self._router.publish_from(source, will.topic_name, will.payload, will.qos, retain)

    def forget_will(self, session: Session) -> None:
        """The client has said DISCONNECT [MQTT-3.1.2-10], or its will is published."""
        if session.will is not None:
            session.will = None
            if self._store.durable:
                self._store.set_will(session.key, None)

    # Reload

    def rights_changed(self) -> None:
        """Ask again what everyone may do, and look at the limits again: the settings have changed."""
        for session in self._by_client_id.values():
            if session.listener is None:
                session.set_rights(self._recovered_rights(session))
            else:
                session.set_rights(self._permission(session.listener).rights(session.client_id, session.username))
            session.settings_changed()
            if session.connection is not None:
                session.connection.bind()
        self._router.forget_routes()
        self._context.expiry.tick()
        limits = self._context.limits
        if limits is not None:
            limits.settings_changed()
        else:
            limits = self._context.limits = QueueLimits.of(self._config, self._stats)
            if limits is not None:
                for session in (*self._by_client_id.values(), *self._router.shares):
                    limits.added(session, *session.waiting)
        self._router.flush()

    def _new(self, key: bytes, client_id: bytes, mount: bytes, clean: bool) -> Session:
        kind = DurableSession if self._store.durable and not clean else Session
        session = self._by_client_id[key] = kind(key, client_id, mount, clean, self._context)
        self._stats.sessions = len(self._by_client_id)
        return session


class _AnyOf(Rights):
    """What some of several rights allow."""

    def __init__(self, rights: list[Rights]) -> None:
        self._rights = rights

    def may_publish(self, topic_name: bytes) -> bool:
        """See Rights."""
        return any(rights.may_publish(topic_name) for rights in self._rights)

    def may_read(self, topic_name: bytes) -> bool:
        """See Rights."""
        return any(rights.may_read(topic_name) for rights in self._rights)

    def grant(self, topic_filter: bytes, qos: int) -> int:
        """See Rights."""
        return min(rights.grant(topic_filter, qos) for rights in self._rights)


def _peer(connection: SessionClient) -> Peer:
    return Peer(connection.peer, identity_of(connection.transport, connection.listener), connection.listener)


def _may_publish(session: Session, will: Will) -> bool:
    return session.rights is None or session.rights.may_publish(will.topic_name)


def _key(mount: bytes, client_id: bytes) -> bytes:
    return mount + b"\0" + client_id if mount else client_id
