"""Clients that send what is expensive for the broker: it is refused, or done in turns, at no one else's expense.

What can be counted is asserted here; delays and memory beside mosquitto's are measured by attacks.py.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
from attacks import Outcome, judge
from broker_peer import BrokerThread, Peer, StartBroker
from peer5 import Peer5
from umqtt_broker import BrokerConfig, Listener
from umqtt_broker.access.files import FilePermission
from umqtt_broker.access.guesses import Guesses
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_broker.log import NOTICE, RefusalLog
from umqtt_broker.routing import router
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, CONNECT
from umqtt_testkit.mosquitto import Mosquitto


def name_of(levels: int) -> bytes:
    """Return a topic name with that many levels below its first."""
    return b"/".join([b"a"] * (levels + 1))


DEEP_PACKETS = {
    "PUBLISH": lambda name: encoder.publish(name, b"x", 1, 1),
    "PUBLISH QoS 2": lambda name: encoder.publish(name, b"x", 2, 1),
    "SUBSCRIBE": lambda name: encoder.subscribe(1, (b"a", 0), (name, 0)),
    "SUBSCRIBE shared": lambda name: encoder.subscribe(1, (b"$share/" + name[2:], 0)),
    "UNSUBSCRIBE": lambda name: encoder.unsubscribe(1, name),
    "will": lambda name: encoder.connect(b"deep", will=(name, b"gone", 0, False)),
}


@pytest.mark.parametrize("kind", DEEP_PACKETS)
def test_a_topic_of_too_many_levels_ends_the_connection_as_in_mosquitto(
    start_broker: StartBroker, tmp_path: Path, kind: str
) -> None:
    # Planted: is_too_deep() is always False.
    broker = start_broker()
    with Mosquitto(tmp_path, "allow_anonymous true") as mosquitto:
        for port in (broker.port, mosquitto.port):
            for levels in (200, 201, 32_000):
                packet = DEEP_PACKETS[kind](name_of(levels))
                with Peer(port) as peer:
                    if packet[0] >> 4 != CONNECT:
                        peer.connect(b"deep")
                    peer.send(packet)
                    if levels == 200:
                        peer.receive()
                    else:
                        assert peer.wait_closed() == [], levels
    assert broker.call(lambda: broker.stats.malformed["too many topic levels"]) == 2


def test_the_limit_of_levels_is_a_setting_and_counts_the_mount_point(start_broker: StartBroker) -> None:
    listener = Listener(port=0, allow_anonymous=True, mount_point=b"m/")
    broker = start_broker(max_topic_levels=3, listeners=(listener,))
    with Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.publish(name_of(2), b"", 2)
        peer.send(encoder.publish(name_of(3), b"x"))
        assert peer.wait_closed() == []


def connack(port: int, packet: bytes) -> int:
    """Return the return code that answers a CONNECT."""
    with Peer(port) as peer:
        peer.send(packet)
        return peer.expect(CONNACK).body[1]


def test_a_client_that_says_it_is_a_bridge_is_told_to_come_as_an_ordinary_one(start_broker: StartBroker) -> None:
    # Planted: the top bit of the protocol level is ignored, so mosquitto expects that nothing comes back to it.
    broker = start_broker()
    assert connack(broker.port, encoder.connect(b"bridge", level=0x84)) == 1
    assert connack(broker.port, encoder.connect(b"bridge")) == 0


@pytest.mark.parametrize("store", ["memory", "sqlite", "sqlite, restarted"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_for_a_client_that_may_not_read_it_any_more_is_dropped(tmp_path: Path, store: str, qos: int) -> None:
    # Planted: set_rights() leaves checks_rights unchanged.
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite secret/#\ntopic readwrite open/#\n")
    path = ":memory:" if store == "memory" else str(tmp_path / "broker.db")

    def start() -> BrokerThread:
        permission = FilePermission(acl_file=str(rules), allow_anonymous=True)
        return BrokerThread(BrokerConfig(port=0, store=path, permission=permission, sys_interval=0))

    with start() as broker:
        with Peer(broker.port) as reader, Peer(broker.port) as writer:
            reader.connect(b"reader", clean_session=False)
            reader.subscribe(b"#", qos)
            reader.disconnect()
            writer.connect(b"writer")
            for number in range(3):
                writer.publish(b"secret/%d" % number, b"", qos)
                writer.publish(b"open/%d" % number, b"", qos)
        rules.write_text("topic readwrite open/#\n")
        if not store.endswith("restarted"):
            broker.call(lambda: broker.broker.reload())
            assert receive_waiting(broker) == [b"open/0", b"open/1", b"open/2"]
    if store.endswith("restarted"):
        with start() as broker:
            assert receive_waiting(broker) == [b"open/0", b"open/1", b"open/2"]


def receive_waiting(broker: BrokerThread) -> list[bytes]:
    """Return the topics of three messages that waited for the reader; check that nothing else is left."""
    with Peer(broker.port) as reader:
        assert reader.connect(b"reader", clean_session=False)
        names = [reader.receive_message(acknowledge=False).topic_name for _ in range(3)]
        assert reader.flush() == []
    assert broker.call(lambda: broker.stats.dropped_denied) == 3
    return names


# How many want the names: more subscribers make a remembered name larger, as do other versions or names.
WHO_WANTS_IT = {"nobody": 0, "one": 1, "many": 10, "one of MQTT 5": 1, "many of MQTT 5": 10, "many behind a mount": 10}


@pytest.mark.parametrize("length", [1, 200])
@pytest.mark.parametrize("who", WHO_WANTS_IT)
def test_ever_new_topic_names_take_no_more_memory_than_there_is_for_them(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, who: str, length: int
) -> None:
    # Planted: names are counted without their subscribers; the same for MQTT 5 only; names without their bytes.
    monkeypatch.setattr(router, "_MOST_ROUTES_SIZE", 60_000)
    mount = b"m/" if "mount" in who else b""
    broker = start_broker(listeners=(Listener(port=0, allow_anonymous=True, mount_point=mount),))
    for number in range(WHO_WANTS_IT[who]):
        if "5" in who:
            with Peer5(broker.port) as version5:
                version5.connect5(b"s%d" % number, session_expiry_interval=1000)
                version5.subscribe5((b"#", 0))
        else:
            with Peer(broker.port) as subscriber:
                subscriber.connect(b"s%d" % number, clean_session=False)
                subscriber.subscribe(b"#")
    broker.wait_until(lambda: broker.stats.connections == 0)
    packets = [
        b"".join(encoder.publish(b"n/%d/" % number + b"x" * length, b"") for number in range(start, start + 50))
        for start in range(0, 1000, 50)
    ]
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        gc.collect()
        tracemalloc.start()
        try:
            taken: list[int] = []
            for batch in packets:
                publisher.send(batch)
                publisher.flush()
                taken.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    # It is filled by names of every kind, up to its limit.
    assert 30_000 < max(taken) < 100_000


REFUSED = {
    "level": (encoder.connect(b"x", level=9), "unacceptable protocol level 9"),
    "HTTP": (
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        "an HTTP request at a listener for MQTT (packet before CONNECT)",
    ),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", "a TLS handshake at a listener without TLS (CONNECT cut short)"),
    "garbage": (b"\xc8\x01" * 20, "packet before CONNECT"),
    "malformed": (encoder.connect(b"\xff"), "invalid UTF-8"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_who_is_refused_is_a_line_in_the_log(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    # Planted: a MalformedPacket before CONNECT is only counted.
    packet, reason = REFUSED[kind]
    with caplog.at_level(NOTICE, "umqtt_broker.clients"):
        broker = start_broker()
        with Peer(broker.port) as peer:
            peer.send(packet)
            peer.wait_closed()
    assert [record.getMessage() for record in caplog.records] == [f"a client from 127.0.0.1 refused: {reason}"]


def test_very_many_refused_clients_are_few_lines_that_count_them(caplog: pytest.LogCaptureFixture) -> None:
    # Planted: the credit is never spent.
    refusals = RefusalLog()
    with caplog.at_level(NOTICE, "umqtt_broker.clients"):
        for number in range(5000):
            refusals.refused(1000.0 + number / 1024, "192.0.2.1", "packet before CONNECT")
        refusals.refused(1010.0, "192.0.2.1", "packet before CONNECT")
    assert len(caplog.records) == 20 + 4 + 1
    said = [record.left_out for record in caplog.records]
    assert sum(said) + len(said) == 5001


@pytest.mark.parametrize("flags", range(16))
@pytest.mark.parametrize("level", [3, 4])
def test_flags_of_connect_are_as_in_mosquitto(start_broker: StartBroker, level: int, flags: int) -> None:
    # mosquitto allows these flags in MQTT 3.1, which does not use them, and none in 3.1.1. Planted: flags are
    # refused.
    broker = start_broker()
    packet = encoder.connect(b"client", level=level)
    with Peer(broker.port) as peer:
        peer.send(bytes((packet[0] | flags,)) + packet[1:])
        if level == 4 and flags:
            assert peer.wait_closed() == []
        else:
            assert peer.expect(CONNACK).body == b"\0\0"


def test_guessed_passwords_wait_and_those_of_others_do_not() -> None:
    # Planted: must_wait() considers only the address, so that one misconfigured device blocks its fleet.
    guesses = Guesses()
    tried = 0
    for second in range(600):
        for _ in range(10):
            if not guesses.must_wait("192.0.2.1", b"ada", second):
                guesses.wrong("192.0.2.1", b"ada", second)
                tried += 1
    assert 10 <= tried <= 20
    assert guesses.must_wait("192.0.2.1", b"ada", 600.0)
    assert not guesses.must_wait("192.0.2.1", b"pump-7", 600.0)
    assert not guesses.must_wait("192.0.2.2", b"ada", 600.0)
    assert not guesses.must_wait("192.0.2.1", b"ada", 1300.0)


def test_one_address_guesses_once_a_second_whatever_the_names_are() -> None:
    # Planted: no count is kept for the address.
    guesses = Guesses()
    tried = 0
    for moment in range(6000):
        name = b"user %d" % moment
        if not guesses.must_wait("192.0.2.1", name, moment / 10):
            guesses.wrong("192.0.2.1", name, moment / 10)
            tried += 1
    assert 600 <= tried <= 665
    for number in range(30_000):
        guesses.wrong(f"192.0.{number // 256}.{number % 256}", b"%d" % number, 600.0)
    assert len(guesses._wrong) <= 10_001


def test_guesses_at_long_names_take_no_memory_and_make_no_long_lines(caplog: pytest.LogCaptureFixture) -> None:
    # Planted: names are remembered in full length.
    guesses = Guesses()
    tracemalloc.start()
    try:
        for number in range(200):
            for second in range(7):
                guesses.wrong(f"192.0.2.{number}", b"%d" % number + b"x" * 60_000, second)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 1_000_000
    assert guesses.must_wait("192.0.2.7", b"7" + b"x" * 60_000, 6.5)
    assert caplog.records and max(len(record.getMessage()) for record in caplog.records) < 200


def test_a_client_that_guesses_is_told_to_wait_whether_it_is_right_or_not(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Planted: a checker that asks nobody.
    passwords = PasswordFile(tmp_path / "passwords")
    passwords.set(b"ada", PasswordHash.make(b"right", 1))
    passwords.write()
    broker = start_broker(permission=FilePermission(str(passwords.path)))
    broker.stop_clock()

    def enter(password: bytes) -> int:
        return connack(broker.port, encoder.connect(b"client", user_name=b"ada", password=password))

    assert enter(b"right") == 0
    assert [enter(b"%d" % number) for number in range(8)] == [4] * 6 + [3] * 2
    assert enter(b"right") == 3
    broker.advance(1.5)
    assert enter(b"right") == 0
    assert enter(b"once more") == 4 and enter(b"once more") == 3
    assert broker.call(lambda: (broker.stats.wrong_passwords, broker.stats.told_to_wait)) == (7, 4)
    assert "6 wrong passwords for user ada from 127.0.0.1: this address must wait 1 s" in caplog.text


CALM = Outcome(5.0, 30.0, 33.0, 40.0, 34.0)


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        (CALM, []),
        (CALM._replace(p99=21.0), ["p99 21 ms"]),
        (CALM._replace(longest=101.0), ["longest wait 101 ms"]),
        (CALM._replace(most=80.0), ["grows more than mosquitto"]),
        (CALM._replace(after=60.0), ["memory does not come back"]),
        (CALM._replace(broken_off="Closed()"), ["the attack broke off: Closed()"]),
    ],
)
def test_an_attack_that_hurts_is_seen(ours: Outcome, says: list[str]) -> None:
    # Planted: a bound that is not checked.
    assert judge(ours, Outcome(3.0, 20.0, 8.0, 20.0, 9.0)) == says
