"""However the network cuts a client's bytes into reads, the broker gives the same answer."""

import asyncio
import random

import pytest
from broker_wire import Transport, stop_time
from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.clients.connection import Connection
from umqtt_testkit import encoder

# Every packet that a client sends, messages to itself at every QoS, a payload with a two-byte remaining length, and
# bytes after DISCONNECT that must have no effect.
SESSION = b"".join(
    (
        encoder.connect(b"client", clean_session=False, keep_alive=60, will=(b"w", b"will", 1, False)),
        encoder.subscribe(1, (b"a/+", 2), (b"b", 1)),
        encoder.publish(b"a/0", b"zero"),
        encoder.publish(b"b", b"one", 1, 2),
        encoder.acknowledgement(4, 1),
        encoder.publish(b"a/2", b"x" * 150, 2, 3, retain=True),
        encoder.acknowledgement(5, 2),
        encoder.acknowledgement(6, 3),
        encoder.acknowledgement(7, 2),
        encoder.subscribe(4, (b"#", 0)),
        encoder.unsubscribe(5, b"b"),
        encoder.pingreq(),
        encoder.publish(b"b", b"", 1, 6),
        encoder.disconnect(),
        encoder.publish(b"b", b"late"),
    )
)

_PROPERTIES = encoder.properties(topic_alias=3, message_expiry_interval=600, user_property=[(b"name", b"value")])
# The same in MQTT 5, with properties wherever they are allowed.
SESSION_5 = b"".join(
    (
        encoder.connect(
            b"client", clean_session=False, keep_alive=60, will=(b"w", b"will", 1, False),
            properties=encoder.properties(session_expiry_interval=60, receive_maximum=9),
            will_properties=encoder.properties(will_delay_interval=5, content_type=b"text"),
        ),
        encoder.subscribe(1, (b"a/+", 2 | 8), (b"b", 1), properties=encoder.properties(subscription_identifier=300)),
        encoder.publish(b"a/0", b"zero", properties=b"\0"),
        encoder.publish(b"b", b"one", 1, 2, properties=_PROPERTIES),
        encoder.acknowledgement(4, 1, b"\x10"),
        encoder.publish(b"a/2", b"x" * 150, 2, 3, retain=True, properties=_PROPERTIES),
        encoder.acknowledgement(5, 2),
        encoder.acknowledgement(6, 3, b"\0\0"),
        encoder.acknowledgement(7, 2),
        encoder.subscribe(4, (b"#", 0), properties=b"\0"),
        encoder.unsubscribe(5, b"b", properties=b"\0"),
        encoder.pingreq(),
        encoder.publish(b"", b"", 1, 6, properties=encoder.properties(topic_alias=3)),
        encoder.disconnect(b"\0\0"),
        encoder.publish(b"b", b"late", properties=b"\0"),
    )
)  # fmt: skip


class Filling(Transport):
    """Keeps what is written. full_for: the connection to which every write reports that too much is buffered."""

    full_for: Connection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        if self.full_for is not None and not self.full_for.congested:
            self.full_for.pause_writing()


async def replay(cuts: list[int], session: bytes = SESSION) -> tuple[bytes, dict[str, object]]:
    """Feed a session in the pieces between `cuts` to a new broker. Returns its answer and its statistics."""
    broker = Broker(BrokerConfig(port=0))
    async with broker:
        stop_time(broker.loop)
        # The rest of an expiry interval is part of the answer.
        broker.context.expiry.clock = lambda: 1_800_000_000.0
        transport = Filling()
        connection = Connection(broker, broker.config.all_listeners()[0])
        connection.connection_made(transport)
        for start, end in zip([0, *cuts], [*cuts, len(session)], strict=True):
            connection.data_received(session[start:end])
        assert transport.closed
        connection.connection_lost(None)
        return bytes(transport.written), broker.stats.as_dict()


@pytest.mark.parametrize("session", [SESSION, SESSION_5], ids=["3.1.1", "5"])
def test_every_split_of_a_session_gives_the_same_answer(session: bytes) -> None:
    async def sweep() -> None:
        whole = await replay([], session)
        assert whole[0].count(b"x" * 150) == 2  # live, and retained for the second SUBSCRIBE
        assert not whole[1]["malformed"] and whole[1]["messages_in"] == 4
        for cut in range(1, len(session)):
            assert same(await replay([cut], session), whole), cut
        assert same(await replay(list(range(1, len(session))), session), whole)
        for seed in range(40):
            rng = random.Random(seed)
            cuts = sorted(rng.sample(range(1, len(session)), rng.randint(2, 12)))
            assert same(await replay(cuts, session), whole), (seed, cuts)

    asyncio.run(sweep())


def same(one: tuple[bytes, dict[str, object]], other: tuple[bytes, dict[str, object]]) -> bool:
    """Return whether packets and counts are the same.

    Acknowledgements are joined per read, so they may move past messages.
    """
    return sorted(packets(one[0])) == sorted(packets(other[0])) and one[1] == other[1]


def packets(data: bytes) -> list[bytes]:
    """Cut an answer into packets."""
    found = []
    while data:
        end = 2 + data[1] if data[1] < 128 else 3 + (data[1] & 127) + (data[2] << 7)
        found.append(data[:end])
        data = data[end:]
    return found


def test_a_peer_that_becomes_slow_between_an_acknowledgement_and_a_message_still_gets_the_message() -> None:
    async def become_slow() -> bytes:
        async with Broker(BrokerConfig(port=0)) as broker:
            stop_time(broker.loop)
            transport = Filling()
            connection = Connection(broker, broker.config.all_listeners()[0])
            connection.connection_made(transport)
            connection.data_received(encoder.connect(b"client") + encoder.subscribe(1, (b"a", 1)))
            transport.full_for = connection
            transport.written.clear()
            connection.data_received(encoder.publish(b"a", b"first", 1, 7))
            connection.data_received(encoder.publish(b"a", b"second", 1, 8))
            transport.full_for = None
            connection.resume_writing()
            connection.connection_lost(None)
            return bytes(transport.written)

    written = asyncio.run(become_slow())
    assert sorted(packets(written)) == sorted(
        [
            encoder.acknowledgement(4, 7),
            encoder.acknowledgement(4, 8),
            encoder.publish(b"a", b"first", 1, 1),
            encoder.publish(b"a", b"second", 1, 2),
        ]
    )
