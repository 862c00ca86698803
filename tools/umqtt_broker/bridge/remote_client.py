"""The remote end of a bridge: umqtt_robust's client with the additions for bridges."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from umqtt_robust import Client, Will
from umqtt_robust.errors import InvalidArgument, LinkLost

from ..clients.internal_client import LocalEnd
from ..protocol import properties
from ..protocol.packets5 import BRIDGE
from .remote_link import RemoteLink
from .session_store import BridgeStore
from .state import BridgeState

# Messages in flight to the remote broker.
_WINDOW = 100
# The same if some are at QoS 2: mosquitto disconnects a client that has more than 20 of those unfinished.
_WINDOW_QOS2 = 20

# Bytes of the client's buffers for receiving and sending. The longest topic name fits into the first.
_RX_SIZE = 66_000
_TX_SIZE = 16_384

# Bit of the protocol level in CONNECT that marks a bridge: the broker does not send back what this client publishes,
# and keeps the retain flag.
_PRIVATE = 0x80


# The names that umqtt_robust gives to properties, with their identifiers on the wire; and the reverse.
_IDENTIFIERS = {known.name.lower().replace(" ", "_"): identifier for identifier, known in properties.TABLE.items()}
_NAMES = {identifier: name for name, identifier in _IDENTIFIERS.items()}


class NotPrivate(LinkLost):
    """The remote broker refuses a CONNECT whose protocol level marks it as a bridge's."""


class Owner(Protocol):
    """The receiver of the remote client's events: the relay."""

    def open_link(self, host: str, port: int, path: str) -> RemoteLink:
        """Make a link."""
        ...

    def wait_ms(self, n: int) -> int:
        """Return how long to wait before the next attempt, in ms."""
        ...

    def connected(self, session_present: bool) -> None:
        """Handle the link: the remote broker has accepted the bridge."""

    def disconnected(self, error: Exception) -> None:
        """Handle a lost link."""

    def failed(self, error: Exception) -> None:
        """Handle an error after which the client continues by itself."""

    def dropped(self, packet_id: int, topic_name: bytes, payload: bytes, reason: int) -> None:
        """Handle a message that the remote broker refuses."""

    def raw_message(self, buffer: bytearray | bytes, topic: int, topic_end: int, payload: int, end: int) -> None:
        """Handle a message at QoS 0 or 1."""

    def large_message(self, topic_name: bytes, offset: int, size: int, chunk: memoryview) -> None:
        """Handle a piece of a large message."""

    def deliver(self, flags: int, packet_id: int, topic_name: bytes, payload: bytes) -> None:
        """Handle a message at QoS 2.

        topic_name: followed by NUL and the encoded properties of MQTT 5, if the message has any.
        """


class BridgeClient(Client):
    """A client that says in its CONNECT that it is a bridge, by a bit of the protocol level or a property of MQTT 5."""

    # Attributes of umqtt_robust's Session that its stub does not show: the protocol level in CONNECT, and the ms until
    # the next link.
    level: int
    retry_delay: int | None

    def __init__(self, bridge: BridgeState, local: LocalEnd, owner: Owner) -> None:
        config = bridge.config
        self._bridge = bridge
        will = None
        if config.notifications and not config.notifications_local_only:
            will = Will(config.notification_topic, b"0", qos=1, retain=True)
        sends_qos2 = any(rule.goes_out and rule.qos == 2 for rule in config.topics)
        connect_properties = None
        if config.protocol_level == 5 and config.try_private:
            connect_properties = {"user_property": [(BRIDGE, bridge.router.bridge_loops.broker_id)]}
        scheme = "mqtts" if config.encrypted else "mqtt"
        slots = bridge.broker_config.max_inflight_messages
        super().__init__(
            config.remote_client_id,
            [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in config.addresses],
            keep_alive=config.keep_alive,
            protocol=5 if config.protocol_level == 5 else 4,
            connect_properties=connect_properties,
            clean_session=config.clean_session,
            store=BridgeStore(  # pyrefly: ignore[bad-argument-type] - its session is a property
                local, max(slots, len(local.released)), not config.clean_session, owner.deliver
            ),
            will=will,
            username=config.remote_username,
            password=config.remote_password,
            window=min(_WINDOW_QOS2 if sends_qos2 else _WINDOW, slots),
            rx_size=_RX_SIZE,
            tx_size=_TX_SIZE,
            transports={scheme: owner.open_link},
            # An unknown remote session keeps its queued messages. Not with QoS 2: a packet identifier that was never
            # released there would make a new message look like a duplicate.
            keep_broker_queue=not sends_qos2,
            random=owner.wait_ms,
            on_connect=owner.connected,
            on_disconnect=owner.disconnected,
            on_error=owner.failed,
            on_dropped=owner.dropped,
            on_raw=owner.raw_message,
            on_large=owner.large_message,
        )

    def open(
        self,
        write: Callable[[bytes | bytearray, int, int], int | None],
        broker: str = "",
        accepted: Callable[[], object] | None = None,
    ) -> None:
        """Begin a link with the configured protocol level, and the bit of a bridge if the remote broker takes it."""
        self.level = self._bridge.config.protocol_level | (_PRIVATE if self._bridge.remote_private else 0)
        super().open(write, broker, accepted)

    def publish_qos0(self, topic_name: bytes, payload: bytes, retain: bool, encoded: bytes) -> bool:
        """Publish at QoS 0. encoded: properties as on the wire. Returns True if the message was sent."""
        options: dict[str, Any] = {}
        if encoded != b"\0":
            decoded, _ = properties.decode(encoded, 0, len(encoded), properties.PUBLISH)
            expiry = decoded.pop(properties.MESSAGE_EXPIRY_INTERVAL, None)
            options["expires_in"] = None if expiry is None else 1000 * expiry
            options["properties"] = {_NAMES[identifier]: value for identifier, value in decoded.items()}
        try:
            return self.publish(topic_name, payload, 0, retain, **options) is not None
        except InvalidArgument:  # larger than the remote broker accepts
            return False

    @property
    def remote_origin(self) -> bytes | None:
        """The identifier of the remote broker, if its CONNACK of MQTT 5 has one, else None."""
        if self._bridge.config.protocol_level != 5:
            return None
        return dict(self.connack_properties.get("user_property", ())).get(BRIDGE)

    def subscribe_as_bridge(self, topic_filter: bytes, qos: int) -> None:
        """Subscribe. With MQTT 5, no-local (except shared subscriptions) and retain-as-published."""
        if self._bridge.config.protocol_level == 5:
            # [MQTT-3.8.3-4] does not let a shared subscription be no-local.
            no_local = not topic_filter.startswith(b"$share/")
            self.part("subscription_options").set(topic_filter, no_local, retain_as_published=True)
        self.subscribe(topic_filter, qos)

    def handle_connack(self, session_present: int, return_code: int) -> None:
        """Handle CONNACK."""
        if return_code == 1 and self._bridge.remote_private:
            self._bridge.remote_private = False
            self.retry_delay = 0  # connect again at once, without the bit
            raise NotPrivate("the remote broker does not know bridges")
        if self._bridge.config.protocol_level == 3 and not self._bridge.config.clean_session:
            # MQTT 3.1 does not say whether there is a session: resume as if there were, as umqtt_robust does.
            session_present = 1
        # A method of the layer below Client, which Client's stub does not show.
        super().handle_connack(session_present, return_code)  # pyrefly: ignore[missing-attribute]


def encode_named(named: Mapping[str, Any]) -> bytes:
    """Encode the properties of a message, given by umqtt_robust's names, with their length before them."""
    return properties.encode({_IDENTIFIERS[name]: value for name, value in named.items()})
