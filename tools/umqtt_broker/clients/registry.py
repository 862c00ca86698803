"""The registry of sessions by client identifier: CONNECT, takeover, disconnection, wills, expiry, recovery."""

import asyncio
import logging
import math
import secrets
from collections.abc import Iterator

from ..access.permission import Peer, Permission, Rights
from ..core.context import BrokerContext
from ..core.due_times import DueTimes
from ..core.queue_limits import QueueLimits
from ..core.turns import SLICE
from ..errors import MalformedPacket
from ..log import log_connect, log_denied_will, log_disconnect
from ..protocol.connect import Connect
from ..protocol.messages import Will
from ..protocol.packets import IDENTIFIER_REJECTED, NOT_AUTHORIZED
from ..protocol.packets5 import FOR_EVER
from ..protocol.reason_codes import ReasonCode
from ..protocol.topics import check_topic_name, mounted_name
from ..routing.retained_delivery import RetainedDelivery
from ..routing.router import Router
from ..sessions.durable import DurableSession
from ..sessions.session import Session
from ..sessions.topic_aliases import TopicAliases
from ..settings.broker import Listener
from ..store import Recovered
from ..store.base import Owner
from ..transport.peers import client_share
from ..transport.tls import identity_of
from .ports import SessionClient

# Most sessions discarded in one call of expire(): a fleet that expires together must not delay other clients.
_MOST_AT_ONCE = 1000

# Due times that may be kept in addition to two for each session, before outdated ones are removed.
_FEW_DUE = 1000

_log = logging.getLogger(__name__)


class Sessions:
    """All sessions by client identifier. Each has at most one connection.

    Listeners with different mount points share nothing, not even client identifiers. So a session is found under its
    `key`: the client identifier; behind a mount point, the mount point, U+0000 and the client identifier. Neither of
    them can contain U+0000 [MQTT-1.5.3-2].
    """

    def __init__(self, context: BrokerContext, router: Router) -> None:
        self._config = context.config
        self._context = context
        self._stats = context.stats
        self._store = context.store
        self._router = router
        self._by_client_id: dict[bytes, Session] = {}
        # When sessions without a connection end and their wills are due.
        self._due: DueTimes[Session] = DueTimes()

    def __len__(self) -> int:
        return len(self._by_client_id)

    def __iter__(self) -> Iterator[Session]:
        """Iterate over the sessions there are now; they may come and go meanwhile."""
        return iter(list(self._by_client_id.values()))

    def get(self, client_id: bytes, mount: bytes = b"") -> Session | None:
        """Return the session of a client, None if there is none."""
        return self._by_client_id.get(_key(mount, client_id))

    @property
    def queued(self) -> int:
        """The number of messages that wait in the queues of all sessions and groups together."""
        return sum(session.queued for session in self._by_client_id.values()) + self._router.shares.queued

    # Recovery

    def recover(self, recovered: Recovered) -> None:
        """Make the sessions that the store has kept, with their groups, wills and subscriptions."""
        now = self._context.expiry.clock()
        behind = expired = 0.0
        self._router.shares.recover(recovered.shares)
        for found in recovered.sessions:
            mount, _, client_id = found.client_id.rpartition(b"\0")
            session = self._new(found.client_id, client_id, mount, clean=False)
            assert isinstance(session, DurableSession)
            session.restore(found)
            self._count(session, session.username or b"")
            session.will = recovered.wills.get(session.key)
            if not self._is_timed(session):
                if session.away_since:
                    # The recorded time is not updated from now on.
                    self._store.set_away(session.number, 0)
                session.away_since = now
            elif not session.away_since or session.away_since > now + 1:
                # It was connected when the broker was killed, the time was not recorded, or the clock was set back.
                behind = max(behind, session.away_since - now)
                self._set_away(session, now)
            else:
                expired += self._has_expired(session)
                self._expect(session)
            session.set_rights(self._recovered_rights(session))
            for topic_filter, options, identifier in found.subscriptions:
                self._router.add_subscription(session, topic_filter, options, identifier)
            self._recover_retained_delivery(session, found.retained_pending)
        self._router.shares.end_empty()
        if behind:
            _log.warning("the machine's clock is %d s behind the store's times: absences count from now on", behind)
        if expired:
            _log.warning("%d sessions expired while the broker did not run: is the machine's clock right?", expired)

    def _recover_retained_delivery(self, session: Session, topic_filters: list[bytes]) -> None:
        """Prepare the delivery of retained messages for when the client is back: they are not recovered yet."""
        if topic_filters:
            session.retained_delivery = RetainedDelivery(session, self._router, self._context)
            for topic_filter in topic_filters:
                session.retained_delivery.recover(topic_filter, session.subscriptions[topic_filter])

    def publish_recovered_wills(self, wills: dict[bytes, Will]) -> None:
        """Publish the wills of the clients that were connected when the broker was killed: they sent no DISCONNECT.

        A will whose delay is not over is published later. wills: by the key of the session.
        """
        for key, will in wills.items():
            session = self._by_client_id.get(key)
            if session is None or not session.will_is_due:
                self._publish(will)
                self._store.set_will(key, None)
                if session is not None:
                    session.will = None

    def _recovered_rights(self, session: Session) -> Rights | None:
        """Return the rights of a session before its client is back: what any listener with its mount point allows."""
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
        """Decide whether a client may connect. Returns the decision, and the CONNECT to pass to connect().

        The decision is a CONNACK return code or reason code, or a future of it. The returned CONNECT has the client
        identifier of the session, and the will's topic name has the mount point. Raises MalformedPacket.
        """
        listener, config = connection.listener, self._config
        named = packet
        if packet.client_id:
            if not packet.client_id.startswith(config.client_id_prefixes or b""):
                return IDENTIFIER_REJECTED, packet
        else:
            # [MQTT-3.1.3-8] without a client identifier a session cannot be kept.
            may_name = (packet.clean_session and packet.protocol_level == 4) or packet.protocol_level == 5
            is_allowed = listener.allow_zero_length_client_id
            if is_allowed is None:
                is_allowed = config.allow_zero_length_client_id
            if not (may_name and is_allowed):
                return IDENTIFIER_REJECTED, packet
            prefix = config.auto_id_prefix if listener.auto_id_prefix is None else listener.auto_id_prefix
            named = packet._replace(client_id=prefix + secrets.token_hex(8).encode(), has_assigned_id=True)
        version5 = packet.version5
        if version5 is not None and version5.authentication_method is not None:
            return ReasonCode.BAD_AUTHENTICATION_METHOD, packet  # [MQTT-4.12.0-1]
        if version5 is not None and config.server_reference:
            return ReasonCode.USE_ANOTHER_SERVER, packet
        if version5 is not None and packet.will is not None and packet.will.retain and not config.retain_available:
            return ReasonCode.RETAIN_NOT_SUPPORTED, packet
        peer = _peer(connection)
        if listener.use_identity_as_username and peer.identity is None:
            return NOT_AUTHORIZED, packet
        if packet.will is not None and listener.mount_point:
            topic_name = mounted_name(listener.mount_point, packet.will.topic_name)
            named = named._replace(will=packet.will._replace(topic_name=topic_name))
        if named.will is not None:
            check_topic_name(named.will.topic_name, config.max_topic_levels)
        # The permission gets the CONNECT as it came: its rules for identifiers are about those that clients choose.
        permission = self._permission(listener)
        return permission.connect(packet, peer), named

    def has_room(self, connection: SessionClient, packet: Connect) -> bool:
        """Return True if a client may have the session that it asks for: it has it, or there is room for one more."""
        if self._session_expiry(packet) == 0:
            return True
        session = self._by_client_id.get(_key(connection.listener.mount_point, packet.client_id))
        has_one = session is not None and not session.clean
        return has_one or self._router.room.may_keep_session(self._owner(connection, packet))

    def connect(self, connection: SessionClient, packet: Connect) -> bool:
        """Attach a connection that is let in to its session, which is made if needed. Returns session_present."""
        listener = connection.listener
        mount, client_id = listener.mount_point, packet.client_id
        key = _key(mount, client_id)
        session = self._by_client_id.get(key)
        if session is not None and session.connection is not None:
            # [MQTT-3.1.4-2] The old connection loses the session before the new one gets it, so nothing that the old
            # one still does can change the session.
            self._stats.takeovers += 1
            session.connection.abort(f"taken over from {connection.peer}", ReasonCode.SESSION_TAKEN_OVER)
            session = self._by_client_id.get(key)
        if session is not None and self._has_expired(session):
            # With very many sessions, expire() is late [MQTT-4.1.0-2 of MQTT 5].
            self._end_expired(session)
            session = None
        username = _peer(connection).username(packet) or None
        rights = self._permission(listener).rights(client_id, username)
        expiry = self._session_expiry(packet)
        owner = Owner(username, packet.protocol_level, expiry)
        if session is not None and rights is not None and session.username != username:
            # Messages that wait for one user must not reach another.
            self._stats.sessions_of_others += 1
            self.discard(session)
            session = None
        session_present = session is not None and not packet.clean_session
        if session is not None and packet.clean_session:
            self.discard(session)
            session = None
        if session is None:
            session = self._new(key, client_id, mount, expiry == 0)
            self._count(session, self._owner(connection, packet))
            if session.store is not None:
                session.number = session.store.new_session(key, owner)
        else:
            self._return(session, owner)
        session.username, _, session.session_expiry = owner
        session.receive_maximum = connection.client_limits.receive_maximum
        session.max_packet_size = connection.client_limits.max_packet_size
        if session.max_packet_size and session.subscriptions:
            # Routes differ for clients that do not accept packets of any size.
            self._router.forget_routes()
        maximum = connection.client_limits.topic_alias_maximum
        session.aliases = TopicAliases(maximum, session.max_packet_size) if maximum else None
        if session.protocol_level != packet.protocol_level:
            session.set_protocol_level(packet.protocol_level)
            for group in session.shared:
                group.set_protocol_level(packet.protocol_level)
            if session.subscriptions:
                self._router.forget_routes()
        session.listener = listener
        if session.rights is not rights:
            session.set_rights(rights)
            if session.subscriptions:
                self._router.forget_routes()
        self._set_will(session, packet.will)
        session.attach(connection)
        connection.session = session
        log_connect(
            client_id, connection.peer, username, clean_session=packet.clean_session, keep_alive=packet.keep_alive
        )
        # [MQTT-3.2.2-2] MQTT 3.1 has no session_present: the byte is reserved there.
        return session_present and packet.protocol_level != 3

    def _session_expiry(self, packet: Connect) -> int | None:
        """Return for how many seconds the client wants the session kept without a connection; None: for ever."""
        if packet.version5 is None:
            return 0 if packet.clean_session else None
        asked = packet.version5.session_expiry
        return None if asked == FOR_EVER else asked

    def _permission(self, listener: Listener) -> Permission:
        return listener.permission or self._config.permission

    def _return(self, session: Session, owner: Owner) -> None:
        """Record that a persistent session has a connection again."""
        if 0 < session.will_is_due <= self._context.expiry.clock():
            self.publish_will(session)
        # A will whose delay is not over is not published any more [MQTT-3.1.3-9].
        self.forget_will(session)
        if session.store is not None:
            if (session.username, session.protocol_level, session.session_expiry) != owner:
                session.store.set_owner(session.number, owner)
            if session.away_since and self._is_timed(session):
                session.store.set_away(session.number, 0)
        session.away_since = session.will_is_due = 0.0

    def set_session_expiry(self, session: Session, seconds: int) -> None:
        """Set how long the session is kept, as given in DISCONNECT. Raises MalformedPacket."""
        if session.session_expiry == 0 and seconds:
            raise MalformedPacket("session expiry in DISCONNECT", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.14.2-2]
        session.session_expiry = None if seconds == FOR_EVER else seconds
        if session.store is not None:
            owner = Owner(session.username, session.protocol_level, session.session_expiry)
            session.store.set_owner(session.number, owner)

    def granted_session_expiry(self, session: Session) -> int:
        """Return the session expiry interval as MQTT 5 writes it, within what the settings allow."""
        most = self._most_away(session)
        return FOR_EVER if most is None else most

    def _most_away(self, session: Session) -> int | None:
        """Return how many seconds a session is kept without a connection; None: for ever."""
        asked, most = session.session_expiry, self._config.session_expiry
        if asked is None:
            return most or None
        return min(asked, most) if most else asked

    def _is_timed(self, session: Session) -> bool:
        """Return True if the store must know since when a session has no connection: for its expiry or its will."""
        # Otherwise the time is not recorded, so that a fleet that comes and goes need not wait for the disk.
        return self._most_away(session) is not None or (session.will is not None and session.will.delay > 0)

    # The end

    def detach(self, connection: SessionClient) -> None:
        """Detach the session from a connection that ends, and publish a will without delay. Safe to call again."""
        session, connection.session = connection.session, None
        if session is None:
            return
        session.detach()
        log_disconnect(session.client_id, connection.ending)
        if session.clean or session.session_expiry == 0:
            self.discard(session)
        else:
            self._set_away(session, self._context.expiry.clock())
        if session.will is not None and not session.will_is_due:
            self.publish_will(session)
        self._router.flush()

    def _set_away(self, session: Session, since: float) -> None:
        """Record that a session has no connection any more, and note when its end and its will are due."""
        session.away_since = since
        self._record_away(session)
        self._expect(session)

    def _record_away(self, session: Session) -> None:
        if session.store is not None and self._is_timed(session):
            # Rounded up: neither the session nor its will may end early.
            session.store.set_away(session.number, math.ceil(session.away_since + self._context.expiry.ahead))

    def _has_expired(self, session: Session) -> bool:
        """Return True if a session's client has been away for longer than the session is kept."""
        most = self._most_away(session)
        if most is None or session.connection is not None or not session.away_since:
            return False
        return session.away_since + most <= self._context.expiry.clock()

    def _end_expired(self, session: Session) -> None:
        self._stats.sessions_expired += 1
        self.discard(session)

    def _expect(self, session: Session) -> None:
        """Note when a session without a connection ends, and when its will is due."""
        most, will = self._most_away(session), session.will
        if most is not None:
            self._due.add(session.away_since + most, session)
        if will is not None and will.delay and (most is None or will.delay < most):
            session.will_is_due = session.away_since + will.delay
            self._due.add(session.will_is_due, session)
        elif will is not None and will.delay and most:
            # The will is published when the session ends.
            session.will_is_due = session.away_since + most

    def discard(self, session: Session) -> None:
        """Discard a session without a connection and everything in it. A delayed will is published."""
        self._router.remove_session(session)
        del self._by_client_id[session.key]
        if not session.clean:
            self._router.room.count_session(session.owner, -1)
        if session.will is not None and session.will_is_due:
            self.publish_will(session)
        self._stats.sessions = len(self._by_client_id)
        session.retained_delivery = None
        if self._context.limits is not None:
            self._context.limits.forget(session)
        if session.store is not None:
            session.store.discard_session(session.number)

    def expire(self) -> None:
        """Discard expired sessions, publish due wills, and drop expired messages that hold publishers back."""
        limits, expiry = self._context.limits, self._context.expiry
        now = expiry.clock()
        if expiry.has_jumped():
            _log.warning("the machine's clock was set, %+d s since the start: no session ends by that", expiry.ahead)
            for session in self:
                if session.connection is None:
                    self._record_away(session)
        if limits is not None:
            for session in limits.waited_for():
                session.drop_expired()
        for session in self._due.pop(now, _MOST_AT_ONCE):
            if session.connection is not None or self._by_client_id.get(session.key) is not session:
                continue
            if self._has_expired(session):
                self._end_expired(session)
            elif session.will is not None and 0 < session.will_is_due <= now:
                self.publish_will(session)
        if len(self._due) > 2 * len(self) + _FEW_DUE:
            self._look_at_all_again()
        self._router.flush()

    def _look_at_all_again(self) -> None:
        """Compute all due times again, after new settings or when most of them are outdated."""
        self._due.clear()
        for session in self._by_client_id.values():
            if session.connection is None:
                self._expect(session)

    # Wills

    def _set_will(self, session: Session, will: Will | None) -> None:
        """Keep the will of a client that has connected. It is recorded in the store: the broker may be killed."""
        if will is not None and self._store.durable and _may_publish(session, will):
            self._store.set_will(session.key, will)
        session.will = will

    def publish_will(self, session: Session) -> None:
        """Publish the will of a session, if it still has one, as if its client had published it (3.1.2.5)."""
        will = session.will
        if will is None:
            return
        self.forget_will(session)
        session.will_is_due = 0.0
        if _may_publish(session, will):
            self._publish(will)
        else:
            self._stats.denied += 1
            log_denied_will(session.client_id, will.topic_name)

    def _publish(self, will: Will) -> None:
        most = self._config.max_payload_size
        if most and len(will.payload) > most:
            self._stats.dropped_too_large += 1
            return
        self._stats.wills += 1
        retain = int(will.retain and self._config.retain_available)
        publish = self._router.publish_here
        self._router.publish_with(will.properties, publish, will.topic_name, will.payload, will.qos, retain)

    def forget_will(self, session: Session) -> None:
        """Discard a will, after a DISCONNECT [MQTT-3.1.2-10] or because it is published."""
        if session.will is not None:
            session.will = None
            if self._store.durable:
                self._store.set_will(session.key, None)

    # Reload

    def rights_changed(self) -> None:
        """Look up all rights and limits again, because the settings have changed.

        Those of very many sessions take more than one slice: until then, the old ones apply to the rest.
        """
        self._context.expiry.tick()
        limits = self._context.limits
        if limits is not None:
            limits.settings_changed()
        else:
            limits = self._context.limits = QueueLimits.of(self._config, self._stats)
            if limits is not None:
                for session in (*self._by_client_id.values(), *self._router.shares):
                    limits.added(session, *session.waiting)
        self._due.clear()
        work, loop = self._look_up_again(), asyncio.get_running_loop()
        until = loop.time() + SLICE
        for _ in work:
            if loop.time() >= until:
                self._router.in_slices(work)
                break
        self._router.flush()

    def _look_up_again(self) -> Iterator[None]:
        """Look up the rights and limits of each session, in one step."""
        for session in self:
            if session.has_ended:
                continue
            if session.listener is None:
                session.set_rights(self._recovered_rights(session))
            else:
                session.set_rights(self._permission(session.listener).rights(session.client_id, session.username))
            session.settings_changed()
            if session.connection is None:
                self._expect(session)
            else:
                session.connection.bind()
                if self._config.server_reference:
                    session.connection.send_away()
            yield
        self._router.forget_routes()
        self._router.flush()

    def _new(self, key: bytes, client_id: bytes, mount: bytes, clean: bool) -> Session:
        is_durable = self._store.durable and not clean
        session = (
            DurableSession(key, client_id, mount, self._context)
            if is_durable
            else Session(key, client_id, mount, self._context, clean)
        )
        self._by_client_id[key] = session
        self._stats.sessions = len(self._by_client_id)
        return session

    def _owner(self, connection: SessionClient, packet: Connect) -> bytes:
        """Return whose share of the sessions a client takes: that of its user name if it is proved, or its address."""
        listener = connection.listener
        if listener.use_identity_as_username or self._permission(listener).proves_user_names:
            username = _peer(connection).username(packet)
            if username is not None:
                return username
        return b"\0" + client_share(connection.transport).encode()  # which no user name contains

    def _count(self, session: Session, owner: bytes) -> None:
        if not session.clean:
            session.owner = owner
            self._router.room.count_session(owner, 1)


class _AnyOf(Rights):
    """Rights that allow what at least one of several rights allows."""

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
