"""Behind a mount point everything looks as without one, including what a wildcard does not match [MQTT-4.7.2-1]."""

import pytest
from broker_peer import BrokerThread, Peer, StartBroker
from umqtt_broker import Listener
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBLISH

MOUNT = b"site/"

# Bytes of the longest topic name [MQTT-4.7.3-3].
MAX_LENGTH = 65535


@pytest.fixture
def ports(start_broker: StartBroker) -> tuple[int, int]:
    """Provide ports behind the mount point and outside it."""
    broker: BrokerThread = start_broker(listeners=(Listener(port=0, mount_point=MOUNT), Listener(port=0)))
    inside, outside = broker.view.listening_ports
    return inside, outside


def names(peer: Peer) -> list[bytes]:
    return [packet.topic_name for packet in peer.flush() if packet.kind == PUBLISH]


@pytest.mark.parametrize("prefix", [b"", b"$share/g/"])
@pytest.mark.parametrize(
    ("topic_filter", "is_reached"),
    [(b"#", False), (b"+/a", False), (b"+/#", False), (b"$x/a", True), (b"$x/#", True), (b"$x/+", True)],
)
def test_a_wildcard_at_the_start_does_not_reach_names_that_begin_with_dollar(
    ports: tuple[int, int], prefix: bytes, topic_filter: bytes, is_reached: bool
) -> None:
    inside, outside = ports
    with Peer(inside) as client, Peer(inside) as publisher, Peer(outside) as above:
        client.connect(b"client")
        publisher.connect(b"publisher")
        above.connect(b"above")
        assert above.subscribe(b"site/#", 0) == 0
        assert client.subscribe(prefix + topic_filter, 1) == 1
        publisher.publish(b"$x/a", b"1", 0)
        assert names(client) == ([b"$x/a"] if is_reached else [])
        # A client that sees the whole name sees nothing special in it.
        assert names(above) == [b"site/$x/a"]
        publisher.publish(b"y/a", b"1", 0)
        assert names(client) == ([] if is_reached else [b"y/a"])


def test_of_several_filters_those_count_that_reach_the_name(ports: tuple[int, int]) -> None:
    with Peer(ports[0]) as client, Peer(ports[0]) as publisher:
        client.connect(b"client")
        publisher.connect(b"publisher")
        client.subscribe(b"#", 2)
        client.subscribe(b"$x/a", 1)
        publisher.publish(b"$x/a", b"1", 2)
        packet = client.receive_message()
        assert (packet.topic_name, packet.qos) == (b"$x/a", 1)
        assert names(client) == []


def test_neither_do_retained_messages_of_such_names_come(ports: tuple[int, int]) -> None:
    with Peer(ports[0]) as client, Peer(ports[0]) as publisher:
        client.connect(b"client")
        publisher.connect(b"publisher")
        for topic_name in (b"$x/a", b"y/a"):
            publisher.publish(topic_name, b"1", 1, retain=True)
        for topic_filter, wanted in ((b"#", [b"y/a"]), (b"+/a", [b"y/a"]), (b"$x/#", [b"$x/a"])):
            client.subscribe(topic_filter, 0)
            assert names(client) == wanted


@pytest.mark.parametrize("qos", [0, 1])
def test_a_name_that_is_too_long_with_the_mount_point_closes_the_connection(ports: tuple[int, int], qos: int) -> None:
    longest = b"n" * (MAX_LENGTH - len(MOUNT))
    with Peer(ports[0]) as publisher:
        publisher.connect(b"publisher")
        publisher.publish(longest, b"fits", qos)
        # Nobody has subscribed: it is refused for its length alone.
        publisher.send(encoder.publish(longest + b"n", b"does not", qos, 7))
        assert publisher.wait_closed() == []


def test_so_does_the_topic_name_of_a_will(ports: tuple[int, int]) -> None:
    longest = b"n" * (MAX_LENGTH - len(MOUNT))
    inside, outside = ports
    with Peer(outside) as above, Peer(inside) as fits, Peer(inside) as does_not:
        above.connect(b"above")
        above.subscribe(b"#", 1)
        does_not.send(encoder.connect(b"does not", will=(longest + b"n", b"", 1, False)))
        assert does_not.wait_closed() == []
        fits.connect(b"fits", will=(longest, b"", 1, False))
        fits.close()
        assert above.receive_message().topic_name == MOUNT + longest
