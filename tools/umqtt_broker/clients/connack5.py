"""What a client of MQTT 5 is told when it connects, is refused or is cut off."""

from ..protocol import properties
from ..protocol.connect import Connect
from ..protocol.packets import (
    BAD_USER_NAME_OR_PASSWORD,
    IDENTIFIER_REJECTED,
    NOT_AUTHORIZED,
    SERVER_UNAVAILABLE,
    UNACCEPTABLE_PROTOCOL_VERSION,
)
from ..protocol.packets5 import encode_connack, encode_disconnect
from ..protocol.properties import NONE
from ..protocol.reason_codes import ReasonCode
from ..sessions.ports import ClientConnection
from ..settings.broker import BrokerConfig
from .packet_loop5 import TOPIC_ALIAS_MAXIMUM

# What permissions answer with, the return codes of MQTT 3.1.1, in those of 5.
_REASONS = {
    UNACCEPTABLE_PROTOCOL_VERSION: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    IDENTIFIER_REJECTED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    SERVER_UNAVAILABLE: ReasonCode.SERVER_UNAVAILABLE,
    BAD_USER_NAME_OR_PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
}


def accepted(
    connect: Connect, session_present: bool, keep_alive: int, session_expiry: int, config: BrokerConfig
) -> bytes:
    """Return the CONNACK of a client that is let in.

    keep_alive, session_expiry: seconds, as they count. What the broker does without limits goes without saying: QoS 2,
    wildcards, shared subscriptions and their identifiers, a Receive Maximum of 65,535.
    """
    version5 = connect.version5
    assert version5 is not None  # it is a client of MQTT 5
    said: dict[int, object] = {
        properties.MAXIMUM_PACKET_SIZE: config.max_packet_size,
        properties.TOPIC_ALIAS_MAXIMUM: TOPIC_ALIAS_MAXIMUM,
    }
    if session_expiry != version5.session_expiry:
        said[properties.SESSION_EXPIRY_INTERVAL] = session_expiry
    if connect.has_assigned_id:
        said[properties.ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id  # [MQTT-3.2.2-16]
    if keep_alive != connect.keep_alive:
        said[properties.SERVER_KEEP_ALIVE] = keep_alive
    if not config.retain_available:
        said[properties.RETAIN_AVAILABLE] = 0
    return encode_connack(ReasonCode.SUCCESS, session_present, said)


def refused(code: int, reason: str = "") -> bytes:
    """Return the CONNACK of a client that is not let in. code: a return code of MQTT 3.1.1, or a reason code."""
    return encode_connack(_REASONS.get(code, code), False, _said(reason))


def disconnect(connection: ClientConnection, reason_code: int, reason: str) -> bytes:
    """Return the DISCONNECT of a client that breaks the protocol."""
    packet = encode_disconnect(reason_code, _said(reason))
    # [MQTT-3.14.2-3] the reason string is left out where it would not fit.
    if connection.max_packet_size and len(packet) > connection.max_packet_size:
        return encode_disconnect(reason_code)
    return packet


def _said(reason: str) -> properties.Properties:
    return {properties.REASON_STRING: reason.encode()} if reason else NONE
