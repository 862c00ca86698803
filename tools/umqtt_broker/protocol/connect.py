"""Decodes CONNECT of every version, and recognizes HTTP and TLS that arrive in its place."""

from typing import NamedTuple

from ..errors import MalformedPacket
from .messages import NO_PROPERTIES, Will
from .packets import field
from .packets5 import Connect5, decode_connect_properties, decode_will_properties
from .reason_codes import ReasonCode
from .topics import is_topic_name, is_utf8, reason_code_of

# Bytes of the largest CONNECT: a variable header of at most 12 bytes and five fields of at most 65,537. MQTT 5 adds two
# sets of properties, for which 65,537 bytes each are allowed.
MAX_CONNECT_LENGTH = 12 + 7 * 65537

_PROTOCOLS = {b"MQTT": (4, 5), b"MQIsdp": (3,)}
_BEGIN_OF_5 = b"\0\4MQTT\5"


class Connect(NamedTuple):
    """A decoded CONNECT. `keep_alive` in seconds, 0 for none; `user_name` and `password` None when absent.

    version5: the part that only MQTT 5 has; None for an earlier version.
    has_assigned_id: the broker has assigned the client_id.
    """

    protocol_level: int
    clean_session: bool
    keep_alive: int
    client_id: bytes
    will: Will | None
    user_name: bytes | None
    password: bytes | None
    version5: Connect5 | None = None
    has_assigned_id: bool = False


class UnacceptableProtocol(MalformedPacket):
    """The client uses an unsupported protocol level: answered with return code 1 [MQTT-3.1.2-2]."""


def is_version_5(packet: bytes) -> bool:
    """Return True if the body of a CONNECT is of MQTT 5: its sender understands reason codes."""
    return packet.startswith(_BEGIN_OF_5)


def decode_version5(packet: bytes, most: int) -> tuple[Connect5, int]:
    """Decode the properties of the body of a CONNECT of MQTT 5. Returns them and the index behind them.

    Decoded before the rest, because they limit the answer even if the rest is malformed. most: the limit of their size.
    Raises MalformedPacket.
    """
    return decode_connect_properties(packet, len(_BEGIN_OF_5) + 3, most)  # flags and keep-alive take 3 bytes


def refusal(reason: str, data: bytes) -> str:
    """Return the reason, for the log, why the first data of a connection is refused.

    data: the data, which may be HTTP or TLS instead of a CONNECT. reason: the decoder's.
    """
    if data.startswith((b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ")):
        return f"an HTTP request at a listener for MQTT ({reason})"
    if data.startswith(b"\x16\x03"):
        return f"a TLS handshake at a listener without TLS ({reason})"
    return reason


def decode_connect(packet: bytes, fixed_flags: int, version5: tuple[Connect5, int] | None, most: int) -> Connect:
    """Decode the body of a CONNECT (what follows the remaining length).

    fixed_flags: the low four bits of its first byte. version5: what decode_version5() returns; None if is_version_5()
    is False. most: the limit of the size of the will's properties.

    Raises UnacceptableProtocol, or MalformedPacket for everything else section 3.1 forbids. An empty
    client_id is left to the caller: whether it is allowed depends on the broker.
    """
    name, at = field(packet, 0, "CONNECT cut short")
    if name not in _PROTOCOLS:
        raise MalformedPacket("unknown protocol name")
    if len(packet) < at + 4:
        raise MalformedPacket("CONNECT cut short")
    level, flags = packet[at], packet[at + 1]
    if level not in _PROTOCOLS[name]:
        # mosquitto's bridges set the top bit, and connect again without it.
        raise UnacceptableProtocol(f"unacceptable protocol level {level}")
    # MQTT 3.1 does not use the flags of the fixed header, and some of its clients set them. mosquitto accepts that too.
    if fixed_flags and level > 3:
        raise MalformedPacket("CONNECT flags")  # [MQTT-2.2.2-2]
    keep_alive = packet[at + 2] << 8 | packet[at + 3]
    at += 4
    if flags & 1 and level > 3:
        raise MalformedPacket("CONNECT reserved flag set")  # [MQTT-3.1.2-3]
    will_qos = flags >> 3 & 3
    if flags & 4:
        if will_qos == 3:
            raise MalformedPacket("will QoS 3")  # [MQTT-3.1.2-14]
    elif flags & 0x38:
        raise MalformedPacket("will flags without a will")  # [MQTT-3.1.2-13, -15]
    if flags & 0xC0 == 0x40 and level == 4:
        raise MalformedPacket("password without user name")  # [MQTT-3.1.2-22]
    connect5 = None
    if version5 is not None:
        connect5, at = version5
    client_id, at = _text(packet, at)
    will = None
    if flags & 4:
        delay, properties = 0, NO_PROPERTIES
        if connect5 is not None:
            delay, properties, at = decode_will_properties(packet, at, most)
        will_topic, at = _text(packet, at)
        will_payload, at = field(packet, at, "CONNECT cut short")
        if not is_topic_name(will_topic):
            reason_code = reason_code_of(will_topic, ReasonCode.TOPIC_NAME_INVALID)
            raise MalformedPacket("will topic is not a topic name", reason_code)
        will = Will(will_topic, will_payload, will_qos, bool(flags & 0x20), properties, delay)
    user_name = password = None
    if flags & 0x80:
        user_name, at = _text(packet, at)
    if flags & 0x40:
        password, at = field(packet, at, "CONNECT cut short")
    if at != len(packet):
        raise MalformedPacket("CONNECT longer than its fields")
    return Connect(level, bool(flags & 2), keep_alive, client_id, will, user_name, password, connect5)


def _text(packet: bytes, at: int) -> tuple[bytes, int]:
    text, end = field(packet, at, "CONNECT cut short")
    if not is_utf8(text):
        raise MalformedPacket("invalid UTF-8")  # [MQTT-1.5.3-1]
    return text, end
