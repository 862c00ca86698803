"""umqtt sub and pub with a broker that sends, or does not take, one message: the others pass, and that one is named."""

from __future__ import annotations

import json

import pytest
from umqtt_testkit.encoder import publish
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.wire import Type

from umqtt_cli.__main__ import run

# RabbitMQ makes a level + of a *, which AMQP allows in a routing key.
_ODD = {b"a/+": "wildcard in a topic", b"a/\xff": "topic is not UTF-8, or holds NUL", b"": "empty topic"}


@pytest.mark.parametrize("topic", sorted(_ODD), ids=repr)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_breaks_mqtt_holds_up_none_behind_it(capsys: pytest.CaptureFixture[str], topic: bytes, qos: int):
    """Planted: sub takes it for the end of the link, and says that it connects again."""
    comes = topic == b"a/+"
    count = 5 + comes

    def script(peer: ScriptedPeer) -> None:
        link = peer.accept()
        link.accept_session()
        link.answer(link.expect(Type.SUBSCRIBE))
        link.send(publish(topic, b"odd", qos, 7))
        if qos == 2:
            link.expect(Type.PUBREC, packet_id=7)
            link.send(b"\x62\2\0\7")
            link.expect(Type.PUBCOMP, packet_id=7)
        elif qos:
            link.expect(Type.PUBACK, packet_id=7)
        for number in range(5):
            link.send(publish(b"a/good", b"%d" % number, 0))
        while link.receive() is not None:
            pass

    with ScriptedPeer() as peer:
        peer.run(script)
        arguments = ["sub", "a/#", "--broker", peer.url, "--json", "--count", str(count), "--timeout", "60"]
        assert run(arguments) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["payload"] for line in lines] == ["odd"] * comes + [str(number) for number in range(5)]
    assert printed.err.count("breaks MQTT: ") == 1 and _ODD[topic] in printed.err
    assert "connecting again" not in printed.err


@pytest.mark.parametrize("qos", [1, 2])
def test_pub_names_a_message_at_which_the_broker_ends_each_link(capsys: pytest.CaptureFixture[str], qos: int):
    """Planted: pub waits for the acknowledgement until its timeout."""

    def script(peer: ScriptedPeer) -> None:
        for number in range(4):  # the one that begins the suspicion, and three strikes
            link = peer.accept()
            link.accept_session()
            if number:
                link.answer(link.expect(Type.PINGREQ))
            link.expect(Type.PUBLISH, topic_name=b"forbidden")
            link.reset()

    with ScriptedPeer() as peer:
        peer.run(script)
        code = run(["pub", "forbidden", "x", "--qos", str(qos), "--broker", peer.url, "--timeout", "60"])
    assert code == 4
    assert "the broker ends each link at it" in capsys.readouterr().err
