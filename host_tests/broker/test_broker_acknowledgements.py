"""Acknowledgements are processed many at once: in whatever pieces they come, the effect is as if each came alone."""

import asyncio
import random

import pytest
from broker_wire import Transport, stop_time
from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.clients.connection import Connection
from umqtt_testkit import encoder

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
# Messages of the client to itself, half at QoS 1 and half at QoS 2: packet identifiers 1 to 12 both ways.
MESSAGES = 12
AT_QOS_1, AT_QOS_2, RELEASED = "QoS 1", "QoS 2", "released"


class Reference:
    """MQTT's rules for acknowledgements, one at a time. A client that broke the protocol is ignored from then on.

    not_found: the part of the answer after an unknown packet identifier.
    """

    def __init__(self, in_flight: dict[int, str], not_found: bytes) -> None:
        self.not_found = not_found
        self.in_flight = dict(in_flight)
        self.inbound = {packet_id for packet_id, state in in_flight.items() if state == AT_QOS_2}
        self.answer = b""
        self.unknown = 0
        self.is_broken = False

    def take(self, kind: int, packet_id: int) -> None:
        if self.is_broken:
            return
        state = self.in_flight.get(packet_id)
        if kind == PUBREL:
            self.answer += encoder.acknowledgement(7, packet_id, b"" if packet_id in self.inbound else self.not_found)
            self.inbound.discard(packet_id)
            return
        fitting = {PUBACK: (AT_QOS_1,), PUBREC: (AT_QOS_2, RELEASED), PUBCOMP: (RELEASED,)}[kind]
        if state is not None and state not in fitting:
            self.is_broken = True
            return
        if state is None:
            self.unknown += 1
        elif state != RELEASED or kind == PUBCOMP:
            del self.in_flight[packet_id]
            if kind == PUBREC:
                self.in_flight[packet_id] = RELEASED  # after those released before it
        if kind == PUBREC:
            self.answer += encoder.acknowledgement(6, packet_id, self.not_found if state is None else b"")


def acknowledgements(rng: random.Random) -> list[tuple[int, int]]:
    """Return runs of one kind; in most stories they mostly fit, so that the stories are long."""
    found: list[tuple[int, int]] = []
    is_careful = rng.random() < 0.7
    for _ in range(rng.randint(1, 12)):
        kind = rng.choice((PUBACK, PUBREC, PUBREL, PUBCOMP))
        for _ in range(rng.randint(1, 8)):
            packet_id = rng.randint(1, MESSAGES + 2)
            if is_careful and kind in (PUBACK, PUBREC) and packet_id <= MESSAGES:
                packet_id = packet_id - packet_id % 2 + (kind == PUBREC) or 2
            found.append((kind, packet_id))
    return found


def encoded(rng: random.Random, kind: int, packet_id: int) -> bytes:
    """Encode an acknowledgement; some have a remaining length of two bytes, which is unusual but allowed."""
    length = b"\x82\x00" if rng.random() < 0.05 else b"\x02"
    return bytes((kind,)) + length + packet_id.to_bytes(2, "big")


def states(connection: Connection) -> dict[int, str]:
    """Return the messages in flight, in order, with their states."""
    assert connection.session is not None
    return {
        packet_id: RELEASED if entry[3] is None else AT_QOS_1 if entry[2] == 1 else AT_QOS_2
        for packet_id, entry in connection.session.in_flight.items()
    }


def tell(broker: Broker, seed: int, level: int) -> None:
    transport = Transport()
    connection = Connection(broker, broker.config.all_listeners()[0])
    connection.connection_made(transport)
    try:
        check(broker, connection, transport, random.Random(seed), level)
    finally:
        connection.connection_lost(None)


def check(broker: Broker, connection: Connection, transport: Transport, rng: random.Random, level: int) -> None:
    none = b"\0" if level == 5 else b""
    connection.data_received(encoder.connect(b"client", properties=none or None))
    connection.data_received(encoder.subscribe(1, (b"a", 2), properties=none))
    for packet_id in range(1, MESSAGES + 1):
        connection.data_received(encoder.publish(b"a", b"x", 1 + packet_id % 2, packet_id, properties=none))
    session = connection.session
    assert session is not None
    reference = Reference(states(connection), b"\x92" if level == 5 else b"")
    assert list(reference.in_flight) == list(range(1, MESSAGES + 1)) and session.inbound == reference.inbound

    transport.written.clear()
    unknown = broker.stats.unknown_acknowledgements
    sent = acknowledgements(rng)
    stream = b"".join(encoded(rng, *one) for one in sent)
    cuts = sorted(rng.sample(range(1, len(stream)), min(rng.choice((0, 1, 5)), len(stream) - 1)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if not transport.closed:
            connection.data_received(stream[start:end])
    for one in sent:
        reference.take(*one)
    if level == 5 and reference.is_broken:
        reference.answer += encoder.disconnect(
            b"\x81" + encoder.properties(reason_string=connection.ending[11:].encode())
        )
    assert bytes(transport.written) == reference.answer
    assert transport.closed == reference.is_broken
    assert broker.stats.unknown_acknowledgements - unknown == reference.unknown
    if not reference.is_broken:
        assert list(states(connection).items()) == list(reference.in_flight.items())
        assert session.inbound == reference.inbound


@pytest.mark.parametrize("level", [4, 5])
def test_runs_are_as_if_each_had_come_alone(level: int) -> None:
    """Planted: an unknown PUBREL is answered with success; 0x92 for all identifiers of the run."""

    async def sweep() -> None:
        async with Broker(BrokerConfig(port=0, sys_interval=0)) as broker:
            stop_time(broker.loop)
            for seed in range(1000):
                try:
                    tell(broker, seed, level)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}") from error

    asyncio.run(sweep())
