"""The packets that tell a client of MQTT 5 that it is accepted, refused or disconnected."""

from functools import lru_cache

from ..protocol import properties
from ..protocol.connect import Connect
from ..protocol.packets import (
    BAD_USER_NAME_OR_PASSWORD,
    IDENTIFIER_REJECTED,
    NOT_AUTHORIZED,
    SERVER_UNAVAILABLE,
    UNACCEPTABLE_PROTOCOL_VERSION,
)
from ..protocol.packets5 import TOPIC_ALIAS_MAXIMUM, Connect5, encode_connack, encode_disconnect
from ..protocol.properties import NONE
from ..protocol.reason_codes import ReasonCode
from ..settings.broker import BrokerConfig

# From the return codes of MQTT 3.1.1, which permissions return, to the reason codes of MQTT 5.
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

    keep_alive, session_expiry: the values in force, in seconds.

    Capabilities that the broker has without limits are left out, since they are the defaults of MQTT 5: QoS 2,
    wildcards, shared subscriptions, subscription identifiers, a Receive Maximum of 65,535. The properties that are
    optional for the client are left out if they would make the packet larger than the client accepts.
    """
    version5 = connect.version5
    assert version5 is not None  # it is a client of MQTT 5
    shared: dict[int, int] = {}
    if session_expiry != version5.session_expiry:
        shared[properties.SESSION_EXPIRY_INTERVAL] = session_expiry
    if keep_alive != connect.keep_alive:
        shared[properties.SERVER_KEEP_ALIVE] = keep_alive
    if not config.retain_available:
        shared[properties.RETAIN_AVAILABLE] = 0
    own: dict[int, object] = {}
    if connect.has_assigned_id:
        own[properties.ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id  # [MQTT-3.2.2-16]
    optional = {
        properties.MAXIMUM_PACKET_SIZE: config.max_packet_size,
        properties.TOPIC_ALIAS_MAXIMUM: TOPIC_ALIAS_MAXIMUM,
    }
    if own:
        whole = encode_connack(ReasonCode.SUCCESS, session_present, optional | shared | own)
    else:
        whole = _accepted_alike(session_present, tuple((optional | shared).items()))
    if version5.max_packet_size and len(whole) > version5.max_packet_size:
        return encode_connack(ReasonCode.SUCCESS, session_present, shared | own)
    return whole


@lru_cache(maxsize=64)
def _accepted_alike(session_present: bool, shared: tuple[tuple[int, int], ...]) -> bytes:
    """Return a CONNACK without anything of one client alone; many clients get the same."""
    return encode_connack(ReasonCode.SUCCESS, session_present, dict(shared))


def refused(limits: Connect5, code: int, reason: str = "", server_reference: str = "") -> bytes:
    """Return the CONNACK of a client that is not let in. code: a return code of MQTT 3.1.1, or a reason code.

    limits: the client's. reason: in words, "" for none. server_reference: the other server, with USE_ANOTHER_SERVER.
    """
    code = _REASONS.get(code, code)
    said = _said(limits, reason)
    if code == ReasonCode.USE_ANOTHER_SERVER:
        said = {properties.SERVER_REFERENCE: server_reference.encode()}
    return _fit(limits, encode_connack(code, False, said), encode_connack(code, False, NONE))


def send_away(limits: Connect5, server_reference: str) -> bytes:
    """Return the DISCONNECT of a client that is to use another server."""
    code = ReasonCode.USE_ANOTHER_SERVER
    whole = encode_disconnect(code, {properties.SERVER_REFERENCE: server_reference.encode()})
    return _fit(limits, whole, encode_disconnect(code))


def disconnect(limits: Connect5, reason_code: int, reason: str) -> bytes:
    """Return the DISCONNECT of a client that breaks the protocol."""
    return _fit(limits, encode_disconnect(reason_code, _said(limits, reason)), encode_disconnect(reason_code))


def _fit(limits: Connect5, whole: bytes, bare: bytes) -> bytes:
    """Return a packet, without its optional properties if it is too large [MQTT-3.2.2-19, MQTT-3.14.2-3]."""
    return bare if limits.max_packet_size and len(whole) > limits.max_packet_size else whole


def _said(limits: Connect5, reason: str) -> properties.Properties:
    # A client that asks for no reason strings gets none, though [MQTT-3.1.2-29] allows them in these two packets.
    return {properties.REASON_STRING: reason.encode()} if reason and limits.wants_reasons else NONE
