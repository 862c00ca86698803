"""A received message that breaks the standard without harm to the stream holds up none of those behind it."""

from picky_broker import PickyBroker
from umqtt_testkit.encoder import PUBACK, PUBREC, publish
from umqtt_testkit.portable import equal
from world import Broker, World, version, with_mqtt5

HEAP = "2M"

# Name: (topic name, whether the message is handed over).
_ODD = {
    "a wildcard": (b"down/+/x", True),
    "a wildcard that does not end the name": (b"down/#/x", True),
    "a wildcard at the end": (b"down/#", True),
    "not UTF-8": (b"down/\xff\xfe", False),
    "a surrogate": (b"down/\xed\xa0\x80", False),
    "NUL": (b"down/\0x", False),
    "empty": (b"", False),
}


def _connected(manual=False, size=1024, **options):
    world = World([Broker()], rx_size=size, manual_ack=manual, **options)
    world.client.subscribe(b"down/#", 1)
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    return world


def _properties(payload):
    return b"\x0b\x09\0\x08" + payload[:8] if version[0] == 5 else b""


def test_messages_with_a_bad_topic_name_are_acknowledged_counted_and_reported_once():
    # Planted: a wildcard in a topic name ends the link; a dropped message is not acknowledged; NUL cuts a topic name.
    for name in sorted(_ODD):
        for qos in (0, 1, 2):
            for manual in (False, True):
                for size in (1024, 128):
                    try:
                        _give_odd(name, qos, manual, size)
                    except BaseException:
                        print(name, qos, manual, size)
                        raise


def _give_odd(name, qos, manual, size):
    topic, comes = _ODD[name]
    world = _connected(manual, size)
    client = world.client
    broker = world.brokers[0]
    large = []
    client.on_large = lambda topic, offset, size, chunk: large.append(topic) if not offset else None

    def take(topic, payload):
        world.messages.append((topic, payload))
        if manual and client.flags & 6:
            client.acknowledge(client.packet_id)

    client.on_message = take
    mark = len(broker.seen)
    for i in range(3):
        payload = b"odd %05d" % i + bytes(200 if size == 128 else 0)
        world.wire.send(publish(topic, payload, qos, 10 + i, properties=_properties(payload)))
        if qos == 2:
            world.wire.send(b"\x62\x02\0" + bytes((10 + i,)))
    for i in range(5):
        assert broker.send(b"c", b"down/good", b"good %04d" % i, 1 + i % 2)
    assert world.run(lambda: [one for one in world.messages if one[1] == b"good 0004"])
    world.settle()
    good = [payload for topic, payload in world.messages if topic == b"down/good"]
    equal(sorted(good), [b"good %04d" % i for i in range(5)])
    equal(len([one for one in world.messages if one[0] == topic]) + len(large), 3 if comes else 0)
    answers = [
        (head >> 4, body[1]) for head, body in broker.seen[mark:] if head >> 4 in (PUBACK, PUBREC) and body[1] > 9
    ]
    equal(answers, [(PUBACK if qos == 1 else PUBREC, 10 + i) for i in range(3)] if qos else [])
    equal((client.malformed, client.too_large, len(world.wires)), (3, 0, 1))
    told = world.of_kind("error")
    equal([error.__class__.__name__ for error in told], ["Malformed"])
    equal(told[0].args[1], topic)


test_bad_topic_names_with_mqtt_5 = with_mqtt5(
    test_messages_with_a_bad_topic_name_are_acknowledged_counted_and_reported_once
)


def test_dup_at_qos_0_and_a_qos_above_the_granted_one_are_harmless():
    # Planted: DUP at QoS 0 ends the link.
    world = _connected()
    client = world.client
    for head in (0x38, 0x39):
        payload = b"odd %04d" % head
        packet = bytearray(publish(b"down/1", payload, properties=_properties(payload)))
        packet[0] = head
        world.wire.send(bytes(packet))
    payload = b"qos 0002"
    world.wire.send(publish(b"down/1", payload, 2, 9, retain=True, properties=_properties(payload)) + b"\x62\2\0\x09")
    assert world.run(lambda: len(world.messages) == 3)
    equal((client.malformed, len(world.wires), client.reconnects), (2, 1, 0))
    equal([error.args for error in world.of_kind("error")], [("DUP at QoS 0", b"down/1")])


test_dup_at_qos_0_with_mqtt_5 = with_mqtt5(test_dup_at_qos_0_and_a_qos_above_the_granted_one_are_harmless)


def test_a_session_whose_stored_packet_ends_each_link_is_left_and_that_is_said_once():
    # Planted: links that end by a broken packet are not counted.
    for waiting in (0, 3):  # messages of the client's own
        broker = PickyBroker("stored")
        world = World([broker])
        client = world.client
        client.subscribe(b"down/#", 1)
        assert world.run(lambda client=client: client.connected and client.subscribed)
        broker.stored = publish(b"down/1", b"x", 3, 7)
        world.wire.break_now()
        for i in range(waiting):
            client.publish(b"up/0", b"%d" % i, 1)
        world.settle()
        said = [error for error in world.of_kind("error") if "leaving the session" in error.args[0]]
        assert world.run(lambda: not client.pending and client.connected and client.subscribed, 3600000), world.events
        said = [error for error in world.of_kind("error") if "leaving the session" in error.args[0]]
        equal([error.args[1] for error in said], ["malformed PUBLISH"])
        equal(sorted(set(broker.taken)), [(b"up/0", b"%d" % i) for i in range(waiting)])
        equal(client.quarantined, 0)
        assert broker.links <= 1 + 5 + 2, broker.links
        assert broker.send(b"c", b"down/1", b"command", 1)
        assert world.run(lambda world=world: (b"down/1", b"command") in world.messages)


test_a_session_with_a_broken_packet_and_mqtt_5 = with_mqtt5(
    test_a_session_whose_stored_packet_ends_each_link_is_left_and_that_is_said_once
)
