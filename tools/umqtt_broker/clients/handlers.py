"""Handlers of rare packets (SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, …) and of topic aliases.

These functions work on a connection with a session. The packets that they append to `acknowledgements` are sent, in
order, when the whole read is processed; if anything was recorded, after its commit.
"""

import contextlib
from collections import deque
from collections.abc import Iterator

from ..core.turns import Job
from ..errors import MalformedPacket
from ..log import log_subscribe, log_unsubscribe
from ..protocol import packets, packets5, properties
from ..protocol.packets import AUTH, CONNECT, DUP, PUBREC, PUBREL, SUBSCRIBE, SUBSCRIPTION_FAILURE, UNSUBSCRIBE
from ..protocol.reason_codes import ReasonCode
from ..protocol.topics import check_topic_name, mounted_filter, split_shared
from ..routing.retained_delivery import RetainedDelivery
from ..routing.router import Router
from ..sessions.ports import Granted
from ..sessions.session import Session
from .acknowledgements import ACKNOWLEDGEMENTS, process_failed_pubrec, process_run
from .ports import PacketClient

# Packets in which MQTT 3.1 sets DUP when they are sent again (its sections 3.6, 3.8 and 3.10).
_MAY_CARRY_DUP = frozenset({PUBREL | DUP, SUBSCRIBE | DUP, UNSUBSCRIBE | DUP})

# Reason codes that a client may send in DISCONNECT (MQTT 5, 3.14.2.1).
_DISCONNECT_REASONS = frozenset({0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)})


def process_other(
    connection: PacketClient, session: Session, first_byte: int, packet: bytes, acknowledgements: list[bytes]
) -> bool:
    """Process a packet that the packet loop does not decode itself.

    Among them are acknowledgements whose remaining length is not encoded in one byte, or that carry DUP (MQTT 3.1).
    Returns False if the packet needs another turn. Raises MalformedPacket.
    """
    if first_byte in _MAY_CARRY_DUP and connection.protocol_level == 3:
        first_byte &= ~DUP
    if first_byte in ACKNOWLEDGEMENTS:
        if len(packet) != 2:
            raise MalformedPacket("PUBACK, PUBREC, PUBREL or PUBCOMP length")
        process_run(session, connection.context.stats, bytes((first_byte, 2)) + packet, 0, acknowledgements)
        return True
    if first_byte == SUBSCRIBE:
        connection.job = _subscribe(connection, session, packet)
    elif first_byte == UNSUBSCRIBE:
        connection.job = _unsubscribe(connection, session, packet)
    elif first_byte == CONNECT:
        raise MalformedPacket("second CONNECT", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.1.0-2]
    elif first_byte == AUTH and connection.protocol_level == 5:
        raise MalformedPacket("AUTH without a method", ReasonCode.PROTOCOL_ERROR)  # [MQTT-4.12.0-7]
    else:
        # A type only a server sends, a reserved type, or wrong flags [MQTT-2.2.2-2].
        raise MalformedPacket("unexpected packet type or flags")
    return connection.do_job(acknowledgements)


def resolve_alias(connection: PacketClient, alias: int, topic_name: bytes) -> bytes:
    """Return the topic name that an alias stands for. If `topic_name` is given, the alias stands for it from now on.

    Raises MalformedPacket for an alias that is too high or unknown.
    """
    if alias > packets5.TOPIC_ALIAS_MAXIMUM:
        raise MalformedPacket("topic alias", ReasonCode.TOPIC_ALIAS_INVALID)  # [MQTT-3.3.2-9]
    aliases = connection.topic_aliases
    if topic_name:
        check_topic_name(topic_name, connection.context.config.max_topic_levels)
        aliases[alias] = topic_name
        return topic_name
    if alias not in aliases:
        raise MalformedPacket("topic alias", ReasonCode.PROTOCOL_ERROR)
    return aliases[alias]


def process_acknowledgement5(
    connection: PacketClient, session: Session, first_byte: int, packet: bytes, acknowledgements: list[bytes]
) -> None:
    """Process an acknowledgement with a reason code, which matters only in a PUBREC: it may refuse the message."""
    most = connection.context.config.max_properties_size
    packet_id, reason_code = packets5.decode_acknowledgement(packet, first_byte >> 4, most)
    if first_byte == PUBREC and reason_code >= ReasonCode.UNSPECIFIED_ERROR:
        process_failed_pubrec(session, connection.stats, packet_id)
    else:
        process_run(session, connection.stats, bytes((first_byte, 2)) + packet_id, 0, acknowledgements)


def process_disconnect5(connection: PacketClient, packet: bytes) -> None:
    """Process the body of a DISCONNECT of MQTT 5. Raises MalformedPacket."""
    reason_code, found = packets5.decode_reason(
        packet, properties.DISCONNECT, connection.context.config.max_properties_size
    )
    if reason_code not in _DISCONNECT_REASONS:
        raise MalformedPacket("reason code", ReasonCode.PROTOCOL_ERROR)
    if properties.SERVER_REFERENCE in found:
        raise MalformedPacket("server reference from a client", ReasonCode.PROTOCOL_ERROR)
    session_expiry = found.get(properties.SESSION_EXPIRY_INTERVAL)
    if session_expiry is not None:
        connection.set_session_expiry(session_expiry)
    if reason_code == ReasonCode.SUCCESS:
        connection.forget_will()
    connection.ending = "" if reason_code == ReasonCode.SUCCESS else f"disconnected with {ReasonCode(reason_code).text}"


def take_packet_id(session: Session, packet_id: int) -> None:
    """Record the packet identifier of an incoming QoS 2 message."""
    if not session.inbound:
        # The set is made on demand: most sessions never need one, and a fleet has many sessions.
        session.inbound = set()
    session.inbound.add(packet_id)
    if session.store is not None:
        session.store.set_inbound(session.number, packet_id, True)


def _unsubscribe(connection: PacketClient, session: Session, packet: bytes) -> Job:
    router, config = connection.router, connection.context.config
    max_levels = config.max_topic_levels
    is_version5 = connection.protocol_level == 5
    decode = packets5.decode_unsubscribe if is_version5 else packets.decode_unsubscribe
    reason_codes = bytearray()

    def steps() -> Iterator[None]:
        if is_version5:
            packets5.check_unsubscribe_properties(packet, config.max_properties_size)
        for _ in decode(packet, max_levels):
            yield
        for topic_filter in decode(packet, max_levels):
            was_there = False
            # ValueError: an invalid shared subscription, which no session can have.
            with contextlib.suppress(ValueError):
                was_there = router.unsubscribe(session, mounted_filter(session.mount, topic_filter))
            reason_codes.append(ReasonCode.SUCCESS if was_there else ReasonCode.NO_SUBSCRIPTION_EXISTED)
            log_unsubscribe(session.client_id, topic_filter)
            yield

    def finish(acknowledgements: list[bytes]) -> None:
        if is_version5:
            acknowledgements.append(packets5.encode_unsuback(packet[:2], bytes(reason_codes)))
        else:
            acknowledgements.append(b"\xb0\x02" + packet[:2])

    return Job(connection.store.recorded, steps(), finish)


def _subscribe(connection: PacketClient, session: Session, packet: bytes) -> Job:
    router, config = connection.router, connection.context.config
    max_levels = config.max_topic_levels
    is_version5 = connection.protocol_level == 5
    decode = packets5.decode_subscribe if is_version5 else packets.decode_subscribe
    return_codes = bytearray()
    granted: Granted = deque()

    def steps() -> Iterator[None]:
        identifier = packets5.decode_subscription_identifier(packet, config.max_properties_size) if is_version5 else 0
        # Decode the whole packet before the first change: a malformed packet must change nothing.
        for _ in decode(packet, max_levels):
            yield
        for asked, options in decode(packet, max_levels):
            most = config.max_shared_subscriptions
            topic_filter, shared, return_code = _grant(router, session, asked, options & 3, most)
            return_codes.append(return_code if is_version5 else min(return_code, SUBSCRIPTION_FAILURE))
            log_subscribe(session.client_id, topic_filter, return_codes[-1])
            if return_code < SUBSCRIPTION_FAILURE:
                is_wanted = _wants_retained(options, topic_filter in session.subscriptions)
                router.subscribe(session, topic_filter, options & ~3 | return_code, identifier)
                if shared is None and router.retained and is_wanted:
                    # A shared subscription gets no retained messages: no member of the group is the right receiver.
                    granted.extend((topic_filter, return_code))
                    if session.retained_delivery is None:
                        session.retained_delivery = RetainedDelivery(session, router, connection.context)
                    session.retained_delivery.expect(topic_filter, len(granted) // 2)
            yield

    def finish(acknowledgements: list[bytes]) -> None:
        if is_version5:
            acknowledgements.append(packets5.encode_suback(packet[:2], bytes(return_codes)))
        else:
            acknowledgements.append(packets.encode_suback(packet[0] << 8 | packet[1], bytes(return_codes)))
        _follow_suback(connection, session, granted, acknowledgements)

    return Job(connection.store.recorded, steps(), finish)


def _wants_retained(options: int, is_subscribed: bool) -> bool:
    """Return True if a SUBSCRIBE with these options gets retained messages [MQTT-3.3.1-9, -10, -11 of MQTT 5]."""
    handling = options & packets5.RETAIN_HANDLING
    return handling == packets5.RETAIN_ALWAYS or (handling == packets5.RETAIN_IF_NEW and not is_subscribed)


def _grant(
    router: Router, session: Session, asked: bytes, qos: int, max_shared: int
) -> tuple[bytes, tuple[bytes, bytes] | None, int]:
    """Decide about a topic filter that a client asks for.

    Returns the filter with its mount point, its group and filter if it is shared (else None), and the granted QoS or
    the reason code of MQTT 5 that denies it.
    """
    try:
        topic_filter = mounted_filter(session.mount, asked)
        shared = split_shared(topic_filter)
    except ValueError:
        # This is no protocol error: answer with a reason code instead of closing the connection.
        return asked, None, ReasonCode.TOPIC_FILTER_INVALID
    # For a shared subscription, the rights are those of the filter behind the group.
    wanted = topic_filter if shared is None else shared[1]
    if shared is not None and len(session.shared) >= max_shared and topic_filter not in session.subscriptions:
        return topic_filter, shared, ReasonCode.QUOTA_EXCEEDED
    if not router.room.may_subscribe(session, topic_filter):
        return topic_filter, shared, ReasonCode.QUOTA_EXCEEDED
    return_code = qos if session.rights is None else session.rights.grant(wanted, qos)
    return topic_filter, shared, ReasonCode.NOT_AUTHORIZED if return_code == SUBSCRIPTION_FAILURE else return_code


def _follow_suback(connection: PacketClient, session: Session, granted: Granted, acknowledgements: list[bytes]) -> None:
    """Send retained messages after the SUBACK: the window stays closed until that is written."""
    session.close_window()
    if granted and session.retained_delivery is not None:
        messages = session.retained_delivery.begin(granted)
        acknowledgements += messages
        connection.count_out(len(messages))
    if session.output is not None and not connection.must_wait():
        connection.write(acknowledgements)
        acknowledgements.clear()
        session.open_window()
    else:
        connection.store.wake(session)
