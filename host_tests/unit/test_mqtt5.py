"""MQTT 5: properties, reason codes, and what a broker's limits do to the session."""

import gc

from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBREC, PUBREL, UNSUBACK, acknowledgement, connack, properties
from umqtt_testkit.portable import Clock, equal, raises

from umqtt_robust import Client, Will, mqtt5
from umqtt_robust._platform import NEVER
from umqtt_robust.base_errors import LinkLost, ProtocolError
from umqtt_robust.errors import Downgraded, InvalidArgument, Refused
from umqtt_robust.policy import EXPIRED, REFUSED, TOO_LARGE, UNREADABLE
from umqtt_robust.store import MemoryStore

_NONE = b"\0"  # the length of empty properties
_DISCONNECT = 0xE0


class Link:
    """A client driven as a session; its link is two byte buffers."""

    def __init__(self, answer=None, **options):
        self.clock = Clock()
        self.errors = []
        self.dropped = []
        self.messages = []
        options.setdefault("clean_session", False)
        options.setdefault("protocol", 5)
        self.session = Client(b"c", "mqtt://h", ticks=self.clock.ticks_ms, on_error=self.errors.append, **options)
        self.session.on_dropped = lambda *arguments: self.dropped.append(arguments)
        self.session.on_message = self._message
        self.buf = bytearray(256)
        if answer is not None:
            self.open(answer)

    def _message(self, topic, payload):
        self.messages.append((topic, payload, self.session.properties))

    def _write(self, buf, offset, size):
        self.sent += bytes(buf[offset : offset + size])
        return size

    def open(self, answer, broker="b"):
        self.sent = b""
        self.session.open(self._write, broker)
        self.connect = self.packets()[0]
        self.give(answer)

    def give(self, data):
        """Deliver data from the broker."""
        self.buf[: len(data)] = data
        equal(self.session.receive(self.buf, len(data)), len(data))

    def packets(self):
        """Return (first byte, body) of each packet that the client has sent since the last call."""
        self.session.advance()
        if self.session.connected:
            self.session.work()
        packets, rest = encoder.split_packets(self.sent)
        equal(rest, b"")
        self.sent = b""
        return packets

    def lost(self, data):
        """Return the error with which the link ends when the broker sends this data."""
        try:
            self.give(data)
        except LinkLost as error:
            self.session.close()
            return error
        raise AssertionError("the link is up")


def up(**limits):
    return connack(False, 0, properties(**limits))


def published(packet):
    """Return (first byte, topic name, packet id, properties, payload) of a PUBLISH."""
    first, body = packet
    topic, packet_id, rest = encoder.parse_publish(first, body)
    found, at = encoder.parse_properties(rest, 0)
    return first, topic, packet_id, found, rest[at:]


ALL = {
    "payload_format_indicator": 1,
    "content_type": b"text/plain",
    "response_topic": b"reply/7",
    "correlation_data": b"\0\xff",
    "user_property": [(b"a", b"1"), (b"a", b"2")],
}


def test_properties_are_those_of_the_standard_both_ways():
    # Planted: a four-byte number is read as a two-byte one.
    wire = mqtt5.encode(ALL, 4)
    equal(encoder.parse_properties(wire, 0), (ALL, len(wire)))
    equal(mqtt5.encode({"user_property": [("\xe4", "\xb5")] * 60}, 4)[:2], b"\x9c\x04")
    wire = properties(message_expiry_interval=70000, subscription_identifier=[5, 300], **ALL)
    wanted = dict(ALL, message_expiry_interval=70000, subscription_identifier=[5, 300])
    equal(mqtt5.decode(b"xx" + wire + b"y", 2, len(wire) + 3, 16), (wanted, len(wire) + 2))


def test_what_repeated_properties_cost_grows_with_their_number():
    # Planted: each one copies the list of all before it, so a broker that sends 100,000 stops the program for minutes.
    if not hasattr(gc, "mem_alloc"):  # CPython: shown by what MicroPython allocates
        return
    used = []
    for number in (50, 400):
        wire = properties(user_property=[(b"", b"")] * number)
        gc.collect()
        gc.disable()
        before = gc.mem_alloc()
        mqtt5.decode(wire, 0, len(wire), 16)
        used.append(gc.mem_alloc() - before)
        gc.enable()
    assert used[1] < 12 * used[0], used


def test_properties_that_are_cut_or_that_may_not_stand_there_break_the_protocol():
    # Planted: the end of a field is not compared with that of the properties.
    wire = properties(message_expiry_interval=7, subscription_identifier=[300], **ALL)
    for end in range(len(wire)):
        raises(ProtocolError, mqtt5.decode, wire, 0, end, 16)
    for end in (1, 3, 7, 9, len(wire) - 2):  # in the middle of a property
        raises(ProtocolError, mqtt5.decode, bytes((end,)) + wire[1:], 0, len(wire), 16)
    twice = properties(content_type=[b"a", b"b"])
    for bad in (twice, b"\1\x7f", b"\x02\x21\0", properties(receive_maximum=1), b"\x05\x26\0\1a\0", b"\x02\x0b\x80"):
        raises(ProtocolError, mqtt5.decode, bad, 0, len(bad), 16)
    # A message that closes the link would come again. Planted: a value that only the sender may not use is refused.
    equal(mqtt5.decode(b"\2\1\x5e", 0, 3, 16), ({"payload_format_indicator": 94}, 3))


def test_properties_that_the_program_gets_wrong_are_refused_at_the_call():
    # Planted: any property is accepted in a PUBLISH, although the broker would close every link because of it.
    client = Client("c", "mqtt://h", protocol=5)
    for bad in (
        {"topic": b"x"},
        {"receive_maximum": 1},
        {"message_expiry_interval": 1},
        {"content_type": 7},
        {"content_type": b"\xff"},
        {"content_type": "x" * 65536},
        {"correlation_data": 7},
        {"correlation_data": bytes(65536)},
        {"payload_format_indicator": 256},
        {"payload_format_indicator": 2},  # a broker that checks it ends each link on which it is sent
        {"payload_format_indicator": "1"},
        {"user_property": [("a",)]},
        {"user_property": 7},
        {"response_topic": "a/+"},
    ):
        raises(InvalidArgument, client.publish, "t", b"", 1, properties=bad)
        equal(client.pending, 0)
    raises(InvalidArgument, Client("c", "mqtt://h").publish, "t", b"", 1, properties={"content_type": "x"})
    raises(InvalidArgument, Client, "c", "mqtt://h", protocol=3)
    # Planted: MQTT 3.1.1 drops them without a word.
    raises(InvalidArgument, Client, "c", "mqtt://h", connect_properties={"receive_maximum": 1})
    raises(InvalidArgument, Client, "c", "mqtt://h", will=Will("t", b"", properties={"content_type": "x"}))
    for bad in ({"content_type": "x"}, {"receive_maximum": 0}, {"maximum_packet_size": 0}):
        raises(InvalidArgument, Client, "c", "mqtt://h", protocol=5, connect_properties=bad)
    raises(InvalidArgument, Client, "c", "mqtt://h", protocol=5, will=Will("t", b"", properties={"topic_alias": 1}))


def test_connect_says_what_the_program_and_the_store_say():
    # Planted: the properties of the will precede the client identifier.
    link = Link(up(), will=Will("w", b"gone", 1, True, {"will_delay_interval": 30}), username="u", password="p",
                store=MemoryStore(20), connect_properties={"user_property": [("site", "north")]})  # fmt: skip
    expected = encoder.connect(
        b"c", clean_session=False, keep_alive=60, will=(b"w", b"gone", 1, True), user_name=b"u", password=b"p",
        properties=properties(user_property=[(b"site", b"north")], session_expiry_interval=0xFFFFFFFF,
                              receive_maximum=20),
        will_properties=properties(will_delay_interval=30),
    )  # fmt: skip
    found, at = encoder.parse_properties(link.connect[1], 10)
    wanted, _ = encoder.parse_properties(encoder.split_packets(expected)[0][0][1], 10)
    equal(found, wanted)
    equal(link.connect[1][at:], encoder.split_packets(expected)[0][0][1][at:])
    equal(link.connect[1][:10], encoder.split_packets(expected)[0][0][1][:10])
    found, _ = encoder.parse_properties(Link(up(), clean_session=True).connect[1], 10)
    equal(found, {"receive_maximum": 32})


def test_what_the_broker_grants_counts_for_its_link_alone():
    # Planted: the window of the last broker stays in force.
    link = Link(up(receive_maximum=2, server_keep_alive=7, assigned_client_identifier=b"given"), ping_after=20000)
    session = link.session
    for _ in range(5):
        session.publish("t", b"x", 1)
    equal([published(packet)[2] for packet in link.packets()], [1, 2])
    link.give(acknowledgement(PUBACK, 1))
    equal([published(packet)[2] for packet in link.packets()], [3])
    link.clock.advance(3500)
    equal(link.packets(), [(0xC0, b"")])
    session.close()
    link.open(up())
    equal(link.connect[1][8:10], b"\0\x3c")
    assert link.connect[1].endswith(b"\0\5given")
    equal(len(link.packets()), 4)
    equal(session.keep_alive_ms, 60000)
    equal(session.ping_after, 20000)


def test_a_message_that_expires_takes_what_is_left_of_its_life_along():
    # Planted: the lifetime begins again when the message leaves.
    link = Link()
    link.session.part("policy")
    link.session.publish("t", b"a", 1, expires_in=60000)
    link.session.publish("t", b"b", 1, expires_in=5000)
    for _ in range(10):
        link.clock.advance(1000)
        link.session.advance()
        for timer in link.session.timers:
            timer()
    equal([(each[2], each[3]) for each in link.dropped], [(b"b", EXPIRED)])
    link.open(up())
    equal(published(link.packets()[0])[3], {"message_expiry_interval": 50})
    link.session.publish("t", b"c", 0, expires_in=1500)
    equal(published(link.packets()[0])[3], {"message_expiry_interval": 2})


def test_a_packet_larger_than_the_broker_takes_is_refused_or_dropped_by_name():
    # Planted: the fixed header is not counted.
    for size in (100, 128, 129, 130, 131, 132, 16385, 16388, 16390):
        link = Link(queue_qos0=True)
        session = link.session
        fits = size - len(encoder.publish(b"t", b"", 1, 1, properties=_NONE)) - (0 if size < 130 else 1)
        fits -= size > 16387
        while len(encoder.publish(b"t", bytes(fits), 1, 1, properties=_NONE)) > size:
            fits -= 1
        session.publish("t", bytes(fits + 1), 1)
        session.publish("t", bytes(fits + 3), 0)
        session.publish("t", bytes(fits), 1)
        link.open(up(maximum_packet_size=size))
        equal([len(published(packet)[4]) for packet in link.packets()], [fits])
        equal([each[3] for each in link.dropped], [TOO_LARGE] * 2)
        equal((session.discarded, session.pending), (2, 1))
        raises(InvalidArgument, session.publish, "t", bytes(fits + 1), 1)
        equal((session.discarded, session.pending), (2, 1))


def test_what_the_broker_refuses_is_reported_and_holds_up_nothing():
    # Planted: a refusal counts as an acknowledgement.
    for qos, kind in ((1, PUBACK), (2, PUBREC)):
        link = Link(up())
        done = []
        link.session.on_acknowledged = done.append
        for payload in (b"a", b"b"):
            link.session.publish("t", payload, qos, properties={"content_type": "x"})
        link.give(acknowledgement(kind, 1, b"\x87" + properties(reason_string=b"no")))
        link.give(acknowledgement(kind, 2, b"\x10"))
        equal([error.args for error in link.errors if isinstance(error, Refused)], [("publish", b"t", 0x87, b"no")])
        equal(link.dropped, [(1, b"t", b"a", REFUSED)])
        if qos == 2:
            equal([each for each in link.packets() if each[0] == 0x62], [(0x62, b"\0\2")])
            link.give(acknowledgement(PUBCOMP, 2, b"\x92"))
        equal((done, link.session.pending, link.session.in_flight), ([2], 0, 0))
        link.give(acknowledgement(kind, 1, b"\x87"))
        equal(link.session.unexpected, 1)


def test_a_quota_that_is_used_up_ends_the_link_and_keeps_the_message():
    # Planted: every refusal drops the message.
    link = Link(up())
    link.session.publish("t", b"a", 1)
    equal(link.lost(acknowledgement(PUBACK, 1, b"\x97")).args, ("publish", b"t", 0x97, b""))
    link.open(connack(True, 0, _NONE))
    equal([published(packet)[0] for packet in link.packets()], [0x3A])
    equal((link.dropped, link.session.pending), ([], 1))


def test_the_reason_of_every_refusal_is_told():
    # Planted: a filter that the broker refuses with another code than 0x80 counts as granted.
    link = Link(up())
    session = link.session
    session.subscribe("a", 1)
    session.subscribe("b", 1)
    session.unsubscribe("c")
    ids = {body[5:6]: body[:2] for _, body in link.packets()}
    link.give(encoder.encode(0x90, ids[b"a"] + properties(reason_string=b"not yours") + b"\x87"))
    link.give(encoder.encode(0x90, ids[b"b"] + properties(reason_string=b"ok") + b"\x01"))
    link.give(encoder.encode(0xB0, ids[b"c"] + _NONE + b"\x11"))
    equal([error.args for error in link.errors], [("subscribe", b"a", 0x87, b"not yours")])
    assert session.subscribed
    session.unsubscribe("b")
    packet_id = link.packets()[0][1][1]
    link.give(acknowledgement(UNSUBACK, packet_id, _NONE + b"\x87"))
    equal(link.errors[-1].args, ("unsubscribe", b"b", 0x87, b""))
    error = link.lost(encoder.encode(_DISCONNECT, b"\x8b" + properties(reason_string=b"maintenance")))
    equal((type(error), error.args), (Refused, ("disconnect", 0x8B, b"maintenance")))
    link.open(up())
    # Planted: a filter whose UNSUBSCRIBE was refused is asked for on each link.
    equal([(head, body[5:]) for head, body in link.packets()], [(0x82, b"a\x01")])
    equal(link.lost(encoder.encode(_DISCONNECT)).args, ("disconnect", 0, b""))


def test_a_connect_that_is_refused_waits_as_long_as_its_reason_says():
    # Planted: a wrong password is tried again at once; an authentication method that the broker does not have, too.
    passing = b"\x88\x89\x97\x9c\x9d\x9f"
    for reason in b"\x80\x81\x82\x83\x84\x85\x86\x87\x8a\x8c\x90\x95\x99\x9a\x9b" + passing:
        delay = None if reason in passing else NEVER
        link = Link()
        link.session.retry_delay = None
        link.sent = b""
        link.session.open(link._write, "b")
        equal(link.lost(connack(False, reason, properties(reason_string=b"why"))).args, ("connect", reason, b"why"))
        equal(link.session.retry_delay, delay)


def test_packets_that_are_no_mqtt_5_end_the_link():
    # Planted: a CONNACK of MQTT 3.1.1 is read as one without properties.
    for answer in (connack(), connack(False, 0, b"\1"), connack(True, 0x87, _NONE), encoder.encode(32, b"\0"),
                   encoder.encode(32), connack(False, 0, properties(receive_maximum=0)), encoder.pingresp(),
                   connack(False, 0, properties(maximum_packet_size=0)), connack(False, 0, properties(topic_alias=1)),
                   encoder.encode(32, b"\2\0\0"), encoder.encode(_DISCONNECT, b"\x8b")):  # fmt: skip
        link = Link()
        link.sent = b""
        link.session.open(link._write, "b")
        equal(type(link.lost(answer)), ProtocolError, answer)
    for packet in (connack(False, 0, _NONE), encoder.encode(0x40, b"\0"), acknowledgement(PUBACK, 1, b"\0\1"),
                   encoder.encode(0x90, b"\0\1\0"), encoder.encode(0x90, b"\0\1\0\0\0"), encoder.encode(0xB0, b"\0\1"),
                   encoder.encode(0xB0, b"\0\1\0"), encoder.encode(_DISCONNECT, b"\0\1"), encoder.encode(0xF0, b"\0"),
                   encoder.publish(b"t", b"", properties=b""), encoder.publish(b"t", b"", properties=b"\1"),
                   encoder.encode(0xD0, b"\0"), encoder.pingreq()):  # fmt: skip
        link = Link(up())
        link.session.subscribe("t")
        link.packets()
        equal(type(link.lost(packet)), ProtocolError, packet)


def test_a_broker_without_qos_2_and_retained_messages_gets_what_it_takes():
    # Planted: RETAIN is set for a broker that closes the link because of it.
    link = Link(up(maximum_qos=1, retain_available=0))
    link.session.publish("t", b"a", 2, retain=True)
    equal([(first, topic) for first, topic, *_ in map(published, link.packets())], [(0x32, b"t")])
    link.give(acknowledgement(PUBACK, 1))
    equal((link.session.pending, link.session.downgraded), (0, 1))
    equal([type(error) for error in link.errors], [Downgraded, Downgraded])
    link = Link(up(maximum_qos=2, retain_available=1))  # the defaults, sent explicitly
    link.session.publish("t", b"a", 2, retain=True)
    equal([(first, topic) for first, topic, *_ in map(published, link.packets())], [(0x35, b"t")])
    equal(link.errors, [])
    link = Link(up(maximum_qos=0))
    link.session.publish("t", b"a", 1)
    link.session.publish("t", b"b", 0)
    equal([published(packet)[4] for packet in link.packets()], [b"b"])
    link.session.close()
    link.open(up())
    equal([published(packet)[4] for packet in link.packets()], [b"a"])
    # Planted: what was queued at QoS 0 waits for another broker too.
    link = Link(queue_qos0=True)
    for payload in (b"0", b"1", b"2"):
        link.session.publish("t", payload, 0)
    link.session.publish("t", b"3", 1)
    link.open(up(maximum_qos=0))
    equal([published(packet)[4] for packet in link.packets()], [b"0", b"1", b"2"])
    equal(link.session.pending, 1)
    # Planted: what the store cannot read leaves with an empty topic name, and what is too large leaves too; the broker
    # closes each link for it.
    link = Link(queue_qos0=True)
    for payload in (b"0", bytes(200), b"2", b"3"):
        link.session.publish("t", payload, 0)
    link.session.outbox.store.put(0, 0, 0, b"", b"", 0)
    link.open(up(maximum_qos=0, maximum_packet_size=100))
    equal([published(packet)[4] for packet in link.packets()], [b"2", b"3"])
    equal([each[3] for each in link.dropped], [UNREADABLE, TOO_LARGE])


def test_auto_falls_back_once_and_remembers_for_each_broker():
    # Planted: one old broker decides the version for all of them.
    for answer in (connack(False, 0x84, _NONE), connack(False, 1)):
        link = Link(protocol="auto")
        session = link.session
        link.sent = b""
        session.open(link._write, "old")
        equal(link.packets()[0][1][6], 5)
        equal(link.lost(answer).args[0], "connect")
        equal(session.retry_delay, 0)
        session.publish("t", b"x", 1, properties={"content_type": "lost on this broker"})
        for broker, level in (("old", 4), ("new", 5), ("old", 4), ("new", 5)):
            link.open(connack() if level == 4 else up(maximum_packet_size=100), broker)
            if level == 4:  # limits of another broker do not count here
                session.publish("u", bytes(200), 0, properties={"content_type": "x"})
                equal(encoder.parse_publish(*link.packets()[0]), (b"u", 0, bytes(200)))
                session.close()
                link.open(connack(), broker)
            equal(link.connect[1][6], level)
            (packet,) = link.packets()
            if level == 4:
                equal(encoder.parse_publish(*packet), (b"t", 1, b"x"))
            else:
                equal(published(packet)[1:], (b"t", 1, {"content_type": b"lost on this broker"}, b"x"))
            session.close()


def test_auto_falls_back_to_mqtt_3_1_too_where_that_is_allowed():
    # Planted: the step from 5 to 3.1.1 is made again after the one from 3.1.1 to 3.1.
    link = Link(protocol="auto", allow_mqtt31=True)
    levels = []
    for _ in range(3):
        link.sent = b""
        link.session.open(link._write, "b")
        connect = link.packets()[0][1]
        levels.append(connect[8 if connect[1] == 6 else 6])
        link.lost(connack(False, 1))
    equal(levels, [5, 4, 3])


def test_properties_come_with_their_message_whether_it_waits_or_not():
    # Planted: a message handed over at PUBREL gets the properties of the message that came last.
    link = Link(up(), manual_ack=False)
    wire = properties(**ALL)
    link.give(encoder.publish(b"t", b"0", properties=wire))
    link.give(encoder.publish(b"t", b"1", 1, 5, properties=wire))
    link.give(encoder.publish(b"t", b"2", 2, 6, properties=wire))
    link.give(encoder.publish(b"t", b"plain", properties=_NONE))
    link.give(acknowledgement(PUBREL, 6))
    wanted = [(b"0", ALL), (b"1", ALL), (b"plain", {}), (b"2", ALL)]
    equal([(payload, found) for _, payload, found in link.messages], wanted)
    equal({topic for topic, _, _ in link.messages}, {b"t"})
    link.session.part("backpressure").set_full(True)
    for qos in range(3):
        link.give(encoder.publish(b"t", b"%d" % qos, qos, qos and 7 + qos, properties=wire))
    link.give(acknowledgement(PUBREL, 9))
    link.give(encoder.publish(b"t", b"plain", properties=_NONE))
    equal(len(link.messages), 4)
    link.session.part("backpressure").set_full(False)
    link.packets()
    equal([(topic, payload, found) for topic, payload, found in link.messages[4:]],
          [(b"t", b"0", ALL), (b"t", b"1", ALL), (b"t", b"2", ALL), (b"t", b"plain", {})])  # fmt: skip


def test_a_message_that_comes_again_with_less_time_to_live_is_the_same_one():
    # Planted: known messages are compared with their properties.
    link = Link(up())
    link.give(encoder.publish(b"t", b"x", 2, 6, properties=properties(message_expiry_interval=90)))
    link.session.close()
    link.open(connack(True, 0, _NONE))
    link.give(encoder.publish(b"t", b"x", 2, 6, dup=True, properties=properties(message_expiry_interval=80)))
    link.give(acknowledgement(PUBREL, 6))
    equal(len(link.messages), 1)


def test_a_large_message_has_its_properties_in_pieces_of_any_size():
    # Planted: the length of the properties is one byte.
    for name in (b"n", b"n" * 200):
        wire = properties(user_property=[(name, b"v" * 150)])
        for qos in range(3):
            for step in (1, 7, 100):
                link = Link(up())
                pieces = []
                link.session.on_large = lambda topic, offset, size, chunk, link=link, pieces=pieces: pieces.append(
                    (topic, offset, size, bytes(chunk), link.session.properties)
                )
                data = encoder.publish(b"topic", b"p" * 400, qos, qos and 3, properties=wire)
                rest = b""
                for at in range(0, len(data), step):
                    rest += data[at : at + step]
                    link.buf[: len(rest)] = rest
                    rest = rest[link.session.receive(link.buf, len(rest)) :]
                equal(b"".join([piece[3] for piece in pieces]), b"p" * 400)
                equal(pieces[0][:3], (b"topic", 0, 400))
                equal(pieces[0][4], {"user_property": [(name, b"v" * 150)]})
    for bad in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff", b"\x80" * 4 + b"\1"):
        link = Link(up())
        equal(type(link.lost(encoder.encode(0x30, b"\0\1t" + bad + bytes(400))[:200])), ProtocolError)


def test_properties_outlive_a_restart_and_a_change_of_version():
    # Planted: a client of MQTT 3.1.1 sends the stored properties as part of the payload.
    store = MemoryStore()
    link = Link(store=store)
    link.session.publish("t", b"x", 1, properties=ALL)
    outbox = link.session.outbox
    link = Link(up(), store=store)
    link.session.start(outbox)
    link.open(up())
    equal(published(link.packets()[0])[3], ALL)
    link = Link(protocol=4, store=store)
    outbox.rewind(True)
    link.session.start(outbox)
    link.open(connack())
    equal(encoder.parse_publish(*link.packets()[0]), (b"t", 1, b"x"))
