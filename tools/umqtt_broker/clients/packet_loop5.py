"""The packet loop for clients of MQTT 5, like packet_loop for earlier versions; chosen once per connection.

The lines that find the packets in the received data are the same in both modules, which a test checks. A shared
generator of packets would add 0.05 µs to each packet; a message at QoS 0 takes about 1.5 µs.
"""

from functools import partial
from typing import Final

from ..errors import MalformedPacket
from ..protocol import packets5, properties
from ..protocol.messages import NO_PROPERTIES
from ..protocol.packets import AUTH, DISCONNECT, PINGREQ, PINGRESP, PUBACK, PUBLISH, PUBREC
from ..protocol.reason_codes import ReasonCode
from ..protocol.topics import check_topic_name
from ..sessions.session import Session
from .acknowledgements import ACKNOWLEDGEMENTS, process_failed_pubrec, process_run
from .framing import FIRST_STEP, LONGEST_STEP, remaining_length
from .handlers import process_other, take_packet_id
from .ports import PacketClient

# First two bytes of the answers to a message that is accepted; the packet identifier follows.
_PUBACK: Final = bytes((PUBACK, 2))
_PUBREC: Final = bytes((PUBREC, 2))

# Reason codes that a client may send in DISCONNECT (3.14.2.1).
_DISCONNECT_REASONS: Final = frozenset({0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)})


def process(connection: PacketClient, data: bytes, acknowledgements: list[bytes]) -> bool:
    """Process the packets in `data`: see packet_loop.process()."""
    session = connection.session
    assert session is not None  # the client has sent CONNECT
    publish, router, aliases = connection.publish, connection.router, connection.topic_aliases
    max_packet_size = connection.context.config.max_packet_size
    # Flags that no message may have: the retain flag if retained messages are not available.
    refused_flag = 0 if connection.context.config.retain_available else 1
    append = acknowledgements.append
    end = len(data)
    at = length = body = 0
    messages = 0
    router.source = session
    step = FIRST_STEP
    # The index where the clock is read next, or where less than two bytes are left.
    look = min(step, end - 1)
    try:
        if connection.job is not None and not connection.do_job(acknowledgements):
            connection.wait_for_turn(data)
            return True
        while True:
            if at >= look:
                if end - at < 2:
                    break
                if at and not connection.has_time():
                    connection.wait_for_turn(data[at:])
                    return True
                if step < LONGEST_STEP:
                    step += step
                look = min(at + step, end - 1)
            first_byte = data[at]
            length = data[at + 1]
            body = at + 2
            if length > 127:
                length, body = remaining_length(data, at, end)
                if not body:
                    break
            if length > max_packet_size:
                raise MalformedPacket("packet too large", ReasonCode.PACKET_TOO_LARGE)
            packet_end = body + length
            if packet_end > end:
                break
            if first_byte & 0xF0 == PUBLISH:
                messages += 1
                qos = first_byte & 6
                name_end = body + 2
                if name_end > packet_end:
                    raise MalformedPacket("PUBLISH cut short")
                name_end += data[body] << 8 | data[body + 1]
                properties_at = name_end + 2 if qos else name_end
                if properties_at >= packet_end:
                    raise MalformedPacket("PUBLISH cut short")
                received = None
                if first_byte & 9:
                    if first_byte & refused_flag:
                        raise MalformedPacket("retain flag", ReasonCode.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-14]
                    if first_byte & 8 and not qos:
                        raise MalformedPacket("DUP with QoS 0")  # [MQTT-3.3.1-2]
                elif data[body - 1] and not data[properties_at]:  # as in packet_loop
                    received = data[at : name_end if qos else packet_end]
                topic_name = data[body + 2 : name_end]
                payload_at = properties_at + 1
                send = publish
                if data[properties_at]:
                    alias, with_it, payload_at = packets5.decode_publish_properties(
                        data, properties_at, packet_end, connection.context.config.max_properties_size
                    )
                    if alias:
                        topic_name = _resolve(aliases, alias, topic_name, connection)
                    if with_it is not NO_PROPERTIES:
                        send = partial(router.publish_with, with_it, publish)
                payload = data[payload_at:packet_end]
                if qos == 0:
                    send(topic_name, payload, 0, first_byte & 1, received)
                else:
                    packet_id = data[name_end:properties_at]
                    if packet_id == b"\0\0":
                        raise MalformedPacket("packet identifier 0", ReasonCode.PROTOCOL_ERROR)  # [MQTT-2.2.1-3]
                    if qos == 2:
                        reason_code = send(topic_name, payload, 1, first_byte & 1, received)
                        append(
                            packets5.encode_acknowledgement(PUBACK, packet_id, reason_code)
                            if reason_code
                            else _PUBACK + packet_id
                        )
                    elif qos == 6:
                        raise MalformedPacket("PUBLISH QoS 3")  # [MQTT-3.3.1-4]
                    else:
                        reason_code = 0
                        number = packet_id[0] << 8 | packet_id[1]
                        if number in session.inbound:
                            check_topic_name(topic_name, connection.context.config.max_topic_levels)
                        else:
                            reason_code = send(topic_name, payload, 2, first_byte & 1, received)
                            if not reason_code:
                                # A PUBREC that refuses the message frees the identifier.
                                take_packet_id(session, number)
                        append(
                            packets5.encode_acknowledgement(PUBREC, packet_id, reason_code)
                            if reason_code
                            else _PUBREC + packet_id
                        )
            elif length == 2 and first_byte in ACKNOWLEDGEMENTS and body == at + 2:
                packet_end = process_run(session, connection.stats, data, at, acknowledgements)
            elif first_byte == PINGREQ:
                if length:
                    raise MalformedPacket("PINGREQ length")
                append(PINGRESP)
            elif first_byte == DISCONNECT:
                _on_disconnect(connection, session, data[body:packet_end])
                return False
            elif first_byte in ACKNOWLEDGEMENTS:
                _on_acknowledgement(connection, session, first_byte, data[body:packet_end], acknowledgements)
            elif first_byte == AUTH:
                if not connection.on_auth(data[body:packet_end], acknowledgements):
                    return False
            elif not process_other(connection, session, first_byte, data[body:packet_end], acknowledgements):
                connection.wait_for_turn(data[packet_end:])
                return True
            at = packet_end
    finally:
        router.source = None
        if messages:
            connection.count_in(messages)
    if at < end:
        # How many bytes there must be before it is worth parsing again.
        needed = length + (body - at) if end - at >= 2 and body else end - at + 1
        connection.keep_rest(data[at:] if at else data, needed)
    return True


def _resolve(aliases: dict[int, bytes], alias: int, topic_name: bytes, connection: PacketClient) -> bytes:
    """Return the topic name that an alias stands for. If `topic_name` is given, the alias stands for it from now on.

    Raises MalformedPacket for an alias that is too high or unknown.
    """
    if alias > packets5.TOPIC_ALIAS_MAXIMUM:
        raise MalformedPacket("topic alias", ReasonCode.TOPIC_ALIAS_INVALID)  # [MQTT-3.3.2-9]
    if topic_name:
        check_topic_name(topic_name, connection.context.config.max_topic_levels)
        aliases[alias] = topic_name
        return topic_name
    if alias not in aliases:
        raise MalformedPacket("topic alias", ReasonCode.PROTOCOL_ERROR)
    return aliases[alias]


def _on_acknowledgement(
    connection: PacketClient, session: Session, first_byte: int, packet: bytes, acknowledgements: list[bytes]
) -> None:
    """Process an acknowledgement with a reason code, which matters only in a PUBREC: it may refuse the message."""
    most = connection.context.config.max_properties_size
    packet_id, reason_code = packets5.decode_acknowledgement(packet, first_byte >> 4, most)
    if first_byte == PUBREC and reason_code >= ReasonCode.UNSPECIFIED_ERROR:
        process_failed_pubrec(session, connection.stats, packet_id)
    else:
        process_run(session, connection.stats, bytes((first_byte, 2)) + packet_id, 0, acknowledgements)


def _on_disconnect(connection: PacketClient, session: Session, packet: bytes) -> None:
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
