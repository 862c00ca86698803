"""Requests and their answers with MQTT 5."""

from test_mqtt5 import Link, published, up
from umqtt_testkit import encoder
from umqtt_testkit.encoder import connack, properties
from umqtt_testkit.portable import equal, raises

from umqtt_robust import Client
from umqtt_robust.errors import InvalidArgument


def _asking(**options):
    link = Link(up(), **options)
    link.answers = []
    link.request = link.session.part("request")
    return link


def _pass_ms(link, ms):
    """Let ms pass; return the ms until the next deadline."""
    link.clock.advance(ms)
    link.session.advance()
    return min([timer() for timer in link.session.timers])


def _answer(link, data, payload, qos=0):
    link.give(encoder.publish(b"reply/c", payload, qos, qos and 9, properties=properties(correlation_data=data)))


def test_an_answer_goes_to_the_request_that_it_belongs_to_once():
    # Planted: every answer is treated as that of the oldest request.
    link = _asking()
    for name in ("a", "b"):
        link.request.send("ask", name, lambda payload, name=name: link.answers.append((name, payload)), 5000)
    found = {}
    for packet in link.packets():
        if packet[0] & 0xF0 == 0x30:
            _, topic, _, told, payload = published(packet)
            equal((topic, told["response_topic"], told["message_expiry_interval"]), (b"ask", b"reply/c", 5))
            found[payload] = told["correlation_data"]
        else:
            equal((packet[0], packet[1][3:]), (0x82, encoder.string(b"reply/c") + b"\0"))
    assert found[b"a"] != found[b"b"]
    for name in (b"b", b"a", b"b"):
        _answer(link, found[name], b"for " + name)
    equal(link.answers, [("b", b"for b"), ("a", b"for a")])
    equal((link.session.unhandled, link.request.waiting), (1, {}))


def test_what_is_not_answered_in_time_is_told_once():
    # Planted: the deadline of the last request applies to all.
    link = _asking()
    link.request.send("ask", b"1", link.answers.append, 3000)
    link.request.send("ask", b"2", link.answers.append, 9000)
    equal(_pass_ms(link, 1000), 2000)
    equal(link.answers, [])
    equal(_pass_ms(link, 2000), 6000)
    equal(link.answers, [None])
    _pass_ms(link, 1 << 28)
    equal(link.answers, [None, None])
    _answer(link, b"12345678", b"late")
    _answer(link, b"", b"")
    link.give(encoder.publish(b"reply/c", b"no data", properties=b"\0"))
    equal((link.answers, link.session.unhandled), ([None, None], 3))


def test_an_answer_is_acknowledged_where_the_program_acknowledges_by_hand():
    # Planted: an answer blocks the acknowledgements of all messages behind it.
    link = _asking(manual_ack=True)
    link.request.send("ask", b"1", link.answers.append)
    for packet in link.packets():
        if packet[0] & 0xF0 == 0x30:
            _answer(link, published(packet)[3]["correlation_data"], b"yes", 1)
    equal(link.answers, [b"yes"])
    equal(link.packets(), [(0x40, b"\0\x09")])


def test_an_answer_does_not_wait_behind_messages_that_the_program_has_no_room_for():
    # Planted: an answer waits behind the others, for a program that takes none before it has its answer.
    link = _asking()
    link.request.topic = "my/answers"
    link.request.send("ask", b"1", link.answers.append)
    asked = [published(packet) for packet in link.packets() if packet[0] & 0xF0 == 0x30]
    link.session.part("backpressure").set_full(True)
    link.give(encoder.publish(b"t", b"before", 1, 8, properties=b"\0"))
    data = properties(correlation_data=asked[0][3]["correlation_data"])
    link.give(encoder.publish(b"my/answers", b"yes", properties=data))
    equal((link.answers, link.messages), ([b"yes"], []))
    link.session.part("backpressure").set_full(False)
    link.packets()
    equal(link.messages, [(b"t", b"before", {})])


def test_a_request_needs_mqtt_5():
    # Planted: a request to a broker of MQTT 3.1.1 is sent without its response topic.
    raises(InvalidArgument, Client("c", "mqtt://h").part("request").send, "ask", b"", print)
    link = Link(protocol="auto")
    link.session.part("request").send("ask", b"", print)  # the broker may speak MQTT 5
    link.sent = b""
    link.session.open(link._write, "old")
    link.lost(connack(False, 1))
    link.open(connack(), "old")
    raises(InvalidArgument, link.session.part("request").send, "ask", b"", print)


def test_a_client_without_an_id_shares_its_answers_with_no_other():
    # Planted: the topic of the answers is reply/ for all of them, so each gets those of all.
    topics = []
    for _ in range(2):
        client = Client(b"", "mqtt://h", protocol=5)
        request = client.part("request")
        for _ in range(2):
            request.send("ask", b"", print)
        equal(len(client.subscriptions.filters), 1)
        topics += client.subscriptions.filters
    assert topics[0] != topics[1]
    client.client_id = b"given"  # by the broker
    request.send("ask", b"", print)
    equal(list(client.subscriptions.filters), [topics[1]])
