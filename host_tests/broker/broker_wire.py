"""The broker fed with bytes in memory, for tests with many inputs: no socket, and every law checked after each."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_oracle import CLOSED, OPEN, is_version5, verdict
from broker_peer import decode
from peer5 import decode5
from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.clients.connection import Connection
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBREC, PUBREL

# First bytes that a server may send; PUBLISH is checked separately.
_FROM_SERVER = (0x20, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0)

# Correct client sessions, from which fuzzing begins.
SESSIONS = [
    encoder.connect(b"client", clean_session=False, keep_alive=60, will=(b"w", b"will", 1, True))
    + encoder.subscribe(1, (b"a/+", 2), (b"b", 1))
    + encoder.publish(b"a/b", b"", 2, 3, retain=True)
    + encoder.acknowledgement(PUBREL, 3)
    + encoder.acknowledgement(PUBREC, 1)
    + encoder.acknowledgement(PUBCOMP, 1)
    + encoder.pingreq()
    + encoder.disconnect(),
    encoder.connect(b"", clean_session=True)
    + encoder.subscribe(7, (b"#", 1))
    + encoder.publish(b"t", b"x" * 200, 1, 1)
    + encoder.acknowledgement(PUBACK, 1)
    + encoder.unsubscribe(8, b"#"),
    encoder.connect(b"old", level=3, clean_session=False)
    + encoder.subscribe(1, (b"$own/+", 0), (b"+/+/#", 2))
    + encoder.publish(b"$own/x", b"")
    + encoder.publish(b"a//b", b"z", 2, 65535),
    encoder.connect(b"c", keep_alive=10, will=(b"w/t", b"gone", 1, True), user_name=b"user", password=b"password"),
    b"".join(
        (
            encoder.connect(
                b"five",
                clean_session=False,
                keep_alive=60,
                will=(b"w", b"will", 1, True),
                properties=encoder.properties(
                    session_expiry_interval=60, receive_maximum=3, maximum_packet_size=200, topic_alias_maximum=5
                ),
                will_properties=encoder.properties(will_delay_interval=5, content_type=b"text"),
            ),
            encoder.subscribe(
                1, (b"a/+", 2 | 8), (b"b", 1 | 4), properties=encoder.properties(subscription_identifier=300)
            ),
            encoder.publish(
                b"a/b",
                b"x" * 20,
                2,
                3,
                retain=True,
                properties=encoder.properties(
                    topic_alias=2, message_expiry_interval=9, user_property=[(b"n", b"v")], response_topic=b"r"
                ),
            ),
            encoder.publish(b"", b"", 1, 4, properties=encoder.properties(topic_alias=2)),
            encoder.acknowledgement(PUBREL, 3, b"\0"),
            encoder.acknowledgement(PUBREC, 1, b"\x10\0"),
            encoder.acknowledgement(PUBCOMP, 1),
            encoder.acknowledgement(PUBACK, 2, b"\x87"),
            encoder.subscribe(5, (b"#", 1), properties=b"\0"),
            encoder.unsubscribe(6, b"b", b"c", properties=encoder.properties(user_property=(b"n", b"v"))),
            encoder.pingreq(),
            encoder.disconnect(b"\x04" + encoder.properties(session_expiry_interval=9, reason_string=b"enough")),
        )
    ),
]


def stop_time(loop: asyncio.AbstractEventLoop) -> None:
    """Stop an event loop's clock: then nothing waits for another turn, however slow the machine is."""
    now = loop.time()
    loop.time = lambda: now


class Transport(asyncio.Transport):
    """Keeps what is written, and records whether the connection was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "written behind the end"
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Wire:
    """A broker that any number of byte streams are tried on; use it inside its event loop.

    A bystander is connected all the time, and must not notice anything.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._errors: list[dict[str, Any]] = []
        broker.loop.set_exception_handler(lambda _, context: self._errors.append(context))
        stop_time(broker.loop)
        self._bystander, self._bystander_transport = self._connect()
        self._bystander.data_received(encoder.connect(b"\xf0\x9f\x91\xa4 bystander"))
        assert self._bystander_transport.written == b"\x20\x02\0\0"

    @classmethod
    async def open(cls) -> Wire:
        """Open a wire with a new broker in the running event loop; close() it afterwards."""
        broker = Broker(BrokerConfig(port=0, sys_interval=0))
        await broker.start()
        return cls(broker)

    async def close(self) -> None:
        """Stop the broker."""
        self._bystander.connection_lost(None)
        await self._broker.stop()

    def _connect(self) -> tuple[Connection, Transport]:
        transport = Transport()
        connection = Connection(self._broker, self._broker.config.all_listeners()[0])
        connection.connection_made(transport)
        return connection, transport

    def send(self, pieces: list[bytes]) -> tuple[bool, bytes]:
        """Send pieces on a new connection and drop it. Returns whether the broker closed it, and its answer.

        Raises AssertionError for a broken law, and whatever the broker raises.
        """
        owed = self._pending()
        connection, transport = self._connect()
        try:
            closed, answer = self._try(connection, transport, pieces, owed)
        finally:
            connection.connection_lost(None)
        self._bystander.data_received(encoder.pingreq())
        assert self._bystander_transport.written[-2:] == b"\xd0\0", "the bystander is not answered"
        self._bystander_transport.written.clear()
        assert not self._errors, self._errors
        stats = self._broker.stats
        assert stats.connections == 1
        return closed, answer

    def _try(self, connection: Connection, transport: Transport, pieces: list[bytes], owed: int) -> tuple[bool, bytes]:
        sent = 0
        for piece in pieces:
            if transport.closed:
                break
            connection.data_received(piece)
            sent += len(piece)
        stream = b"".join(pieces)
        wanted = verdict(stream)
        if wanted == CLOSED:
            assert transport.closed, "open behind a violation"
        elif wanted == OPEN:
            assert not transport.closed, "closed without a reason"
        closed, answer = transport.closed, bytes(transport.written)
        check_answer(answer, is_version5=is_version5(stream))
        kept = self._retained()
        # Every byte of the answer is caused by the input: a small stream cannot make a large one.
        retained = sum(
            len(b"".join(map(bytes, message[:2]))) + len(message.passed_on) + 30 for message in kept.values()
        )
        assert len(answer) <= (16 + retained) * (sent + 1) + owed, "the answer outgrows the question"
        return closed, answer

    def forget_everything(self) -> None:
        """Remove what persistent sessions and retained messages left; then nothing may remain."""
        broker = self._broker
        for session in broker.view.sessions:
            if session.connection is None:
                self.send([encoder.connect(session.client_id)])
        # Only now: with a session its will may come, and be retained.
        for name in list(self._retained()):
            self.send([encoder.connect(b"eraser") + encoder.publish(name, b"", 0, retain=True)])
        assert len(broker.view.sessions) == 1 and broker.stats.subscriptions == 0
        assert broker.view.subscription_nodes == 0 and broker.view.retained_count == 0
        assert broker.router.dirty == [] and broker.stats.queued == 0

    def _pending(self) -> int:
        """Return the bytes that wait for clients that may come back."""
        sessions = self._broker.view.sessions
        entries = [entry for session in sessions for entry in (*session.queue, *session.in_flight.values())]
        return sum(len(head or b"") + 4 + len(payload) for _, _, _, head, payload, _, _ in entries)

    def _retained(self) -> dict[bytes, Any]:
        return {message.topic_name: message for message in self._broker.view.retained}


def check_answer(answer: bytes, *, is_version5: bool) -> None:
    """Check that the broker's own packets are complete and conform to the specification.

    At MQTT 5 a name may be left out where an alias stands for it [MQTT-3.3.2-8]. Only one that was given a name before.
    """
    first = True
    aliases: set[int] = set()
    while answer:
        length, at = 0, 1
        while True:
            assert at < len(answer) and at <= 4, "cut short"
            length |= (answer[at] & 127) << 7 * (at - 1)
            at += 1
            if answer[at - 1] < 128:
                break
        body, first_byte = answer[at : at + length], answer[0]
        assert len(body) == length, "cut short"
        assert first == (first_byte == 0x20), "CONNACK comes first and once"
        if first_byte & 0xF0 == 0x30:
            size = int.from_bytes(body[:2], "big")
            name, qos = body[2 : 2 + size], first_byte >> 1 & 3
            assert len(name) == size and qos < 3 and not {*name} & {*b"+#\0"}
            name.decode()
            alias = decode5(decode(first_byte, body)).properties.get("topic_alias") if is_version5 else None
            assert name or alias in aliases, "a name that nobody can know"
            if alias is not None:
                aliases.add(alias)
            assert not qos or body[2 + size : 4 + size] not in (b"", b"\0\0")
        elif is_version5:
            assert first_byte in (*_FROM_SERVER, 0xE0)
            assert first_byte != 0xE0 or len(answer) == at + length, "something behind DISCONNECT"
        else:
            assert first_byte in _FROM_SERVER
            assert length == 0 if first_byte == 0xD0 else length == 2 or first_byte == 0x90
        if is_version5:
            decode5(decode(first_byte, body))
        answer, first = answer[at + length :], False
