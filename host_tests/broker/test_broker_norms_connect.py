"""What MQTT 3.1.1 demands of a server about CONNECT, CONNACK and strings; docs/broker-conformance.md is the index."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from broker_peer import BrokerThread, Peer
from umqtt_broker import Permission
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBLISH

MakePeer = Callable[..., Peer]


class Witness(Permission):
    """Accepts everyone and keeps the content of CONNECT."""

    def __init__(self) -> None:
        self.seen = []

    def connect(self, packet, peer) -> int:
        del peer
        self.seen.append(packet)
        return 0


def connect_with(flags: int, *fields: bytes) -> bytes:
    """Return a CONNECT with these flags and fields, whether they match or not."""
    return encoder.encode(
        0x10, b"\0\x04MQTT\x04" + struct.pack(">BH", flags, 0) + b"".join(encoder.string(field) for field in fields)
    )


def test_the_fields_of_connect_are_read_in_their_order(start_broker) -> None:
    witness = Witness()
    broker = start_broker(permission=witness)
    with Peer(broker.port) as peer:
        peer.send(connect_with(0b1110_1110, b"client", b"will/topic", b"will payload", b"user", b"pass\0word"))
        assert peer.expect(CONNACK).body == b"\0\0"
    (packet,) = witness.seen
    assert packet.client_id == b"client"
    assert tuple(packet.will)[:4] == (b"will/topic", b"will payload", 1, True)
    assert (packet.user_name, packet.password) == (b"user", b"pass\0word")


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (0b0000_0010, (b"c", b"user")),
        (0b1000_0010, (b"c",)),
        (0b1000_0010, (b"c", b"user", b"password")),
        (0b1100_0010, (b"c", b"user")),
        (0b0000_0110, (b"c",)),
        (0b0000_0110, (b"c", b"will")),
        (0b0000_0010, (b"c", b"will", b"payload")),
        (0b0000_0010, ()),
        (0b0001_1110, (b"c", b"will", b"payload")),
        (0b1000_0010, (b"c", b"\xff")),
        (0b1000_0010, (b"c", b"a\0b")),
        (0b0000_0110, (b"c", b"\xed\xa0\x80", b"payload")),
    ],
    ids=[
        "user name without its flag", "no user name", "password without its flag", "no password", "no will topic",
        "no will payload", "will without its flag", "no client identifier", "will QoS 3", "user name not UTF-8",
        "NUL in the user name", "surrogate in the will topic",
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_the_flags_close_the_connection_without_connack(
    start_broker, flags: int, fields
) -> None:
    with Peer(start_broker().port) as peer:
        peer.send(connect_with(flags, *fields))
        assert peer.wait_closed() == []


def test_every_client_identifier_that_must_be_allowed_is_allowed_and_is_one_of_its_own(start_broker) -> None:
    allowed = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = {allowed[i : i + 1] for i in range(len(allowed))} | {allowed[i : i + 23] for i in range(0, 40, 13)}
    broker = start_broker()
    for present in (False, True):
        for name in sorted(names):
            with Peer(broker.port) as peer:
                assert peer.connect(name, clean_session=False) is present, name
    assert broker.call(lambda: len(broker.view.sessions)) == len(names)


def test_behind_a_refused_connect_nothing_is_processed(broker: BrokerThread, peer: MakePeer) -> None:
    watcher = peer(b"watcher")
    watcher.subscribe(b"#", 0)
    with Peer(broker.port) as refused:
        rest = (
            encoder.subscribe(1, (b"#", 0))
            + encoder.publish(b"a", b"x")
            + encoder.publish(b"b", b"y", 1, 2, retain=True)
        )
        refused.send(encoder.connect(b"", clean_session=False) + rest)
        assert refused.expect(CONNACK).body == b"\0\x02"
        assert refused.wait_closed() == []
    assert watcher.flush() == []


def test_a_refused_connect_says_no_session_present_even_if_there_is_one(broker: BrokerThread, peer: MakePeer) -> None:
    peer(b"client", clean_session=False).disconnect()
    with Peer(broker.port) as refused:
        refused.send(encoder.connect(b"client", clean_session=False).replace(b"MQTT\x04", b"MQTT\x06"))
        assert refused.expect(CONNACK).body == b"\0\x01"
        assert refused.wait_closed() == []


def test_connack_is_the_first_packet_whatever_waits(peer: MakePeer, broker: BrokerThread) -> None:
    client, publisher = peer(b"client", clean_session=False), peer(b"publisher")
    client.subscribe(b"a", 2)
    publisher.publish(b"a", b"1", 1)
    client.receive_message(acknowledge=False)
    client.reset()
    for qos in (1, 2):
        publisher.publish(b"a", b"2", qos)
    with Peer(broker.port) as again:
        again.send(encoder.connect(b"client", clean_session=False))
        assert [again.receive().kind for _ in range(4)] == [CONNACK, PUBLISH, PUBLISH, PUBLISH]


def test_retained_messages_outlive_the_session_that_published_them(peer: MakePeer) -> None:
    publisher = peer(b"publisher")
    publisher.publish(b"state", b"kept", 1, retain=True)
    publisher.disconnect()
    late = peer(b"late")
    late.subscribe(b"state", 0)
    assert late.receive_message().payload == b"kept"


def test_without_a_will_nothing_is_published_when_the_connection_drops(broker: BrokerThread, peer: MakePeer) -> None:
    watcher = peer(b"watcher")
    watcher.subscribe(b"#", 0)
    peer(b"silent").reset()
    broker.wait_until(lambda: broker.stats.connections == 1)
    assert watcher.flush() == []


def test_a_will_is_published_once(broker: BrokerThread, peer: MakePeer) -> None:
    watcher = peer(b"watcher")
    watcher.subscribe(b"will", 1)
    peer(b"client", clean_session=False, will=(b"will", b"gone", 1, False)).reset()
    assert watcher.receive_message().payload == b"gone"
    client = peer(b"client", clean_session=False)
    client.reset()
    broker.wait_until(lambda: broker.stats.connections == 1)
    assert watcher.flush() == []


def test_a_byte_order_mark_is_a_character_like_any_other(peer: MakePeer) -> None:
    mark = b"\xef\xbb\xbf"
    with_mark, without, publisher = peer(mark + b"client"), peer(b"client"), peer(b"publisher")
    assert with_mark.subscribe(mark + b"a", 0) == without.subscribe(b"a", 0) == 0
    publisher.publish(mark + b"a", b"marked", 1)
    assert without.flush() == []
    assert with_mark.receive_message().topic_name == mark + b"a"


def test_disconnect_with_reserved_bits_is_a_violation_and_the_will_goes_out(peer: MakePeer) -> None:
    watcher = peer(b"watcher")
    watcher.subscribe(b"will", 0)
    client = peer(b"client", will=(b"will", b"gone", 0, False))
    client.send(b"\xe1\0")
    assert client.wait_closed() == []
    assert watcher.receive_message().payload == b"gone"


def test_pingreq_is_answered(peer: MakePeer) -> None:
    client = peer(b"client")
    client.send(encoder.pingreq())
    packet = client.receive()
    assert (packet.kind, packet.body) == (13, b"")
