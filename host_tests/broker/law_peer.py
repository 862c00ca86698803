"""The peers of the kill and trace laws, in both versions of the protocol, and the properties of their messages.

With MQTT 5 each message has an expiry, a content type and a user property, which must come back after a crash.
"""

from broker_peer import Peer
from peer5 import Packet5, Peer5
from umqtt_testkit import encoder

# The protocol levels of MQTT 3.1.1 and MQTT 5.
LEVELS = (4, 5)
_EXPIRY_S = 86_400
_CONTENT_TYPE = b"text/plain"
_FOR_EVER = 0xFFFFFFFF


def mirrored(payload: bytes) -> bytes:
    """Return the value of a message's user property: as unique as the payload, and not a part of it."""
    return payload[::-1]


def has_properties(packet: Packet5) -> bool:
    """Tell whether a message has all properties that it was published with."""
    found = packet.properties
    is_expiring = 0 < found.get("message_expiry_interval", 0) <= _EXPIRY_S
    is_named = found.get("user_property") == [(b"mirror", mirrored(packet.payload))]
    return is_expiring and is_named and found.get("content_type") == _CONTENT_TYPE


class LawPeer5(Peer5):
    """A Peer5 with the methods of Peer, whose sessions never expire."""

    def connect(
        self,
        client_id: bytes,
        *,
        clean_session: bool = True,
        keep_alive: int = 0,
        will: tuple[bytes, bytes, int, bool] | None = None,
    ) -> bool:
        connack = self.connect5(
            client_id,
            clean=clean_session,
            keep_alive=keep_alive,
            will=will,
            will_properties=_encode(will[1]) if will else b"\0",
            session_expiry_interval=0 if clean_session else _FOR_EVER,
        )
        self.session_present = connack.present
        return self.session_present

    def subscribe(self, topic_filter: bytes, qos: int = 0) -> int:
        return self.subscribe5((topic_filter, qos))[0]

    def publish_packet(
        self, topic_name: bytes, payload: bytes, qos: int, packet_id: int, *, retain: bool = False, dup: bool = False
    ) -> bytes:
        encoded = _encode(payload)
        return encoder.publish(topic_name, payload, qos, packet_id, retain=retain, dup=dup, properties=encoded)


def law_peer(port: int, protocol_level: int) -> Peer:
    """Return a peer of this version."""
    return LawPeer5(port) if protocol_level == 5 else Peer(port)


def _encode(payload: bytes) -> bytes:
    return encoder.properties(
        message_expiry_interval=_EXPIRY_S, content_type=_CONTENT_TYPE, user_property=(b"mirror", mirrored(payload))
    )
