"""A Peer that speaks MQTT 5: it does nothing automatically, and shows everything that the broker sends."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_peer import Packet, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import AUTH, CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBLISH, SUBACK, UNSUBACK


class Packet5(NamedTuple):
    """A packet from the broker.

    reason_codes: one, except in SUBACK and UNSUBACK. present: session_present of a CONNACK.
    """

    kind: int
    packet_id: int = 0
    reason_codes: bytes = b""
    properties: dict[str, Any] = {}
    topic_name: bytes = b""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    present: bool = False


def decode5(packet: Packet) -> Packet5:
    """Decode a packet as one of MQTT 5."""
    kind, body, packet_id, topic_name, _, qos, retain, dup = packet
    if kind == PUBLISH:
        properties, at = encoder.parse_properties(body, 2 + len(topic_name) + (2 if qos else 0))
        return Packet5(kind, packet_id, b"", properties, topic_name, body[at:], qos, retain, dup)
    if kind == CONNACK:
        properties, at = encoder.parse_properties(body, 2)
        assert at == len(body)
        return Packet5(kind, 0, body[1:2], properties, present=bool(body[0]))
    if kind in (SUBACK, UNSUBACK):
        properties, at = encoder.parse_properties(body, 2)
        return Packet5(kind, packet_id, body[at:], properties)
    if PUBACK <= kind <= PUBCOMP:
        return Packet5(kind, packet_id, body[2:3] or b"\0")
    if kind in (DISCONNECT, AUTH):
        properties, _ = encoder.parse_properties(body + b"\0", 1)
        return Packet5(kind, 0, body[:1], properties)
    return Packet5(kind)


class Peer5(Peer):
    """An MQTT 5 client; see Peer."""

    def connect5(self, client_id: bytes, *, clean: bool = True, will: Any = None, **properties: Any) -> Packet5:
        """Connect, expect to be accepted, and return the CONNACK. properties: of the CONNECT, by name."""
        connack = self.ask(client_id, clean=clean, will=will, **properties)
        assert connack.kind == CONNACK and connack.reason_codes == b"\0", connack
        return connack

    def ask(
        self,
        client_id: bytes,
        *,
        clean: bool = True,
        keep_alive: int = 0,
        will: tuple[bytes, bytes, int, bool] | None = None,
        will_properties: bytes = b"\0",
        user_name: bytes | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Packet5:
        """Send a CONNECT and return the answer."""
        self.send(
            encoder.connect(
                client_id,
                clean_session=clean,
                keep_alive=keep_alive,
                will=will,
                will_properties=will_properties,
                user_name=user_name,
                password=password,
                properties=encoder.properties(**properties),
            )
        )
        return self.receive()

    def receive(self) -> Any:
        """Return the next packet, a Packet5. Raises Closed, or TimeoutError."""
        return decode5(super().receive())

    def received_already(self) -> list[Any]:
        """Return the packets that came with an earlier one, as Packet5."""
        return [decode5(packet) for packet in super().received_already()]

    def subscribe5(self, *requests: tuple[bytes, int], **properties: Any) -> bytes:
        """Subscribe to (topic filter, options) pairs and return the reason codes. The SUBACK must come next."""
        packet_id = self.next_id()
        self.send(encoder.subscribe(packet_id, *requests, properties=encoder.properties(**properties)))
        return self.expect(SUBACK, packet_id).reason_codes

    def publish5(
        self, topic_name: bytes, payload: bytes, qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> int:
        """Publish and return the reason code of the first answer, 0 at QoS 0. No other packet may come in between."""
        packet_id = self.next_id() if qos else 0
        encoded = encoder.properties(**properties)
        self.send(encoder.publish(topic_name, payload, qos, packet_id, retain=retain, properties=encoded))
        if not qos:
            assert self.flush() == []
            return 0
        answer = self.expect(PUBACK if qos == 1 else encoder.PUBREC, packet_id)
        if qos == 2 and answer.reason_codes[0] < 0x80:
            self.send(encoder.acknowledgement(encoder.PUBREL, packet_id))
            self.expect(PUBCOMP, packet_id)
        return answer.reason_codes[0]
