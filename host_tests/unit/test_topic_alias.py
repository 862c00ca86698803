"""Topic aliases of MQTT 5: which topic names get one, and how wrong ones are handled."""

from test_mqtt5 import Link, published, up
from umqtt_testkit import encoder
from umqtt_testkit.encoder import properties
from umqtt_testkit.portable import equal, raises

from umqtt_robust import Client
from umqtt_robust.base_errors import LinkLost, ProtocolError
from umqtt_robust.errors import InvalidArgument

_DISCONNECT = 0xE0


def _sending(most, **options):
    link = Link(up(topic_alias_maximum=most, **options))
    link.session.part("mqtt5").most_aliases = 16
    return link


def _sent(link):
    """Return (topic name, alias or None) of each PUBLISH since the last call."""
    return [(each[1], each[3].get("topic_alias")) for each in [published(packet) for packet in link.packets()]]


def _publish(link, *topics):
    for topic in topics:
        link.session.publish(topic, b"x")
    return _sent(link)


def _receiving(most, **limits):
    link = Link(connect_properties={"topic_alias_maximum": most})
    for name in limits:
        setattr(link.session.part("mqtt5"), name, limits[name])
    link.open(up())
    return link


def _message(alias, topic, payload=b"x"):
    return encoder.publish(topic, payload, properties=properties(topic_alias=alias))


def test_the_topic_names_that_were_used_last_have_an_alias():
    # Planted: the alias that was assigned first is reassigned, even if it was used last.
    link = _sending(2)
    equal(_publish(link, "topic/a", "topic/b", "topic/a"), [(b"topic/a", 1), (b"topic/b", 2), (b"", 1)])
    equal(_publish(link, "topic/c", "topic/a", "topic/b"), [(b"topic/c", 2), (b"", 1), (b"topic/b", 2)])
    equal(_publish(link, "sho", "sho"), [(b"sho", None)] * 2)
    equal(_publish(_sending(0), "topic/a", "topic/a"), [(b"topic/a", None)] * 2)
    link = _sending(65535)
    link.session.part("mqtt5").most_aliases = 1
    equal(_publish(link, "topic/a", "topic/b", "topic/b"), [(b"topic/a", 1), (b"topic/b", 1), (b"", 1)])


def test_a_message_keeps_its_properties_and_its_payload():
    # Planted: the message's properties are still written with their old length.
    link = _sending(2)
    data = {"correlation_data": bytes(200)}
    for _ in range(2):
        link.session.publish("topic/a", bytes(3000), 1, properties=data)
    first, second = [published(packet) for packet in link.packets()]
    equal((first[1], second[1]), (b"topic/a", b""))
    for each in (first, second):
        equal(each[3:], (dict(data, topic_alias=1), bytes(3000)))


def test_only_what_was_put_defines_an_alias():
    # Planted: an alias counts as known as soon as its message is tried.
    link = _sending(2)
    write = link.session.out._write
    link.session.out._write = lambda buf, offset, size: 0  # the link takes nothing
    for _ in range(20):
        link.session.publish("topic/a", bytes(100))
    link.session.publish("topic/b", bytes(1000))
    assert link.session.discarded
    link.session.out._write = write
    equal(_sent(link)[0], (b"topic/a", 1))
    equal(_publish(link, "topic/b"), [(b"topic/b", 2)])


def test_what_is_sent_again_carries_its_topic_name_in_full():
    # Planted: a message with DUP uses an alias like any other.
    link = _sending(5)
    for _ in range(3):
        link.session.publish("topic/a", b"x", 1)
    equal(_sent(link), [(b"topic/a", 1), (b"", 1), (b"", 1)])
    link.session.close()
    link.open(encoder.connack(True, 0, properties(topic_alias_maximum=5)))
    packets = [published(packet) for packet in link.packets()]
    equal([(each[0], each[1], each[3]) for each in packets], [(0x3A, b"topic/a", {})] * 3)


def test_no_packet_grows_beyond_what_the_broker_takes():
    # Planted: the size of a packet is checked without its alias.
    for size in range(40, 60):
        link = _sending(5, maximum_packet_size=size)
        for payload in range(size):
            try:
                link.session.publish("topic/%d" % payload, bytes(payload))
            except InvalidArgument:
                break
            first, body = link.packets()[0]
            assert len(encoder.encode(first, body)) <= size, (size, payload)


def test_an_alias_from_the_broker_stands_for_its_topic_name():
    # Planted: a reassigned alias still means the old topic name.
    link = _receiving(2)
    link.session.on("b/+", lambda topic, payload: link.messages.append((b"handler", topic, payload)))
    found, _ = encoder.parse_properties(link.connect[1], 10)
    equal(found["topic_alias_maximum"], 2)
    raw = []
    for alias, topic in ((1, b"a/1"), (2, b"b/2"), (1, b""), (2, b""), (1, b"b/3"), (1, b"")):
        link.give(_message(alias, topic))
    equal([message[:2] for message in link.messages],
          [(b"a/1", b"x"), (b"handler", b"b/2"), (b"a/1", b"x"), (b"handler", b"b/2"), (b"handler", b"b/3"),
           (b"handler", b"b/3")])  # fmt: skip
    link.session.on_raw = lambda buf, t, k, p, end: raw.append((bytes(buf[t:k]), bytes(buf[p:end])))
    link.give(_message(2, b"", b"payload") + _message(1, b"a/9", b"full"))
    equal(raw, [(b"b/2", b"payload"), (b"a/9", b"full")])
    equal(link.session.unhandled, 0)


def test_what_waits_and_what_comes_at_qos_2_has_its_topic_name():
    # Planted: a message is stored under the empty topic name with which it arrived.
    link = _receiving(2)
    link.give(_message(1, b"a/1"))
    link.give(encoder.publish(b"", b"two", 2, 6, properties=properties(topic_alias=1)))
    link.session.part("backpressure").set_full(True)
    link.give(encoder.publish(b"", b"one", 1, 7, properties=properties(topic_alias=1)))
    link.session.part("backpressure").set_full(False)
    link.give(encoder.acknowledgement(encoder.PUBREL, 6))
    link.packets()
    equal(sorted([message[:2] for message in link.messages]), [(b"a/1", b"one"), (b"a/1", b"two"), (b"a/1", b"x")])


def test_an_alias_that_the_link_does_not_know_ends_it_with_the_reason():
    # Planted: alias 0 means the last one.
    for most, packets, reason in (
        (2, [_message(0, b"a")], 0x94),
        (2, [_message(3, b"a")], 0x94),
        (2, [_message(1, b"")], 0x82),
        (2, [_message(1, b"a"), _message(2, b"")], 0x82),
        (0, [_message(1, b"a")], 0x94),
    ):
        link = _receiving(most)
        for packet in packets[:-1]:
            link.give(packet)
        seen = len(link.messages)
        try:
            link.give(packets[-1])
            raise AssertionError("the link is up")
        except ProtocolError:
            link.session.out.flush()
        equal(encoder.split_packets(link.sent)[0][-1], (_DISCONNECT, bytes((reason,))))
        link.session.close()
        equal(len(link.messages), seen)
        link.open(up())  # the aliases of the last link are forgotten
        equal(type(link.lost(_message(1, b""))), ProtocolError)
    link = _sending(5)  # the broker may use no alias
    equal(type(link.lost(_message(1, b"a"))), ProtocolError)


def test_names_beyond_max_alias_bytes_end_the_link_and_the_aliases():
    # Planted: the limit applies to each topic name.
    link = _receiving(5, max_alias_bytes=20)
    for _ in range(3):
        link.give(_message(1, b"topic/1234") + _message(2, b"topic/5678") + _message(2, b""))
    session = link.session
    link.give(_message(3, b"t"))
    equal(len(link.messages), 10)  # it has its topic name, so it is handed over
    raises(LinkLost, session.work)
    session.close()
    link.open(up())
    found, _ = encoder.parse_properties(link.connect[1], 10)
    equal(found["topic_alias_maximum"], 0)
    equal(type(link.lost(_message(1, b"a"))), ProtocolError)


def test_aliases_need_mqtt_5():
    # Planted: the part is created, and waits for properties that never come.
    raises(InvalidArgument, Client("c", "mqtt://h").part, "mqtt5")
