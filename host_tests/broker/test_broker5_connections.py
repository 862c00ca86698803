"""MQTT 5, connections: what the broker grants, refuses and says at the end; how long sessions and wills wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker_peer import BrokerProcess, BrokerThread, Peer, StartBroker
from broker_wire import Transport, stop_time
from peer5 import Peer5
from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.access.permission import Permission, Rights
from umqtt_broker.clients.connection import Connection
from umqtt_broker.protocol.properties import OVERHEAD
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, DISCONNECT, SUBACK

FOR_EVER = 0xFFFFFFFF
SEED = int(os.environ.get("UMQTT_SEED", "1"))

Connect5 = Callable[..., Peer5]


class Clock:
    """The clock by which a broker lets sessions and wills expire."""

    def __init__(self, broker: BrokerThread) -> None:
        self._broker = broker
        self._now = 1_800_000_000.0
        broker.call(lambda: setattr(broker.broker.context.expiry, "clock", lambda: self._now))

    def advance(self, seconds: float) -> None:
        """Let time pass, and wait for what is due."""
        self._now += seconds
        self._broker.call(self._broker.broker.expire)


@pytest.fixture
def clock(broker: BrokerThread) -> Clock:
    return Clock(broker)


def test_connack_says_what_differs_from_what_was_asked(start_broker: StartBroker) -> None:
    # Planted: the answer repeats the requested interval, not the one in force; no keep-alive of the server.
    broker = start_broker(session_expiry=100, max_keep_alive=30, retain_available=False, max_packet_size=5000)
    with Peer5(broker.port) as peer:
        connack = peer.ask(b"", keep_alive=60, session_expiry_interval=FOR_EVER)
        assert (connack.kind, connack.reason_codes, connack.present) == (CONNACK, b"\0", False)
        name = connack.properties.pop("assigned_client_identifier")
        assert connack.properties == {
            "maximum_packet_size": 5000, "topic_alias_maximum": 10, "session_expiry_interval": 100,
            "server_keep_alive": 30, "retain_available": 0,
        }  # fmt: skip
        assert broker.call(lambda: broker.view.session(name)) is not None
        peer.send(encoder.publish(b"t", b"", retain=True, properties=b"\0"))
        assert [one.reason_codes for one in peer.wait_closed()] == [b"\x9a"]
    with Peer5(broker.port) as peer:
        assert peer.ask(b"client", keep_alive=20, session_expiry_interval=10).properties == {
            "maximum_packet_size": 5000, "topic_alias_maximum": 10, "retain_available": 0,
        }  # fmt: skip
    with Peer5(broker.port) as peer:
        assert peer.ask(b"will", will=(b"w", b"", 0, True)).reason_codes == b"\x9a"


# For two brokers: the limits of a session's interval and of keep-alive, and of the size of a CONNECT's properties.
LIMITS = ((0, 0, 16 * 1024), (100, 30, 200))


def test_a_connack_is_for_its_own_client_whoever_asked_before(start_broker: StartBroker) -> None:
    # Short properties and CONNACKs without anything of one client alone are remembered. Planted: a CONNACK remembered
    # without session_present or keep-alive; properties remembered without the limit of their size.
    brokers = [
        start_broker(session_expiry=most, max_keep_alive=alive, max_connect_properties_size=size)
        for most, alive, size in LIMITS
    ]
    ways = [
        (which, interval, keep_alive, more)
        for which in range(len(LIMITS))
        for interval in (None, 0, 50, 150)
        for keep_alive in (0, 20, 40)
        for more in ({}, {"receive_maximum": 7}, {"receive_maximum": 7, "topic_alias_maximum": 3})
    ]
    Random(SEED).shuffle(ways)
    for which, interval, keep_alive, more in ways:
        most, alive, size = LIMITS[which]
        asked = more if interval is None else {**more, "session_expiry_interval": interval}
        client_id = f"client-{interval}-{keep_alive}-{len(more)}".encode()
        for present in (False, True):
            with Peer5(brokers[which].port) as peer:
                connack = peer.ask(client_id, clean=False, keep_alive=keep_alive, **asked)
                if len(asked) * OVERHEAD + len(encoder.properties(**asked)) - 1 > size:
                    assert connack.reason_codes == b"\x97", (SEED, which, asked)
                    continue
                granted = {"maximum_packet_size": 16 * 1024 * 1024, "topic_alias_maximum": 10}
                if most and (interval or 0) > most:
                    granted["session_expiry_interval"] = most
                if alive and not 0 < keep_alive <= alive:
                    granted["server_keep_alive"] = alive
                assert (connack.properties, connack.present) == (granted, bool(present and interval)), (SEED, asked)


class _Refusing(Permission):
    def connect(self, packet: Any, peer: Any) -> int:
        del peer
        return int(packet.client_id.decode())


@pytest.mark.parametrize(("return_code", "reason"), [(2, 0x85), (3, 0x88), (4, 0x86), (5, 0x87)])
def test_a_refusal_has_the_reason_code_of_mqtt_5(start_broker: StartBroker, return_code: int, reason: int) -> None:
    # Planted: return codes of 3.1.1 in a CONNACK of 5.
    broker = start_broker(permission=_Refusing())
    with Peer5(broker.port) as peer:
        connack = peer.ask(b"%d" % return_code)
        assert (connack.kind, connack.reason_codes) == (CONNACK, bytes((reason,)))
        assert peer.wait_closed() == []


BROKEN_CONNECTS = {
    "authentication method": ({"authentication_method": b"SCRAM-SHA-256", "authentication_data": b"n,,n=ada"}, 0x8C),
    "authentication data alone": ({"authentication_data": b"x"}, 0x82),
    "receive maximum 0": ({"receive_maximum": 0}, 0x82),
    "twice": ({"receive_maximum": [1, 2]}, 0x82),
    "property of another packet": ({"topic_alias": 1}, 0x81),
    "client identifier": ({"client_id": b"\xff"}, 0x81),
    "will topic": ({"will": (b"w/#", b"", 0, False)}, 0x90),
    "empty will topic": ({"will": (b"", b"", 0, False)}, 0x81),
    "will properties": ({"will": (b"w", b"", 0, False), "will_properties": b"\x05"}, 0x81),
}


@pytest.mark.parametrize("name", BROKEN_CONNECTS)
def test_a_connect_that_may_not_be_is_answered_with_its_reason(broker: BrokerThread, name: str) -> None:
    # Planted: an unknown method lets a client in without authentication.
    options, reason = BROKEN_CONNECTS[name]
    with Peer5(broker.port) as peer:
        connack = peer.ask(
            options.get("client_id", b"client"), **{k: v for k, v in options.items() if k != "client_id"}
        )
        assert (connack.kind, connack.reason_codes, connack.present) == (CONNACK, bytes((reason,)), False)
        assert peer.wait_closed() == []
    assert broker.call(lambda: len(broker.view.sessions)) == 0


# The intervals of CONNECT and DISCONNECT, and after how many seconds the session still exists.
EXPIRIES = [
    (None, None, 0, False),
    (0, None, 0, False),
    (60, None, 59, True),
    (60, None, 60, False),
    (FOR_EVER, None, 10**8, True),
    (60, 0, 0, False),
    (60, 100, 99, True),
    (60, 100, 100, False),
    (FOR_EVER, 10, 10, False),
]


@pytest.mark.parametrize(("asked", "changed", "seconds", "present"), EXPIRIES)
def test_a_session_is_kept_as_long_as_its_client_asked(
    peer5: Connect5,
    clock: Clock,
    broker: BrokerThread,
    asked: int | None,
    changed: int | None,
    seconds: int,
    present: bool,
) -> None:
    # Planted: DISCONNECT's interval is ignored; a second more or less.
    first = peer5(b"client", **({} if asked is None else {"session_expiry_interval": asked}))
    first.subscribe5((b"t", 1))
    properties = encoder.properties(**({} if changed is None else {"session_expiry_interval": changed}))
    first.send(encoder.disconnect(b"\0" + properties))
    assert first.wait_closed() == []
    clock.advance(seconds)
    assert broker.call(lambda: len(broker.view.sessions)) == int(present)
    with Peer5(broker.port) as again:
        assert again.connect5(b"client", clean=False).present is present


def test_an_interval_that_a_session_cannot_have_ends_the_connection(peer5: Connect5) -> None:
    # Planted: a session that was to end with its connection can be made to stay.
    peer = peer5(b"client")
    peer.send(encoder.disconnect(b"\0" + encoder.properties(session_expiry_interval=5)))
    assert [one.reason_codes for one in peer.wait_closed()] == [b"\x82"]


def test_sessions_that_come_and_go_leave_no_list_that_grows(
    peer5: Connect5, broker: BrokerThread, clock: Clock
) -> None:
    # Planted: the expiry noted for a session that came back is never forgotten.
    for _ in range(20):
        peer5(b"client", clean=False, session_expiry_interval=10**6).disconnect()
    sessions = broker.broker.sessions
    broker.call(lambda: [sessions._due.add(1 << 40, one) for one in sessions for _ in range(2000)])
    clock.advance(1)
    assert broker.call(lambda: len(sessions._due)) == 1


def test_clean_start_ends_the_session_before_and_begins_one_that_stays(peer5: Connect5, broker: BrokerThread) -> None:
    # Planted: Clean Start is taken for a clean session, so that the new one would end with its connection.
    peer5(b"client", session_expiry_interval=100).disconnect()
    again = peer5(b"client", clean=False, session_expiry_interval=100)
    again.subscribe5((b"t", 1))
    again.disconnect()
    peer5(b"client", clean=True, session_expiry_interval=100).disconnect()
    assert broker.call(lambda: [one.client_id for one in broker.view.sessions]) == [b"client"]
    last = peer5(b"client", clean=False)
    peer5(b"other").publish5(b"t", b"x", 1)
    assert last.flush() == []


# How the client leaves, its will delay and session expiry, and after how many seconds its will comes.
WILLS = [
    ("reset", 0, 100, 0),
    ("reset", 10, 0, 0),
    ("reset", 10, 100, 10),
    ("reset", 100, 10, 10),
    ("disconnect with will", 10, 100, 10),
    ("disconnect with will", 0, 0, 0),
    ("disconnect", 10, 100, None),
    ("disconnect", 0, 0, None),
    ("return", 10, 100, None),
    ("clean return", 10, 100, 0),
    ("taken over", 10, 100, None),
    ("taken over", 0, 100, 0),
]


@pytest.mark.parametrize(("how", "delay", "expiry", "expected"), WILLS)
def test_a_will_comes_when_its_delay_or_its_session_is_over_and_not_if_the_client_is_back(
    peer5: Connect5, clock: Clock, broker: BrokerThread, how: str, delay: int, expiry: int, expected: int | None
) -> None:
    # Planted: the delay is ignored; a will is published although its client came back; one is lost with its session.
    watcher = peer5(b"watcher")
    watcher.subscribe5((b"w", 1))
    will_properties = encoder.properties(
        will_delay_interval=delay, message_expiry_interval=500, content_type=b"text", user_property=(b"a", b"b")
    )
    options = {"session_expiry_interval": expiry}
    client = peer5(b"client", will=(b"w", b"gone", 1, False), will_properties=will_properties, **options)
    if how == "taken over":
        peer5(b"client", clean=False, **options)
    elif how == "disconnect":
        client.disconnect()
    elif how == "disconnect with will":
        client.send(encoder.disconnect(b"\x04"))
        client.wait_closed()
    else:
        client.reset()
        broker.wait_until(lambda: broker.stats.connections == 1)
        if "return" in how:
            peer5(b"client", clean="clean" in how, **options)
    came: int | None = None
    for second in range(15):
        got = watcher.flush()
        if got:
            assert [(one.payload, one.properties) for one in got] == [
                (b"gone", {"message_expiry_interval": 500, "content_type": b"text", "user_property": [(b"a", b"b")]})
            ]
            assert came is None
            came = second
        clock.advance(1)
    assert came == expected


def test_a_delayed_will_and_a_session_with_an_end_survive_kill_9(tmp_path: Path) -> None:
    # Planted: the will is published at the start; the will of a client that came back stays in the store; the session
    # that was to end with its connection still exists.
    store = tmp_path / "broker.db"
    with BrokerProcess(store) as broker, Peer5(broker.port) as client, Peer5(broker.port) as watcher:
        watcher.connect5(b"watcher", session_expiry_interval=FOR_EVER)
        watcher.subscribe5((b"w/#", 1))
        delayed = encoder.properties(will_delay_interval=100_000, content_type=b"text")
        client.connect5(
            b"client", session_expiry_interval=FOR_EVER, will=(b"w/late", b"", 1, True), will_properties=delayed
        )
        with Peer5(broker.port) as second, Peer5(broker.port) as third:
            second.connect5(b"second", session_expiry_interval=100, will=(b"w/now", b"", 1, False))
            third.connect5(b"third", session_expiry_interval=100)
            third.disconnect()
        with Peer5(broker.port) as fourth:
            # The client was back before its will was due, so that will is void.
            fourth.connect5(
                b"fourth", session_expiry_interval=100_000, will=(b"w/over", b"", 1, False), will_properties=delayed
            )
            fourth.reset()
        with Peer5(broker.port) as fourth:
            fourth.connect5(b"fourth", clean=False, session_expiry_interval=100_000)
            fourth.disconnect()
        with Peer5(broker.port) as fourth:
            fourth.connect5(b"fourth", clean=False, session_expiry_interval=100_000)
        with Peer5(broker.port) as third:
            assert third.connect5(b"third", clean=False, session_expiry_interval=0).present
            broker.kill()
    with BrokerProcess(store) as broker, Peer5(broker.port) as watcher:
        assert watcher.connect5(b"watcher", clean=False).present
        # The second was away when the broker died, or its end was not yet seen: its will comes once, the late one
        # never.
        assert watcher.receive_message().topic_name == b"w/now"
        assert watcher.flush() == []
        with Peer5(broker.port) as fourth, Peer5(broker.port) as client:
            fourth.connect5(b"fourth", clean=True)
            assert watcher.flush() == []
            # The will comes at once with the end of its session, as it was left.
            client.connect5(b"client", clean=True)
            got = watcher.receive_message()
            assert (got.topic_name, got.properties) == (b"w/late", {"content_type": b"text"})
        with Peer5(broker.port) as third:
            assert not third.connect5(b"third", clean=False).present


def test_who_is_cut_off_is_told_why(start_broker: StartBroker) -> None:
    # Planted: the socket is closed without a DISCONNECT.
    broker = start_broker(max_packet_size=1000)
    reasons: dict[str, bytes] = {}

    def last(peer: Peer5) -> bytes:
        (packet,) = peer.wait_closed()
        assert packet.kind == DISCONNECT
        return packet.reason_codes

    with Peer5(broker.port) as peer, Peer5(broker.port) as other:
        peer.connect5(b"client")
        other.connect5(b"client")
        reasons["taken over"] = last(peer)
    for name, data in {
        "too large": b"\x30\xff\xff\x7f",
        "malformed": b"\x30\x02\0\x05",
        "second CONNECT": encoder.connect(b"again", properties=b"\0"),
        "wildcard": encoder.publish(b"a/#", b"", properties=b"\0"),
        "reserved type": b"\x00\x00",
        "AUTH": b"\xf0\x00",
        "identifier from a client": encoder.publish(
            b"a", b"", properties=encoder.properties(subscription_identifier=1)
        ),
        "reason of a server": encoder.disconnect(b"\x8b"),
    }.items():
        with Peer5(broker.port) as peer:
            peer.connect5(b"client")
            peer.send(data)
            reasons[name] = last(peer)
    with Peer5(broker.port) as peer:
        peer.ask(b"client", keep_alive=1)
        broker.advance(10)
        reasons["keep-alive"] = last(peer)
    assert reasons == {
        "taken over": b"\x8e", "too large": b"\x95", "malformed": b"\x81", "second CONNECT": b"\x82",
        "wildcard": b"\x90", "reserved type": b"\x81", "AUTH": b"\x82", "identifier from a client": b"\x82",
        "reason of a server": b"\x82", "keep-alive": b"\x8d",
    }  # fmt: skip


def test_clients_of_mqtt_5_are_sent_to_another_server_and_others_are_served(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    # Planted: connected clients are not told; a client of 3.1.1 is refused; the session is forgotten.
    store, reference = str(tmp_path / "broker.db"), {"server_reference": b"b.example:1883"}
    broker = start_broker(store=store)

    def reload(server_reference: str) -> None:
        settings = BrokerConfig(port=0, sys_interval=0, store=store, server_reference=server_reference)
        assert broker.call(lambda: broker.broker.reload(settings)) == []

    with Peer5(broker.port) as five, Peer5(broker.port) as small, Peer(broker.port) as old:
        five.connect5(b"five", session_expiry_interval=100, will=(b"w", b"gone", 0, False))
        five.subscribe5((b"t", 1))
        small.connect5(b"small", maximum_packet_size=12)
        old.connect(b"old")
        old.subscribe(b"w", 0)
        reload("b.example:1883")
        assert [(one.kind, one.reason_codes, one.properties) for one in five.wait_closed()] == [
            (DISCONNECT, b"\x9c", reference)
        ]
        assert [(one.reason_codes, one.properties) for one in small.wait_closed()] == [(b"\x9c", {})]
        assert old.receive_message().payload == b"gone"
        with Peer5(broker.port) as again, Peer(broker.port) as new:
            refused = again.ask(b"five", clean=False)
            assert (refused.kind, refused.reason_codes, refused.properties) == (CONNACK, b"\x9c", reference)
            new.connect(b"new")
    reload("")
    with Peer5(broker.port) as again:
        assert again.connect5(b"five", clean=False).present


def test_the_end_of_the_broker_is_told_behind_everything_else() -> None:
    # Planted: DISCONNECT comes before a pending acknowledgement.
    with BrokerProcess(":memory:") as broker, Peer5(broker.port) as peer:
        peer.connect5(b"client")
        broker.process.terminate()
        (packet,) = peer.wait_closed()
        assert (packet.kind, packet.reason_codes) == (DISCONNECT, b"\x8b")


def test_a_reason_string_that_does_not_fit_is_left_out(peer5: Connect5) -> None:
    # Planted: the limit is checked for PUBLISH only.
    for limit, text in ((1000, {"reason_string": b"invalid topic name"}), (10, {})):
        peer = peer5(b"client", maximum_packet_size=limit)
        peer.send(encoder.publish(b"a/#", b"", properties=b"\0"))
        assert [one.properties for one in peer.wait_closed()] == [text]


# Each is answered by another packet, of 2 to 38 bytes; the last one is malformed.
_ANSWERED = [
    encoder.subscribe(1, *((b"%d" % number, 0) for number in range(30)), properties=b"\0"),
    encoder.subscribe(2, (b"t", 2), properties=b"\0"),
    encoder.unsubscribe(3, *(b"%d" % number for number in range(33)), properties=b"\0"),
    encoder.publish(b"$SYS/x", b"", 1, 4, properties=b"\0"),
    encoder.publish(b"t", b"x", 2, 6, properties=b"\0"),
    encoder.publish(b"t", b"x" * 20, 1, 5, properties=b"\0"),
    encoder.acknowledgement(encoder.PUBREL, 7) + encoder.acknowledgement(encoder.PUBREL, 6),
    encoder.pingreq(),
    encoder.publish(b"a/#", b"", properties=b"\0"),
]


def _answers(broker: Broker, **properties: int) -> list[bytes]:
    """Return the packets that a client gets whose CONNECT has these properties."""
    transport = Transport()
    connection = Connection(broker, broker.config.all_listeners()[0])
    connection.connection_made(transport)
    connection.data_received(encoder.connect(b"client", properties=encoder.properties(**properties)))
    if not transport.closed:
        connection.data_received(b"".join(_ANSWERED))
    connection.connection_lost(None)
    packets, rest = encoder.split_packets(bytes(transport.written))
    assert not rest
    return [encoder.encode(first, body) for first, body in packets]


def test_no_packet_is_larger_than_the_client_takes_and_every_other_comes() -> None:
    """Planted: PUBACK and PUBCOMP with a reason code, CONNACK or DISCONNECT of any size; PINGRESP is left out as
    well.
    """

    async def sweep() -> None:
        async with Broker(BrokerConfig(port=0, sys_interval=0)) as broker:
            stop_time(broker.loop)
            connack, *unlimited, disconnect = _answers(broker)
            for most in range(1, 50):
                # Without the optional parts.
                bare = connack if most >= len(connack) else b"\x20\x03\0\0\0"
                end = disconnect if most >= len(disconnect) else b"\xe0\x01\x90"
                expected = [one for one in (bare, *unlimited, end) if len(one) <= most]
                assert _answers(broker, maximum_packet_size=most) == (expected if most >= len(bare) else []), most
            assert {len(one) for one in unlimited} >= {2, 4, 5, 6, 35, 38}

    asyncio.run(sweep())


def test_a_client_that_wants_no_reasons_in_words_gets_none(start_broker: StartBroker) -> None:
    """Planted: the property is ignored; the limits of a malformed CONNECT are not read."""
    broker = start_broker()
    for options, expected in (
        ({}, {"reason_string": b"invalid UTF-8"}),
        ({"request_problem_information": 1}, {"reason_string": b"invalid UTF-8"}),
        ({"request_problem_information": 0}, {}),
        ({"maximum_packet_size": 20}, {}),
    ):
        with Peer5(broker.port) as peer:
            refused = peer.ask(b"\xff", **options)
            assert (refused.reason_codes, refused.properties) == (b"\x81", expected)
    with Peer5(broker.port) as peer:
        peer.connect5(b"client", request_problem_information=0)
        peer.send(encoder.publish(b"a/#", b"", properties=b"\0"))
        assert [(one.reason_codes, one.properties) for one in peer.wait_closed()] == [(b"\x90", {})]


class _Rights(Rights):
    def may_publish(self, topic_name: bytes) -> bool:
        return topic_name != b"denied"

    def grant(self, topic_filter: bytes, qos: int) -> int:
        return 0x80 if topic_filter == b"denied" else min(qos, 1)


class _Limited(Permission):
    def rights(self, client_id: bytes, username: bytes | None) -> Rights:
        del client_id, username
        return _Rights()


@pytest.fixture
def limited(start_broker: StartBroker) -> Iterator[Peer5]:
    broker = start_broker(permission=_Limited(), max_payload_size=10)
    with Peer5(broker.port) as peer:
        peer.connect5(b"client")
        yield peer


@pytest.mark.parametrize("qos", [1, 2])
def test_who_publishes_is_told_what_is_not_allowed(limited: Peer5, qos: int) -> None:
    # Planted: success is reported for what reached nobody; the packet identifier of a refused QoS 2 message is kept.
    assert limited.publish5(b"denied", b"x", qos) == 0x87
    assert limited.publish5(b"$SYS/x", b"x", qos) == 0x87
    assert limited.publish5(b"a", b"x" * 11, qos) == 0x97
    assert limited.publish5(b"a", b"x" * 10, qos) == 0
    assert limited.publish5(b"a", b"x", qos, user_property=(b"a", b"b" * 20)) == 0x97
    for _ in range(2):
        # The packet identifier is free again: the second message is not taken for the first.
        limited.send(encoder.publish(b"denied", b"x", qos, 999, properties=b"\0"))
        assert limited.receive().reason_codes == b"\x87"


def test_who_subscribes_is_told_why_not(limited: Peer5) -> None:
    # Planted: 0x80 for everything, as in 3.1.1.
    requests = ((b"denied", 1), (b"a", 2), (b"$share/g", 1), (b"b", 0))
    assert limited.subscribe5(*requests) == b"\x87\x01\x8f\x00"
    limited.send(encoder.subscribe(7, (b"a", 0), properties=encoder.properties(user_property=(b"a", b"b"))))
    assert limited.expect(SUBACK, 7).reason_codes == b"\0"


def test_the_answers_to_an_earlier_version_are_those_of_that_version(start_broker: StartBroker) -> None:
    # Planted: reason codes of MQTT 5 in a SUBACK of 3.1.1.
    broker = start_broker(permission=_Limited())
    with Peer(broker.port) as peer:
        peer.connect(b"old")
        assert peer.subscribe(b"denied") == peer.subscribe(b"$share/g") == 0x80
        peer.publish(b"denied", b"x", 1)
