"""Statements of MQTT 5 that no other test proves, by the numbers in broker-conformance-mqtt5.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_peer import BrokerThread, Peer, StartBroker
from peer5 import Peer5
from umqtt_broker.access.permission import Permission, Rights
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL

NONE = b"\0"

# A packet of a connected client, and the reason code of the DISCONNECT that answers it.
BROKEN = {
    "PUBLISH at QoS 3": (b"\x36\x06\0\1a\0\1\0", 0x81),
    "DUP at QoS 0": (b"\x38\x04\0\1a\0", 0x81),
    "PUBLISH without properties": (b"\x30\x03\0\1a", 0x81),
    "PUBLISH with packet identifier 0": (encoder.publish(b"a", b"", 1, 0, properties=NONE), 0x82),
    # 3.3.2.1: "It is a Protocol Error if the Topic Name is zero length and there is no Topic Alias."
    "PUBLISH without a topic name": (encoder.publish(b"", b"", properties=NONE), 0x82),
    "wildcard in a topic name": (encoder.publish(b"a/+", b"", properties=NONE), 0x90),
    "U+0000 in a topic name": (encoder.publish(b"a\0", b"", properties=NONE), 0x81),
    "topic name that is no UTF-8": (encoder.publish(b"\xed\xa0\x80", b"", properties=NONE), 0x81),
    "PUBREL with other flags": (b"\x60\x02\0\1", 0x81),
    "reason code of PUBACK": (encoder.acknowledgement(PUBACK, 1, b"\x92"), 0x82),
    "SUBSCRIBE with other flags": (b"\x80" + encoder.subscribe(1, (b"a", 0), properties=NONE)[1:], 0x81),
    "SUBSCRIBE without a filter": (encoder.subscribe(1, properties=NONE), 0x82),
    "SUBSCRIBE with reserved bits": (encoder.subscribe(1, (b"a", 0x40), properties=NONE), 0x81),
    "no-local in a shared subscription": (encoder.subscribe(1, (b"$share/g/a", 4), properties=NONE), 0x82),
    "filter that is no UTF-8": (encoder.subscribe(1, (b"\xff", 0), properties=NONE), 0x81),
    "empty filter": (encoder.subscribe(1, (b"", 0), properties=NONE), 0x81),
    "UNSUBSCRIBE with other flags": (b"\xa0" + encoder.unsubscribe(1, b"a", properties=NONE)[1:], 0x81),
    "UNSUBSCRIBE without a filter": (encoder.unsubscribe(1, properties=NONE), 0x82),
    "UNSUBSCRIBE of what is no UTF-8": (encoder.unsubscribe(1, b"\xff", properties=NONE), 0x81),
    "DISCONNECT with flags": (b"\xe1\x00", 0x81),
    "AUTH with flags": (b"\xf1\x00", 0x81),
    "AUTH without a method in CONNECT": (b"\xf0\x00", 0x82),
    "second CONNECT": (encoder.connect(b"c", properties=NONE), 0x82),
    "wildcard in a response topic": (
        encoder.publish(b"a", b"", properties=encoder.properties(response_topic=b"a/#")),
        0x82,
    ),
    "response topic that is no UTF-8": (
        encoder.publish(b"a", b"", properties=encoder.properties(response_topic=b"\xff")),
        0x81,
    ),
    "content type that is no UTF-8": (
        encoder.publish(b"a", b"", properties=encoder.properties(content_type=b"\xff")),
        0x81,
    ),
    "user property that is no UTF-8": (
        encoder.publish(b"a", b"", properties=encoder.properties(user_property=(b"a", b"\xff"))),
        0x81,
    ),
    "properties with a length longer than it need be": (b"\x30\x05\0\1a\x80\0", 0x81),
}

Connect5 = Callable[..., Peer5]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_packet_is_answered_with_its_reason_and_the_will_goes_out(peer5: Connect5, name: str) -> None:
    # Planted: the flags of UNSUBSCRIBE are not checked.
    packet, reason = BROKEN[name]
    watcher = peer5(b"watcher")
    watcher.subscribe5((b"w", 0))
    client = peer5(b"client", will=(b"w", b"gone", 0, False))
    client.send(packet + encoder.pingreq())
    # Nothing follows the DISCONNECT: no PINGRESP, and it has no session expiry interval.
    (last,) = client.wait_closed()
    assert last.reason_codes == bytes((reason,)) and set(last.properties) <= {"reason_string"}
    assert watcher.receive_message().payload == b"gone"


def test_each_qos_has_its_answer_and_a_packet_identifier_is_a_message_until_it_is_complete(peer5: Connect5) -> None:
    # Planted: the identifier of an acknowledged QoS 1 message stays in use; a repeated QoS 2 message is routed again;
    # DUP is passed on.
    client, other = peer5(b"client"), peer5(b"other")
    other.subscribe5((b"#", 2))

    def send(qos: int, packet_id: int, payload: bytes, *, dup: bool = False) -> None:
        client.send(encoder.publish(b"t", payload, qos, packet_id, dup=dup, properties=NONE))
        if qos:
            assert client.expect(PUBACK if qos == 1 else PUBREC, packet_id).reason_codes == b"\0"

    send(0, 0, b"0")
    send(1, 7, b"1", dup=True)
    send(1, 7, b"new", dup=True)
    send(2, 8, b"2")
    send(2, 8, b"2", dup=True)
    for _ in range(2):
        client.send(encoder.acknowledgement(PUBREL, 8))
        client.expect(PUBCOMP, 8)
    send(2, 8, b"3", dup=True)
    got = [other.receive_message() for _ in range(5)]
    assert [(one.qos, one.payload, one.dup) for one in got] == [
        (0, b"0", False), (1, b"1", False), (1, b"new", False), (2, b"2", False), (2, b"3", False),
    ]  # fmt: skip
    assert [one for one in other.flush() if one.kind == PUBLISH] == []


class _OneTopic(Rights):
    def may_publish(self, topic_name: bytes) -> bool:
        return topic_name == b"allowed"


class _Limited(Permission):
    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        del username
        return _OneTopic() if client_id == b"client" else None


def test_an_identifier_that_a_pubrec_refused_is_free_again(start_broker: StartBroker) -> None:
    # Planted: the identifier is kept as if its message had been accepted.
    broker = start_broker(permission=_Limited())
    with Peer5(broker.port) as client, Peer5(broker.port) as other:
        other.connect5(b"other")
        other.subscribe5((b"#", 0))
        client.connect5(b"client")
        for topic_name, reason in ((b"denied", b"\x87"), (b"allowed", b"\0")):
            client.send(encoder.publish(topic_name, b"x", 2, 3, properties=NONE))
            assert client.expect(PUBREC, 3).reason_codes == reason
        assert other.receive_message().topic_name == b"allowed" and other.flush() == []


def test_what_is_unacknowledged_comes_again_in_order_and_at_no_other_time(peer5: Connect5) -> None:
    # Planted: PUBLISH is sent again after its PUBREC; new packet identifiers; no DUP.
    options = {"session_expiry_interval": 100}
    client = peer5(b"client", **options)
    client.subscribe5((b"t", 2))
    sender = peer5(b"sender")
    for number in range(6):
        sender.publish5(b"t", b"%d" % number, 1 + number % 2, message_expiry_interval=1000)
    first = [client.receive_message(acknowledge=False) for _ in range(6)]
    assert not any(one.dup for one in first) and client.flush() == []
    assert len({one.packet_id for one in first}) == 6
    # The last QoS 2 message first: PUBRELs come again in the order of the PUBRECs.
    for one in (first[5], first[1]):
        client.send(encoder.acknowledgement(PUBREC, one.packet_id))
        assert client.expect(PUBREL, one.packet_id).reason_codes == b"\0"
    client.send(encoder.acknowledgement(PUBACK, first[0].packet_id, b"\x80"))
    assert client.flush() == []
    client.reset()
    back = peer5(b"client", clean=False, **options)
    got = back.flush() + back.flush()
    assert [(one.kind, one.packet_id) for one in got] == [
        *((PUBREL, one.packet_id) for one in (first[5], first[1])),
        *((PUBLISH, one.packet_id) for one in first[2:5]),
    ]
    assert [(one.payload, one.dup) for one in got[2:]] == [(one.payload, True) for one in first[2:5]]


def test_everything_but_messages_is_processed_while_the_window_is_full(peer5: Connect5) -> None:
    # Planted: the SUBACK is kept back behind queued messages.
    client = peer5(b"client", receive_maximum=1)
    client.subscribe5((b"t", 1))
    sender = peer5(b"sender")
    for _ in range(3):
        sender.publish5(b"t", b"x", 1)
    held = client.receive_message(acknowledge=False)
    assert client.subscribe5((b"other", 1)) == b"\1"
    assert client.publish5(b"elsewhere", b"", 2) == 0
    client.send(encoder.pingreq())
    assert client.receive().kind == PINGRESP
    client.send(encoder.acknowledgement(PUBACK, held.packet_id))
    assert client.receive_message().payload == b"x"


def test_every_password_and_user_name_may_stand_alone(broker: BrokerThread) -> None:
    # Planted: MQTT 3.1.1's rule that a password requires a user name.
    for options in ({"user_name": b"u"}, {"password": b"p"}, {"user_name": b"u", "password": b"p"}):
        with Peer5(broker.port) as peer:
            peer.connect5(b"client", **options)
    for data in (
        b"\0\4MQTT\5\x82\0\0\0\0\1c",  # the flag without a user name
        b"\0\4MQTT\5\x42\0\0\0\0\1c",  # the flag without a password
        b"\0\4MQTT\5\x02\0\0\0\0\1c\0\1u",  # a field without a flag
        b"\0\4MQTT\5\x06\0\0\0\0\1c",  # the flag without a will
        b"\0\4MQTT\5\x0a\0\0\0\0\1c",  # a QoS without a will
        b"\0\4MQTT\5\x22\0\0\0\0\1c",  # a retain flag without a will
        b"\0\4MQTT\5\x1e\0\0\0\0\1c\0\0\1w\0\0",  # a will at QoS 3
        b"\0\4MQTT\5\x03\0\0\0\0\1c",  # the reserved flag
        b"\0\4MQTT\5\x82\0\0\0\0\1c\0\1\xff",  # a user name that is not UTF-8
        b"\0\4MQTT\5\x06\0\0\0\0\1c\0\0\1\xff\0\0",  # a will topic that is not UTF-8
    ):
        with Peer5(broker.port) as peer:
            peer.send(encoder.encode(0x10, data) + encoder.publish(b"t", b"", 1, 1, properties=NONE))
            (refused,) = peer.wait_closed()
            assert (refused.kind, refused.present) == (CONNACK, False) and refused.reason_codes[0] >= 0x80, data


def test_another_protocol_is_refused(broker: BrokerThread) -> None:
    # Planted: a level above 5 is treated as 5.
    for data, answer in ((b"\0\4MQTT\6\2\0\0\0\0\1c", b"\x20\2\0\1"), (b"\0\4QTTM\5\2\0\0\0\0\1c", b"")):
        with Peer(broker.port) as peer:
            peer.send(encoder.encode(0x10, data))
            assert b"".join(encoder.encode(one.kind << 4, one.body) for one in peer.wait_closed()) == answer


def test_connack_is_first_and_one_whatever_waits(broker: BrokerThread, peer5: Connect5) -> None:
    # Planted: the queue is opened before CONNACK; session present with Clean Start.
    options = {"session_expiry_interval": 100}
    peer5(b"client", **options).subscribe5((b"t", 1))
    peer5(b"sender").publish5(b"t", b"x", 1)
    back = peer5(b"client", clean=False, **options)
    assert [one.kind for one in back.flush() + back.flush()] == [PUBLISH]
    with Peer5(broker.port) as anew:
        assert not anew.connect5(b"client", **options).present


def test_a_message_at_qos_2_ends_with_the_session_of_the_member_that_it_was_sent_to(
    broker: BrokerThread, peer5: Connect5
) -> None:
    # Planted: QoS 2 messages of an ending session are given back to its group.
    ends, stays = peer5(b"ends"), peer5(b"stays")
    ends.subscribe5((b"$share/g/t", 2))
    peer5(b"sender").publish5(b"t", b"x", 2)
    ends.receive_message(acknowledge=False)
    stays.subscribe5((b"$share/g/t", 2))
    ends.reset()
    broker.wait_until(lambda: broker.stats.sessions == 2)
    assert stays.flush() + stays.flush() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_that_refuses_a_message_of_its_group_ends_it(peer5: Connect5, qos: int) -> None:
    # Planted: the message is given to the other member.
    members = [peer5(name) for name in (b"one", b"two")]
    for member in members:
        member.subscribe5((b"$share/g/t", qos))
    peer5(b"sender").publish5(b"t", b"x", qos)
    for member in members:
        for got in member.flush() + member.flush():
            member.send(encoder.acknowledgement(PUBACK if qos == 1 else PUBREC, got.packet_id, b"\x80"))
            member.reset()
            members.remove(member)
    (left,) = members
    assert left.flush() + left.flush() == []
