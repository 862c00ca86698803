"""The packet loop: every whole packet of one read, in one function.

PUBLISH is decoded in place, `acknowledgements` processes runs of acknowledgements, `handlers` the rare packets.
"""

from ..errors import MalformedPacket
from ..protocol.connect import MAX_CONNECT_LENGTH
from ..protocol.packets import CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBLISH
from . import authentication, packet_loop5
from .acknowledgements import ACKNOWLEDGEMENTS, process_run
from .framing import FIRST_STEP, LONGEST_STEP, remaining_length
from .handlers import process_other, process_publish_qos2
from .ports import PacketClient


def process(connection: PacketClient, data: bytes, acknowledgements: list[bytes]) -> bool:
    """Process the packets in `data`. Returns False if the connection must be closed.

    An incomplete packet at the end is kept by the connection. If the connection's time is over, the rest of `data`
    waits for its next turn. Acknowledgements are collected in `acknowledgements`, messages in the sessions that get
    them. Raises MalformedPacket at the first packet that breaks the protocol.
    """
    session = connection.session
    publish = connection.publish
    max_packet_size = connection.context.config.max_packet_size
    append = acknowledgements.append
    end = len(data)
    at = length = body = 0
    messages = 0
    # packet_loop5 repeats the lines from here to the length of a packet, and the last lines; its docstring says why.
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
            if session is None:
                if first_byte & 0xF0 != CONNECT:
                    raise MalformedPacket("packet before CONNECT")  # [MQTT-3.1.0-1]
                if length > MAX_CONNECT_LENGTH:
                    raise MalformedPacket("packet too large")
            elif length > max_packet_size:
                raise MalformedPacket("packet too large")
            packet_end = body + length
            if packet_end > end:
                break
            if session is None:
                session = connection.on_connect(data[body:packet_end], first_byte & 15)
                if connection.backpressure is not None:
                    connection.keep_rest(data[packet_end:], 0)
                    return True
                if session is None:
                    return connection.is_authenticating and authentication.process(
                        connection, data[packet_end:], acknowledgements
                    )
                if connection.protocol_level == 5:
                    return packet_loop5.process(connection, data[packet_end:], acknowledgements)
                publish = connection.publish
            elif first_byte & 0xF0 == PUBLISH:
                messages += 1
                payload = body + 2
                if payload > packet_end:
                    raise MalformedPacket("PUBLISH cut short")
                payload += data[body] << 8 | data[body + 1]
                topic_name = data[body + 2 : payload]
                qos = first_byte & 6
                received = None
                if first_byte & 9:
                    if first_byte & 8 and not qos:
                        raise MalformedPacket("DUP with QoS 0")  # [MQTT-3.3.1-2]
                elif data[body - 1]:  # a last byte 0 of the length adds nothing to it
                    received = data[at : payload if qos else packet_end]
                if qos == 0:
                    if payload > packet_end:
                        raise MalformedPacket("PUBLISH cut short")
                    publish(topic_name, data[payload:packet_end], 0, first_byte & 1, received)
                else:
                    packet_id = data[payload : payload + 2]
                    payload += 2
                    if payload > packet_end:
                        raise MalformedPacket("PUBLISH cut short")
                    if packet_id == b"\0\0":
                        raise MalformedPacket("packet identifier 0")  # [MQTT-2.3.1-1]
                    if qos == 2:
                        publish(topic_name, data[payload:packet_end], 1, first_byte & 1, received)
                        append(b"\x40\x02" + packet_id)
                    elif qos == 4:
                        process_publish_qos2(
                            connection,
                            session,
                            packet_id,
                            topic_name,
                            data[payload:packet_end],
                            first_byte & 1,
                            received,
                        )
                        append(b"\x50\x02" + packet_id)
                    else:
                        raise MalformedPacket("PUBLISH QoS 3")  # [MQTT-3.3.1-4]
            elif length == 2 and first_byte in ACKNOWLEDGEMENTS and body == at + 2:
                packet_end = process_run(session, connection.stats, data, at, acknowledgements)
            elif first_byte == PINGREQ:
                if length:
                    raise MalformedPacket("PINGREQ length")
                append(PINGRESP)
            elif first_byte == DISCONNECT:
                if length:
                    raise MalformedPacket("DISCONNECT length")
                connection.forget_will()
                connection.ending = ""
                return False
            else:
                if not process_other(connection, session, first_byte, data[body:packet_end], acknowledgements):
                    connection.wait_for_turn(data[packet_end:])
                    return True
            at = packet_end
    finally:
        if messages:
            connection.count_in(messages)
    if at < end:
        # How many bytes there must be before it is worth parsing again.
        needed = length + (body - at) if end - at >= 2 and body else end - at + 1
        connection.keep_rest(data[at:] if at else data, needed)
    return True
