"""Subscription options and identifiers of MQTT 5, as they are written in SUBSCRIBE."""

from test_mqtt5 import Link, up
from umqtt_testkit import encoder
from umqtt_testkit.encoder import connack, properties
from umqtt_testkit.portable import equal, raises

from umqtt_robust import Client
from umqtt_robust.errors import Downgraded, InvalidArgument


def _asked(link):
    """Return (topic filter, options, identifier) of each SUBSCRIBE since the last call."""
    found = []
    for first, body in link.packets():
        if first == 0x82:
            told, at = encoder.parse_properties(body, 2)
            topic_filter, at = encoder.parse_string(body, at)
            equal(at, len(body) - 1)
            found.append((topic_filter, body[at], told.pop("subscription_identifier", 0)))
            equal(told, {})
    return found


def test_every_option_stands_where_the_standard_has_it():
    # Planted: retain handling is shifted one bit too far to the left.
    link = Link(up())
    mqtt5 = link.session.part("mqtt5")
    for name, values, lowest in (
        ("no_local", (False, True), 2), ("retain_as_published", (False, True), 3), ("retain_handling", (0, 1, 2), 4),
    ):  # fmt: skip
        for value in values:
            for qos in range(3):
                mqtt5.set_options("a/+", **{name: value})
                link.session.subscribe("a/+", qos)
                equal(_asked(link), [(b"a/+", qos | int(value) << lowest, 0)])
    for identifier in (1, 127, 128, 268435455):
        mqtt5.set_options("b", no_local=True, retain_as_published=True, retain_handling=2, identifier=identifier)
        link.session.subscribe("b", 1)
        link.session.subscribe("c", 1)
        equal(sorted(_asked(link)), [(b"b", 0x2D, identifier), (b"c", 1, 0)])


def test_options_go_again_with_their_subscription_and_not_with_unsubscribe():
    # Planted: forget() drops the options.
    link = Link(up())
    link.session.part("mqtt5").set_options("b", no_local=True, identifier=9)
    link.session.subscribe("b", 1)
    equal(_asked(link), [(b"b", 5, 9)])
    link.session.close()
    link.open(up())
    equal(_asked(link), [(b"b", 5, 9)])
    link.session.unsubscribe("b")
    first, body = link.packets()[0]
    equal((first, body[2:]), (0xA2, b"\0" + encoder.string(b"b")))


def test_a_broker_without_identifiers_gets_none():
    # Planted: the identifier is sent to a broker that ends the link because of it.
    link = Link(up(subscription_identifier_available=0))
    link.session.part("mqtt5").set_options("b", retain_handling=1, identifier=9)
    link.session.subscribe("b")
    equal(_asked(link), [(b"b", 16, 0)])
    equal([type(error) for error in link.errors], [Downgraded])


def test_an_identifier_reaches_the_handler():
    # Planted: the property is treated as malformed.
    link = Link(up())
    link.give(encoder.publish(b"b", b"x", properties=properties(subscription_identifier=[9, 300])))
    equal(link.messages, [(b"b", b"x", {"subscription_identifier": [9, 300]})])


def test_a_broker_of_mqtt_3_1_1_gets_the_subscription_without_its_options():
    # Planted: the options are written into the QoS byte of MQTT 3.1.1.
    link = Link(protocol="auto")
    link.session.part("mqtt5").set_options("b", no_local=True, identifier=9)
    link.sent = b""
    link.session.open(link._write, "old")
    link.lost(connack(False, 1))
    link.open(connack(), "old")
    link.session.subscribe("b", 1)
    equal([body[2:] for first, body in link.packets() if first == 0x82], [encoder.string(b"b") + b"\1"])


def test_options_that_may_not_be_are_refused_at_the_call():
    # Planted: no_local is accepted for a shared subscription, although a broker ends every link because of it.
    mqtt5 = Client("c", "mqtt://h", protocol=5).part("mqtt5")
    for topic_filter, wrong in (
        ("a", {"retain_handling": 3}), ("a", {"retain_handling": -1}), ("a", {"retain_handling": "1"}),
        ("a", {"identifier": 268435456}), ("a", {"identifier": -1}), ("a", {"identifier": "7"}), ("a/#/b", {}),
        ("$share/g/a", {"no_local": True}),
    ):  # fmt: skip
        raises(InvalidArgument, mqtt5.set_options, topic_filter, **wrong)
    mqtt5.set_options("$share/g/a", identifier=1)
    raises(InvalidArgument, Client("c", "mqtt://h").part, "mqtt5")
