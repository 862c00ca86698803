"""Moves messages through a bridge while both ends are connected, one turn of the event loop at a time."""

import asyncio
import logging
import random
from collections import deque

from umqtt_robust.errors import Downgraded, Refused
from umqtt_robust.policy import QUARANTINED, TOO_LARGE
from umqtt_robust.resume import SessionPurged

from ..clients.internal_client import LocalEnd
from ..protocol.packets import DUP, PUBACK, PUBCOMP, PUBLISH, PUBREC
from ..protocol.properties import are_within
from ..protocol.reason_codes import ReasonCode
from ..protocol.topics import is_too_deep
from ..routing.bridge_loops import ORIGIN, is_broker_id, topic_of
from .remote_client import BridgeClient, NotPrivate, encode_named
from .remote_link import RemoteLink
from .session_store import NOTE
from .state import BridgeState

_log = logging.getLogger(__name__)

# The value, in ms, that umqtt_robust's client passes to wait_ms() after a refusal that is unlikely to change.
_LONGEST_WAIT = 32_000

# Seconds between two checks whether a broker listens at the first address again, and the timeout of each check.
_PRIMARY_RETRY = 5.0
_PRIMARY_TIMEOUT = 5.0


class Relay:
    """One connection to the local broker, and the links to the remote broker, one after the other, while it lasts.

    ended: a future of the reason why the relay ended; "" means that the next relay begins at once.
    """

    def __init__(self, bridge: BridgeState) -> None:
        self._bridge = bridge
        self._config = bridge.config
        self._status = bridge.status
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._client: BridgeClient | None = None
        self._link: RemoteLink | None = None
        self._index = 0
        # Messages above QoS 0 that the client has no room for yet. Together with those in the client they are at most
        # one window of the local session.
        self._waiting: deque[tuple[int, int, bytes, bytes, bytes]] = deque()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._large: list[bytes] = []
        self._primary_watch: asyncio.Task[None] | None = None
        self._has_properties = bridge.config.protocol_level == 5
        self._max_packet_size = bridge.broker_config.max_packet_size
        self._ping_interval = bridge.broker_config.max_keep_alive / 2
        self._origin_topic = topic_of(self._config.remote_client_id)
        self._local = LocalEnd(bridge.new_connection, self._config.name, self)
        self._local.connect(self._config.local_client_id, self._config.clean_session)

    @property
    def queued(self) -> int:
        """The number of messages that wait for the remote broker."""
        if not self._local.is_open or self._client is None:
            return 0
        return self._local.session.queued + len(self._waiting) + self._client.pending

    @property
    def subscribed(self) -> bool:
        """True if the link is up and the remote broker has answered every subscription."""
        return self._client is not None and self._client.connected and self._client.subscribed

    def close(self) -> None:
        """Close both ends."""
        if not self.ended.done():
            self.ended.set_result("")
        if self._timer is not None:
            self._timer.cancel()
        if self._primary_watch is not None:
            self._primary_watch.cancel()
        if self._link is not None:
            self._link.close()
        self._local.abort()
        self._status.connected = False

    def say_goodbye(self) -> None:
        """Send DISCONNECT at both ends, and end the relay.

        A DISCONNECT discards the will, so the notification that the will would carry is published before it.
        """
        client = self._client
        if client is not None and not self.ended.done():
            if client.connected:
                self._notify_remote(b"0")
            client.disconnect()
            client.tick()
        self._notify_local(b"0")
        self._local.disconnect()
        self._end("")

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    # The local end

    def local_connected(self, session_present: bool) -> None:
        """Handle CONNACK. The link begins in the next turn: the PUBRELs that the broker resends come in this one."""
        del session_present
        self._bridge.router.bridge_loops.own(self._local.session)
        self._loop.call_soon(self._begin)

    def local_closed(self, reason: str) -> None:
        """End, so that another relay begins: the session holds the state of every handshake."""
        self._end(reason)

    def local_answered(self) -> None:
        """Send the bytes to the remote broker that waited for this answer of the local broker."""
        if self._link is not None:
            self._link.flush()

    def local_released(self, packet_id: int) -> None:
        """Handle a PUBREL that answers no PUBREC: expected only right after the CONNACK, later it ends the relay."""
        if self._client is not None:
            self._end(f"its own broker sent PUBREL {packet_id} unasked")

    def local_message(
        self, first_byte: int, packet_id: int, topic_name: bytes, properties: bytes, payload: bytes
    ) -> None:
        """Pass a message on to the remote broker.

        Called from within the broker's routing, so it must not send anything to the local end.
        """
        encoded = properties if self._has_properties else b"\0"
        if first_byte & 6:
            self._waiting.append((first_byte, packet_id, topic_name, encoded, payload))
            self.wake()
            return
        client = self._client
        mapped = self._bridge.outward.get(topic_name) or self._bridge.outward.find(topic_name)
        if not mapped:
            self._status.unmatched += 1
            return
        retain = bool(first_byte & 1) and self._config.outgoing_retain
        if client is not None and client.connected and client.publish_qos0(mapped, payload, retain, encoded):
            self._status.messages_out += 1
        else:
            self._status.dropped_qos0 += 1

    def _begin(self) -> None:
        if not self._local.is_open:
            return
        if not self._config.clean_session:
            self._sync_subscriptions()
        self._notify_local(b"0")
        self._client = BridgeClient(self._bridge, self._local, self)
        for rule in self._config.topics:
            if rule.comes_in:
                self._client.subscribe_as_bridge(rule.remote_filter, rule.qos)
        if self._config.attempt_unsubscribe:
            subscribed = {rule.remote_filter for rule in self._config.topics if rule.comes_in}
            for rule in self._config.topics:
                if rule.remote_filter not in subscribed:
                    self._client.unsubscribe(rule.remote_filter)
        if self._ping_interval:
            self._loop.call_later(self._ping_interval, self._ping)
        self.wake()

    def _sync_subscriptions(self) -> None:
        """Make the session's subscriptions those of the configuration; unchanged ones are not sent again."""
        wanted: dict[bytes, int] = {}
        for rule in self._config.topics:
            if rule.goes_out:
                wanted[rule.local_filter] = max(rule.qos, wanted.get(rule.local_filter, 0))
        present = dict(self._local.session.subscriptions)
        for topic_filter in present:
            if topic_filter not in wanted and not topic_filter.startswith((NOTE, ORIGIN)):
                self._local.unsubscribe(topic_filter)
        for topic_filter, qos in wanted.items():
            if present.get(topic_filter) != qos:
                self._local.subscribe(topic_filter, qos)

    def _ping(self) -> None:
        if not self.ended.done():
            self._local.ping()
            self._loop.call_later(self._ping_interval, self._ping)

    # Turns

    def wake(self) -> None:
        """Take a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        client = self._client
        if client is None or self.ended.done():
            return
        if self._link is not None:
            self._link.begin_turn()
        try:
            self._forward(client)
            wait_ms = client.tick()
            if self._forward(client):
                wait_ms = client.tick()
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")  # another relay begins; the session holds the state
            raise
        if self._link is not None and self._link.has_more and not self._local.paused:
            self.wake()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_ms / 1000, self.wake)

    def _forward(self, client: "BridgeClient") -> bool:
        """Give the client the messages that it has room for. Returns True if there was any.

        Gives none before every subscription is answered: the packet identifier of a SUBSCRIBE could be a message's too.
        """
        waiting = self._waiting
        if not waiting or not client.connected or not client.subscribed:
            return False
        outbox = client.outbox
        moved = False
        while waiting and client.pending < outbox.store.slots:
            first_byte, packet_id, topic_name, encoded, payload = waiting.popleft()
            mapped = self._bridge.outward.get(topic_name) or self._bridge.outward.find(topic_name)
            if not mapped:  # queued under rules that no longer exist
                self._status.unmatched += 1
                self._leave_out(first_byte, packet_id)
                continue
            if encoded != b"\0":
                mapped = b"\0".join((mapped, encoded))  # the form in which umqtt_robust keeps properties
            flags = first_byte & 7 if self._config.outgoing_retain else first_byte & 6
            if first_byte & DUP:
                # Flags of umqtt_robust: it may have been sent before, and to the broker that has this session.
                flags |= 0x18
            outbox.put(packet_id, flags, mapped, payload)
            client.pending += 1
            # tick() is due. Client's stub does not show this attribute.
            client.wait_ms = 0  # pyrefly: ignore[missing-attribute]
            self._status.messages_out += 1
            moved = True
        return moved

    def _leave_out(self, first_byte: int, packet_id: int) -> None:
        if first_byte & 4:
            self._local.acknowledge(PUBREC, packet_id)
        self._local.acknowledge(PUBCOMP if first_byte & 4 else PUBACK, packet_id)

    # The remote end

    def open_link(self, host: str, port: int, path: str) -> RemoteLink:
        """Make a link; called by the client."""
        del path
        self._index = self._config.addresses.index((host, port))
        self._status.remote = f"{host}:{port}"
        self._link = RemoteLink(self._local, host, port, self._bridge.context, self.wake)
        self._link.begin_turn()
        return self._link

    def wait_ms(self, n: int) -> int:
        """Return how many ms the client waits before it connects again.

        Given to the client as its source of random numbers: n is the limit below which it would choose the wait.
        """
        if n == _LONGEST_WAIT:
            return random.randrange(n)
        if self._client is None:  # it is just being made
            return 0
        return int(self._bridge.next_wait() * 1000)

    def connected(self, session_present: bool) -> None:
        """Handle a new link: the remote broker has accepted the bridge."""
        del session_present
        self._status.connected = True
        self._status.connects += 1
        self._bridge.reset_wait()
        _log.info("bridge %s: connected to %s", self._config.name, self._status.remote)
        if self._config.clean_session:
            self._sync_subscriptions()
        assert self._client is not None
        if self._client.remote_origin is not None:
            self._lead_to(self._client.remote_origin)
        elif self._bridge.remote_private:
            # Before all other messages: from then on a remote broker of this project sends nothing back that came from
            # here.
            self._client.publish(self._origin_topic, self._bridge.router.bridge_loops.broker_id, 0)
        self._notify_remote(b"1")
        self._notify_local(b"1")
        if self._index and not self._config.round_robin and self._primary_watch is None:
            self._primary_watch = self._loop.create_task(self._watch_primary())

    def disconnected(self, error: Exception) -> None:
        """Handle a lost link; the client makes another one."""
        self._status.connected = False
        self._bridge.report(f"link to {self._status.remote} lost: {error}")
        self._notify_local(b"0")
        if self._config.clean_session:
            self._end("the link is lost and cleansession is true")

    def failed(self, error: Exception) -> None:
        """Report an error after which the client continues by itself."""
        if isinstance(error, NotPrivate):
            _log.info("bridge %s: %s", self._config.name, error)
        elif isinstance(error, Refused) and error.args[0] == "subscribe":
            self._bridge.report(f"{self._status.remote} refuses the subscription {error.args[1]!r}")
        elif isinstance(error, Refused) and error.args[0] == "publish":
            self._status.refused += 1
            self._bridge.report(
                f"{self._status.remote} does not take a message to {error.args[1]!r}: {_reason(error.args[2])}"
            )
        elif isinstance(error, Refused):
            self._bridge.report(f"{self._status.remote} refuses the connection with code {error.args[1]}")
        elif isinstance(error, Downgraded):
            self._bridge.report(f"{self._status.remote} takes QoS 2 for QoS 1: it may deliver messages twice")
        elif isinstance(error, SessionPurged):
            self._status.purges += 1
            self._bridge.report(f"{self._status.remote} had another session of this bridge, which is now discarded")
        else:
            self._bridge.report(f"cannot connect to {self._status.remote}: {error}")

    def dropped(self, packet_id: int, topic_name: bytes, payload: bytes, reason: int) -> None:
        """Handle a message that the remote broker does not accept.

        Reports messages that are too large: if the broker gave a reason code, failed() has reported it. A message that
        the client sets aside, because several links ended while it was sent, must not be overtaken [MQTT-4.6.0-1]: a
        bad line looks the same. So this relay ends, and the next one begins with this message again.
        """
        del packet_id
        if reason == QUARANTINED:
            self._end(f"{self._status.remote} ends each link at a message to {topic_name!r}, which blocks all others")
        elif reason == TOO_LARGE:
            self._status.refused += 1
            self._bridge.report(f"{self._status.remote} takes no message of {len(payload)} bytes: one is left out")

    def raw_message(self, buffer: bytearray | bytes, topic: int, topic_end: int, payload: int, end: int) -> None:
        """Handle a message at QoS 0 or 1."""
        self._deliver_described(bytes(buffer[topic:topic_end]), bytes(buffer[payload:end]))

    def _deliver_described(self, topic_name: bytes, payload: bytes) -> None:
        """Deliver a message whose flags, packet identifier and properties are in the client's attributes."""
        client = self._client
        assert client is not None
        if self._has_properties and client.properties:
            topic_name = b"\0".join((topic_name, encode_named(client.properties)))
        self.deliver(client.flags, client.packet_id, topic_name, payload)

    def large_message(self, topic_name: bytes, offset: int, size: int, chunk: memoryview) -> None:
        """Handle a piece of a message that is larger than the client's buffer."""
        assert self._client is not None
        if not offset:
            self._large = []
        if size <= self._max_packet_size:
            self._large.append(bytes(chunk))
        if offset + len(chunk) == size:
            payload = b"".join(self._large)
            self._large = []
            if size > self._max_packet_size:
                self._status.too_large += 1
                self._bridge.report(f"a message of {size} bytes is larger than max_packet_size; it is left out")
            else:
                self._deliver_described(topic_name, payload)

    def deliver(self, flags: int, packet_id: int, topic_name: bytes, payload: bytes) -> None:
        """Publish a received message at the local broker, under the packet identifier that it came with.

        topic_name: followed by NUL and the encoded properties of MQTT 5, if the message has any.
        """
        topic_name, _, encoded = topic_name.partition(b"\0")
        encoded = encoded or b"\0"
        if topic_name == self._origin_topic:
            self._lead_to(payload)
            return
        mapped = self._bridge.inward.get(topic_name) or self._bridge.inward.find(topic_name)
        if not mapped or is_too_deep(mapped, self._bridge.broker_config.max_topic_levels):
            self._status.unmatched += 1
        elif 4 + len(mapped) + len(encoded) + len(payload) > self._max_packet_size:
            self._status.too_large += 1
            self._bridge.report(f"a message of {len(payload)} bytes is larger than max_packet_size; it is left out")
        elif encoded != b"\0" and not are_within(encoded, self._bridge.broker_config.max_properties_size):
            # Its own broker would end the connection, and the remote broker would send the message again and again.
            self._status.too_large += 1
            self._bridge.report("a message has properties larger than max_properties_size; it is left out")
        else:
            self._status.messages_in += 1
            if not self._bridge.broker_config.retain_available:
                flags &= ~1  # [MQTT-3.2.2-14] would end the connection
            self._local.publish(PUBLISH | flags & 15, packet_id, mapped, payload, encoded)

    def _lead_to(self, broker_id: bytes) -> None:
        """Record the identifier of the remote broker."""
        if not is_broker_id(broker_id):
            self._bridge.report(f"{self._status.remote} sent an invalid identifier of a broker; it is ignored")
            return
        router = self._bridge.router
        router.set_origin(self._local.session, broker_id)
        router.bridge_loops.own(self._local.session)

    async def _watch_primary(self) -> None:
        """Start again with the first address once a broker listens there again."""
        host, port = self._config.addresses[0]
        while True:
            await asyncio.sleep(min(_PRIMARY_RETRY, self._config.restart_timeout[1]))
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _PRIMARY_TIMEOUT)
            except OSError:
                continue
            writer.close()
            _log.info("bridge %s: %s:%d is back", self._config.name, host, port)
            self.say_goodbye()
            return

    def _notify_local(self, state: bytes) -> None:
        if not self._config.notifications:
            return
        topic_name = self._config.notification_topic
        if topic_name.startswith(b"$SYS/"):  # clients, and so the local end, may not publish there
            router = self._bridge.router
            router.publish_own(topic_name, state)
            router.flush()
        else:
            self._local.publish(PUBLISH | 1, 0, topic_name, state)

    def _notify_remote(self, state: bytes) -> None:
        if self._client is not None and self._config.notifications and not self._config.notifications_local_only:
            # At QoS 0, which needs no packet identifier: all identifiers belong to the local session. If the message
            # does not arrive, the link is lost, and the will reports that.
            self._client.publish(self._config.notification_topic, state, 0, retain=True)


def _reason(code: int) -> str:
    try:
        return ReasonCode(code).text
    except ValueError:
        return f"reason code {code}"
