"""What the packets do that are not worth a place in the packet loop, and incoming messages at QoS 2.

Functions of a connection with a session. What they append to `acknowledgements` leaves, in order, when the read is
processed; after the commit if they recorded anything.
"""

import contextlib
from typing import TYPE_CHECKING

from .acknowledgements import ACKNOWLEDGEMENTS, process_run
from .errors import MalformedPacket
from .greeting import Greeting
from .log import log_subscribe, log_unsubscribe
from .origins import ORIGIN
from .packets import (
    CONNECT,
    DUP,
    PUBREL,
    SUBSCRIBE,
    SUBSCRIPTION_FAILURE,
    UNSUBSCRIBE,
    decode_subscribe,
    decode_unsubscribe,
    encode_suback,
)
from .session import Session
from .topics import check_topic_name, mounted_filter, split_shared

# MQTT 3.1 marks these with DUP when they are sent again (its sections 3.6, 3.8 and 3.10).
_MAY_CARRY_DUP = frozenset({PUBREL | DUP, SUBSCRIBE | DUP, UNSUBSCRIBE | DUP})

if TYPE_CHECKING:
    from .connection import Connection


def process_other(
    connection: "Connection", session: Session, first_byte: int, packet: bytes, acknowledgements: list[bytes]
) -> None:
    """Process the packets that are not worth a place in the loop; acknowledgements only if oddly encoded."""
    if first_byte in _MAY_CARRY_DUP and connection.protocol_level == 3:
        first_byte &= ~DUP
    if first_byte in ACKNOWLEDGEMENTS:
        if len(packet) != 2:
            raise MalformedPacket("PUBACK, PUBREC, PUBREL or PUBCOMP length")
        process_run(connection, session, bytes((first_byte, 2)) + packet, 0, acknowledgements)
    elif first_byte == SUBSCRIBE:
        _on_subscribe(connection, session, packet, acknowledgements)
    elif first_byte == UNSUBSCRIBE:
        _, topic_filters = decode_unsubscribe(packet, connection.broker.config.max_topic_levels)
        for topic_filter in topic_filters:
            # What is no shared subscription nobody can have: there is nothing to do.
            with contextlib.suppress(ValueError):
                connection.broker.router.unsubscribe(session, mounted_filter(session.mount, topic_filter))
            log_unsubscribe(session.client_id, topic_filter)
        acknowledgements.append(b"\xb0\x02" + packet[:2])
    elif first_byte == CONNECT:
        raise MalformedPacket("second CONNECT")  # [MQTT-3.1.0-2]
    else:
        # A type only a server sends, a reserved type, or wrong flags [MQTT-2.2.2-2].
        raise MalformedPacket("unexpected packet type or flags")


def process_publish_qos2(
    connection: "Connection", session: Session, packet_id_bytes: bytes, topic_name: bytes, payload: bytes, retain: int
) -> None:
    """Route a QoS 2 message once for each use of its packet identifier (4.3.3, method B)."""
    packet_id = packet_id_bytes[0] << 8 | packet_id_bytes[1]
    inbound = session.inbound
    if packet_id in inbound:
        # Its PUBREC cannot leave before the first copy is safe: the acknowledgements of a connection leave in order,
        # and the CONNACK of a new one waited for everything recorded before it.
        check_topic_name(topic_name, connection.broker.config.max_topic_levels)
        return
    connection.publish(topic_name, payload, 2, retain)
    if not inbound:
        # Most sessions never need one, and a fleet has many sessions.
        session.inbound = inbound = set()
    inbound.add(packet_id)
    if session.store is not None:
        session.store.set_inbound(session.number, packet_id, True)


def _on_subscribe(connection: "Connection", session: Session, packet: bytes, acknowledgements: list[bytes]) -> None:
    broker = connection.broker
    router = broker.router
    packet_id, requests = decode_subscribe(packet, broker.config.max_topic_levels)
    return_codes = bytearray()
    granted: list[tuple[bytes, int]] = []
    for asked, qos in requests:
        try:
            topic_filter = mounted_filter(session.mount, asked)
            shared = split_shared(topic_filter)
        except ValueError:
            # Such a client is not broken, it is new to shared subscriptions: it is told, not closed.
            topic_filter, shared, return_code = asked, None, SUBSCRIPTION_FAILURE
        else:
            # What a group shares is read like anything else.
            wanted = topic_filter if shared is None else shared[1]
            if wanted.startswith(ORIGIN):
                # What the broker itself remembers of a bridge.
                return_code = SUBSCRIPTION_FAILURE
            else:
                return_code = qos if session.rights is None else session.rights.grant(wanted, qos)
        return_codes.append(return_code)
        log_subscribe(session.client_id, topic_filter, return_code)
        if return_code != SUBSCRIPTION_FAILURE:
            router.subscribe(session, topic_filter, return_code)
            if shared is None:
                # Retained messages are for subscriptions that are not shared: who of a group should get them?
                granted.append((topic_filter, return_code))
    acknowledgements.append(encode_suback(packet_id, bytes(return_codes)))
    # Retained messages follow the SUBACK: the window stays shut until it has left.
    session.close_window()
    if granted and router.retained:
        if session.greeting is None:
            session.greeting = Greeting(session, router, broker.around, broker.loop)
        packets = session.greeting.begin(granted)
        acknowledgements += packets
        connection.count_out(len(packets))
    if session.out is not None and not connection.must_wait():
        connection.write(acknowledgements)
        acknowledgements.clear()
        session.open_window()
    else:
        broker.store.wake(session)
