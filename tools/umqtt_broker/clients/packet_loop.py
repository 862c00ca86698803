"""The packet loop: every whole packet of one read, in one function, for clients of every version.

PUBLISH is decoded in place, `acknowledgements` processes runs of acknowledgements, `handlers` the rare packets.
"""

from functools import partial
from typing import Final

from ..errors import MalformedPacket
from ..protocol import packets5
from ..protocol.connect import MAX_CONNECT_LENGTH
from ..protocol.messages import NO_PROPERTIES
from ..protocol.packets import CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBACK, PUBLISH, PUBREC
from ..protocol.reason_codes import ReasonCode
from ..protocol.topics import check_topic_name
from .acknowledgements import ACKNOWLEDGEMENTS, process_run
from .framing import FIRST_STEP, LONGEST_STEP, remaining_length
from .handlers import process_acknowledgement5, process_disconnect5, process_other, resolve_alias, take_packet_id
from .ports import PacketClient

# First two bytes of the answers to a message that is accepted; the packet identifier follows.
_PUBACK: Final = bytes((PUBACK, 2))
_PUBREC: Final = bytes((PUBREC, 2))


def process(connection: PacketClient, data: bytes, acknowledgements: list[bytes]) -> bool:
    """Process the packets in `data`. Returns False if the connection must be closed.

    An incomplete packet at the end is kept by the connection. If the connection's time is over, the rest of `data`
    waits for its next turn. Acknowledgements are collected in `acknowledgements`, messages in the sessions that get
    them. Raises MalformedPacket at the first packet that breaks the protocol.
    """
    session = connection.session
    if session is None:
        return _process_connect(connection, data, acknowledgements)
    router = connection.router
    config = connection.context.config
    send = publish = connection.publish
    max_packet_size = config.max_packet_size
    is_version5 = connection.protocol_level == 5
    router.publisher = session
    # Flags that no message may have: the retain flag if retained messages are not available (MQTT 5).
    refused_flag = 0
    if is_version5:
        router.source = session
        refused_flag = 0 if config.retain_available else 1
    append = acknowledgements.append
    end = len(data)
    at = length = body = 0
    messages = 0
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
                payload_at = name_end + 2 if qos else name_end
                if payload_at > packet_end:
                    raise MalformedPacket("PUBLISH cut short")
                topic_name = data[body + 2 : name_end]
                received = None
                if first_byte & 9:
                    if first_byte & refused_flag:
                        raise MalformedPacket("retain flag", ReasonCode.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-14]
                    if first_byte & 8 and not qos:
                        raise MalformedPacket("DUP with QoS 0")  # [MQTT-3.3.1-2]
                elif data[body - 1]:  # a last byte 0 of the length adds nothing to it
                    received = data[at : name_end if qos else packet_end]
                if is_version5:
                    if payload_at == packet_end:
                        raise MalformedPacket("PUBLISH cut short")
                    send = publish
                    if data[payload_at]:
                        received = None
                        alias, with_it, payload_at = packets5.decode_publish_properties(
                            data, payload_at, packet_end, config.max_properties_size
                        )
                        if alias:
                            topic_name = resolve_alias(connection, alias, topic_name)
                        if with_it is not NO_PROPERTIES:
                            send = partial(router.publish_with, with_it, publish)
                    else:
                        payload_at += 1
                if qos == 0:
                    send(topic_name, data[payload_at:packet_end], 0, first_byte & 1, received)
                else:
                    packet_id = data[name_end : name_end + 2]
                    if packet_id == b"\0\0":
                        raise MalformedPacket("packet identifier 0", ReasonCode.PROTOCOL_ERROR)  # [MQTT-2.2.1-3]
                    if qos == 2:
                        reason_code = send(topic_name, data[payload_at:packet_end], 1, first_byte & 1, received)
                        if reason_code and is_version5:
                            append(packets5.encode_acknowledgement(PUBACK, packet_id, reason_code))
                        else:
                            append(_PUBACK + packet_id)
                    elif qos == 6:
                        raise MalformedPacket("PUBLISH QoS 3")  # [MQTT-3.3.1-4]
                    else:
                        # Routed once for each use of its packet identifier (4.3.3, method B).
                        reason_code = 0
                        number = packet_id[0] << 8 | packet_id[1]
                        if number in session.inbound:
                            # No need to wait: its PUBREC cannot be sent before the first copy is safe. The
                            # acknowledgements of a connection are sent in order, and the CONNACK of a new connection
                            # waited for everything recorded before it.
                            check_topic_name(topic_name, config.max_topic_levels)
                        else:
                            reason_code = send(topic_name, data[payload_at:packet_end], 2, first_byte & 1, received)
                            if not is_version5:
                                reason_code = 0
                            if not reason_code:  # a PUBREC that refuses the message frees the identifier
                                take_packet_id(session, number)
                        if reason_code:
                            append(packets5.encode_acknowledgement(PUBREC, packet_id, reason_code))
                        else:
                            append(_PUBREC + packet_id)
            elif length == 2 and first_byte in ACKNOWLEDGEMENTS and body == at + 2:
                packet_end = process_run(session, connection.stats, data, at, acknowledgements)
            elif first_byte == PINGREQ:
                if length:
                    raise MalformedPacket("PINGREQ length")
                append(PINGRESP)
            elif first_byte == DISCONNECT:
                if is_version5:
                    process_disconnect5(connection, data[body:packet_end])
                    return False
                if length:
                    raise MalformedPacket("DISCONNECT length")
                connection.forget_will()
                connection.ending = ""
                return False
            elif is_version5 and first_byte in ACKNOWLEDGEMENTS:
                process_acknowledgement5(connection, session, first_byte, data[body:packet_end], acknowledgements)
            elif not process_other(connection, session, first_byte, data[body:packet_end], acknowledgements):
                connection.wait_for_turn(data[packet_end:])
                return True
            at = packet_end
    finally:
        router.publisher = None
        if is_version5:
            router.source = None
        if messages:
            connection.count_in(messages)
    if at < end:
        # How many bytes there must be before it is worth parsing again.
        needed = length + (body - at) if end - at >= 2 and body else end - at + 1
        connection.keep_rest(data[at:] if at else data, needed)
    return True


def _process_connect(connection: PacketClient, data: bytes, acknowledgements: list[bytes]) -> bool:
    """Process CONNECT, which must be the first packet, and what follows it. See process()."""
    end = len(data)
    length, body = (data[1], 2) if end > 1 else (0, 0)
    if length > 127:
        length, body = remaining_length(data, 0, end)
    if body and data[0] & 0xF0 != CONNECT:
        raise MalformedPacket("packet before CONNECT")  # [MQTT-3.1.0-1]
    if length > MAX_CONNECT_LENGTH:
        raise MalformedPacket("packet too large")
    packet_end = body + length
    if not body or packet_end > end:
        connection.keep_rest(data, packet_end if body else end + 1)
        return True
    session = connection.on_connect(data[body:packet_end], data[0] & 15)
    if connection.backpressure is not None:
        connection.keep_rest(data[packet_end:], 0)
        return True
    return session is not None and process(connection, data[packet_end:], acknowledgements)
