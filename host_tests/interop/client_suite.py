"""The client against a real broker, on CPython and on MicroPython: client_suite.py PORT OTHER_PORT PROTOCOL.

Prints a line per check: `ok NAME`, or `failed NAME` after the traceback. Each check has its own topics and client
ids. The other port is that of another broker, for the failover.
"""

# ruff: noqa: UP031 - runs on MicroPython
import sys

from durable_store import DurableStore, Flash
from links import LIMIT_MS, Device, connected, fresh, versions, wait

from umqtt_robust import Will


def equal(actual, expected):
    assert actual == expected, "got %r, expected %r" % (actual, expected)


def check_every_qos_both_ways(port, other):
    for granted in (0, 1, 2):
        receiver = connected(b"r1", port, subscribe={b"q/#": granted}, clean_session=True)
        sender = connected(b"s1", port, clean_session=True)
        for qos in (0, 1, 2):
            for i in range(5):
                sender.client.publish(b"q/%d" % qos, b"%d" % i, qos)
        wait(lambda s=sender, r=receiver: s.up() and len(r.messages) == 15, sender, receiver)
        for qos in (0, 1, 2):
            equal(
                [payload for topic, payload in receiver.messages if topic == b"q/%d" % qos],
                [b"%d" % i for i in range(5)],
            )
        sender.leave()
        receiver.leave()


def check_retained_messages(port, other):
    sender = connected(b"s2", port)
    for qos in (0, 1, 2):
        sender.client.publish(b"kept/%d" % qos, b"last %d" % qos, qos, retain=True)
    wait(sender.up, sender)
    receiver = connected(b"r2", port, subscribe={b"kept/#": 2}, clean_session=True)
    wait(lambda: len(receiver.messages) == 3, receiver)
    equal(sorted(receiver.payloads), [b"last 0", b"last 1", b"last 2"])
    assert receiver.client.flags & 1
    for qos in (0, 1, 2):
        sender.client.publish(b"kept/%d" % qos, b"", 1, retain=True)
    wait(lambda: sender.up() and len(receiver.messages) == 6, sender, receiver)
    late = connected(b"r2b", port, subscribe={b"kept/#": 2, b"ping": 1}, clean_session=True)
    sender.client.publish(b"ping", b"pong", 1)
    wait(lambda: late.messages, sender, late)
    equal(late.payloads, [b"pong"])


def check_will(port, other):
    watcher = connected(b"w3", port, subscribe={b"will/#": 2}, clean_session=True)
    for qos in (0, 1, 2):
        lost = connected(b"l3%d" % qos, port, will=Will(b"will/%d" % qos, b"lost", qos), keep_alive=5)
        lost.cut()
        lost.client.tick()
        wait(lambda qos=qos: (b"will/%d" % qos, b"lost") in watcher.messages, watcher)
    polite = connected(b"p3", port, will=Will(b"will/polite", b"lost", 1))
    polite.client.publish(b"will/", b"bye", 1)
    wait(polite.up, polite)
    polite.leave()
    wait(lambda: (b"will/", b"bye") in watcher.messages, watcher)
    wanted = [(b"will/%d" % qos, b"lost") for qos in range(3)]
    wanted.append((b"will/", b"bye"))
    equal(sorted(watcher.messages), sorted(wanted))


def check_wildcards_and_unsubscribe(port, other):
    receiver = connected(b"r4", port, subscribe={b"a/+/c": 1, b"d/#": 2, b"e": 0}, clean_session=True)
    receiver.client.on(b"a/+/c", lambda topic, payload: receiver.messages.append((b"handler", payload)))
    sender = connected(b"s4", port)
    for topic in (b"a/b/c", b"a/b/x", b"d", b"d/e/f", b"e", b"e/f"):
        sender.client.publish(topic, topic, 1)
    sender.client.publish(b"d/end", b"end", 1)
    wait(lambda: b"end" in receiver.payloads, sender, receiver)
    equal(receiver.messages[0], (b"handler", b"a/b/c"))
    equal(receiver.payloads, [b"a/b/c", b"d", b"d/e/f", b"e", b"end"])
    receiver.client.unsubscribe(b"d/#")
    wait(receiver.up, receiver)
    for topic in (b"d/x", b"e"):
        sender.client.publish(topic, b"second", 1)
    wait(lambda: len(receiver.messages) > 5, sender, receiver)
    equal(receiver.messages[5:], [(b"e", b"second")])


def check_a_session_keeps_its_queue_and_subscriptions(port, other):
    fresh(b"r5", port)
    receiver = connected(b"r5", port, subscribe={b"queue": 2})
    sender = connected(b"s5", port)
    for _ in range(3):
        receiver.cut()
        receiver.client.tick()
        seen = len(receiver.messages)
        for i in range(20):
            sender.client.publish(b"queue", b"%d" % i, 1 + i % 2)
        wait(sender.up, sender)
        wait(lambda seen=seen: len(receiver.messages) >= seen + 20, receiver)
        by_qos = [[b"%d" % i for i in range(first, 20, 2)] for first in (0, 1)]
        for wanted in by_qos:
            equal([one for one in receiver.payloads[seen:] if one in wanted], wanted)
    equal(receiver.connects, [False, True, True, True])


def check_clean_session_forgets(port, other):
    receiver = connected(b"r6", port, subscribe={b"clean": 1}, clean_session=True)
    sender = connected(b"s6", port)
    receiver.cut()
    receiver.client.tick()
    sender.client.publish(b"clean", b"nobody hears", 1)
    wait(sender.up, sender)
    wait(lambda: receiver.up() and len(receiver.connects) == 2, receiver)
    sender.client.publish(b"clean", b"heard", 1)
    wait(lambda: receiver.messages, sender, receiver)
    equal(receiver.payloads, [b"heard"])
    equal([bool(present) for present in receiver.connects], [False, False])


def check_links_cut_anywhere_exactly_once(port, other):
    fresh(b"r7", port)
    fresh(b"s7", port)
    receiver = connected(b"r7", port, subscribe={b"cut/#": 2})
    sender = connected(b"s7", port, window=4)
    number = 0
    sent = []
    for cut in range(1, 120, 7):
        sender.client.transport.cut_up = cut
        receiver.client.transport.cut_up = cut // 3
        sender.cuts = [20 + cut % 50]
        for _ in range(4):
            number += 1
            sent.append(b"%d" % number)
            sender.client.publish(b"cut/%d" % (number % 2), sent[-1], 2)
        wait(lambda: sender.up() and receiver.up(), sender, receiver)
    wait(lambda: len(receiver.messages) >= len(sent), receiver, sender)
    sent.append(b"end")
    sender.client.publish(b"cut/0", b"end", 2)
    wait(lambda: b"end" in receiver.payloads, receiver, sender)
    equal(sorted(receiver.payloads), sorted(sent))
    assert sender.client.reconnects > 10


def check_a_restart_at_any_byte_exactly_once(port, other):
    fresh(b"r8", port)
    fresh(b"s8", port)
    receiver = connected(b"r8", port, subscribe={b"restart": 2}, clean_session=True)
    flash = Flash(64)
    sender = connected(b"s8", port, store=DurableStore(flash))
    sent = []
    for cut in range(0, 100, 9):
        sender.client.transport.cut_up = cut
        for _ in range(3):
            sent.append(b"%d" % len(sent))
            sender.client.publish(b"restart", sent[-1], 2)
        wait(lambda s=sender: not s.client.connected or s.up(), sender)
        sender.client.transport and sender.cut()
        sender = connected(b"s8", port, store=DurableStore(flash))
    sent.append(b"end")
    sender.client.publish(b"restart", b"end", 2)
    wait(lambda: b"end" in receiver.payloads and sender.up(), receiver, sender)
    equal(sorted(receiver.payloads), sorted(sent))
    equal(flash.messages, {})


def check_a_client_id_that_is_taken_over(port, other):
    first = connected(b"t9", port)
    second = connected(b"t9", port)
    wait(lambda: not first.client.connected, first)
    assert second.client.connected
    second.client.publish(b"t", b"x", 1)
    wait(second.up, second)


def check_messages_of_100_kb(port, other):
    payload = bytes(range(256)) * 400
    receiver = Device(b"r10", port, clean_session=True)
    parts = []

    def on_large(topic, offset, size, chunk):
        if not offset:
            parts.append(0)
        assert parts[-1] == offset and size == len(payload) and bytes(chunk) == payload[offset : offset + len(chunk)]
        parts[-1] += len(chunk)

    receiver.client.on_large = on_large
    receiver.client.subscribe(b"large", 2)
    wait(receiver.up, receiver)
    sender = connected(b"s10", port)
    for qos in (0, 1, 2):
        sender.client.publish(b"large", payload, qos)
        wait(sender.up, sender, receiver)
    sender.client.publish(b"large", b"small", 2)
    wait(lambda: receiver.messages, receiver, sender)
    equal(parts, [len(payload)] * 3)
    equal(receiver.payloads, [b"small"])


def check_payloads_and_topics_at_the_edges(port, other):
    receiver = connected(b"r11", port, subscribe={b"edge/#": 2}, clean_session=True, rx_size=70000)
    sender = connected(b"s11", port)
    sent = []
    for topic in (b"edge", b"edge/", "edge/\xe4\u20ac\U0001f321".encode(), b"edge/" + b"x" * 3000, b"edge//y"):
        for payload in (b"", b"\0", "\xb0".encode(), bytes(117), bytes(120), bytes(130), bytes(16400)):
            sent.append((topic, payload))
            sender.client.publish(topic, payload, 1)
        wait(sender.up, sender, receiver)
    wait(lambda: len(receiver.messages) == len(sent), receiver, sender)
    equal(receiver.messages, sent)


def check_packet_ids_through_the_wrap(port, other):
    receiver = connected(b"r12", port, subscribe={b"wrap": 2}, clean_session=True)
    sender = connected(b"s12", port)
    sender.client.last_id = 65535 - 10
    ids = [sender.client.publish(b"wrap", b"%d" % i, 1 + i % 2) for i in range(20)]
    wait(lambda: sender.up() and len(receiver.messages) == 20, sender, receiver)
    assert 65535 in ids and 1 in ids and 0 not in ids
    equal(sorted(receiver.payloads), sorted([b"%d" % i for i in range(20)]))


def check_mqtt_3_1(port, other):
    for clean_session in (True, False):
        device = Device(b"old13", port, clean_session=clean_session, protocol=4)
        device.client.level = 3
        device.client.subscribe(b"old", 2)
        wait(device.up, device)
        device.client.publish(b"old", b"level 3", 2)
        wait(lambda d=device: d.messages and d.up(), device)
        device.cut()
        device.client.publish(b"old", b"again", 2)
        wait(lambda d=device: len(d.messages) == 2 and d.up(), device)
        assert len(device.connects) == 2
        device.leave()


def check_pings_are_answered(port, other):
    # Pings are sent soon, and may be answered late: a busy machine is not a dead link.
    device = connected(b"p14", port, ping_after=50, ping_timeout=LIMIT_MS)
    link = device.client.transport
    wait(lambda: link.pongs == 3, device)
    assert device.client.transport is link


def check_manual_acknowledgement_in_reverse(port, other):
    fresh(b"m15", port)
    receiver = connected(b"m15", port, subscribe={b"manual": 2}, manual_ack=True)
    ids = []
    receiver.client.on_message = lambda topic, payload: ids.append((receiver.client.packet_id, payload))
    sender = connected(b"s15", port)
    for i in range(6):
        sender.client.publish(b"manual", b"%d" % i, 1 + i % 2)
    wait(lambda: sender.up() and len(ids) == 6, sender, receiver)
    for packet_id, _ in ids[::-1]:
        assert receiver.client.acknowledge(packet_id)
    sender.client.publish(b"manual", b"end", 1)
    wait(lambda: len(ids) == 7, sender, receiver)
    receiver.client.acknowledge(ids[-1][0])
    receiver.client.tick()
    # A message that arrives after the cut was sent after all acknowledgements were processed.
    sender.client.publish(b"manual", b"probe", 1)
    wait(lambda: len(ids) == 8, sender, receiver)
    receiver.cut()
    receiver.client.tick()
    sender.client.publish(b"manual", b"after", 1)
    wait(lambda: ids[-1][1] == b"after", sender, receiver)
    assert [payload for _, payload in ids[8:]] in ([b"after"], [b"probe", b"after"]), ids[8:]


def check_an_erased_store_against_a_broker_that_remembers(port, other):
    fresh(b"e16", port)
    old = connected(b"e16", port, subscribe={b"erased": 2})
    old.client.transport.cut_up = 60  # PUBLISHes pass, PUBRELs do not
    for i in range(3):
        old.client.publish(b"erased", b"old %d" % i, 2)
    wait(lambda: not old.client.connected, old)
    new = connected(b"e16", port, subscribe={b"erased": 2})
    for i in range(5):
        new.client.publish(b"erased", b"new %d" % i, 2)
    wait(lambda: len([1 for one in new.payloads if one.startswith(b"new")]) == 5, new)
    equal([one for one in new.payloads if one.startswith(b"new")], [b"new %d" % i for i in range(5)])
    equal(new.errors, [])


def check_what_the_broker_has_queued_outlives_a_reset_with_memory_only(port, other):
    # Planted: a session unknown to the store is purged, whatever the client publishes.
    fresh(b"q17", port)
    old = connected(b"q17", port, subscribe={b"queued": 1})
    old.cut()
    old.client.tick()
    sender = connected(b"p17", port)
    for i in range(5):
        sender.client.publish(b"queued", b"%d" % i, 1)
    wait(sender.up, sender)
    new = connected(b"q17", port, subscribe={b"queued": 1})
    new.client.publish(b"t", b"after", 1)
    wait(lambda: new.up() and len(new.payloads) >= 5, new)
    equal(new.payloads, [b"%d" % i for i in range(5)])
    equal(new.errors, [])


def check_failover_with_qos_2_in_flight_both_ways(port, other):
    for one in (port, other):
        fresh(b"f17", one)
    device = connected(b"f17", port, other, subscribe={b"fail/#": 2})
    for target in (other, port, other):
        seen = len(device.messages)
        device.client.transport.cut_up = 70
        for i in range(6):
            device.client.publish(b"fail/over", b"%d" % i, 2)
        device.closed_ports = [one for one in (port, other) if one != target]
        wait(lambda d=device: not d.client.connected, device)
        wait(device.up, device)
        device.client.publish(b"fail/over", b"end", 2)
        wait(lambda d=device, seen=seen: b"end" in d.payloads[seen:], device)
        sender = connected(b"g17", target)
        for i in range(6):
            sender.client.publish(b"fail/new", b"new %d" % i, 2)
        wanted = [(b"fail/new", b"new %d" % i) for i in range(6)]
        wait(lambda d=device, seen=seen, w=wanted: [m for m in d.messages[seen:] if m in w] == w, device, sender)
        sender.leave()


def check_two_thousand_messages_in_order(port, other):
    receiver = connected(b"r18", port, subscribe={b"many/#": 2}, clean_session=True)
    sender = connected(b"s18", port, window=20)
    made = 0

    def more():
        nonlocal made
        while made < 2000 and sender.client.pending < 30:
            sender.client.publish(b"many/%d" % (1 + made % 2), b"%d" % made, 1 + made % 2)
            made += 1
        return made == 2000 and sender.up() and len(receiver.messages) >= 2000

    wait(more, sender, receiver)
    for qos in (1, 2):
        wanted = [b"%d" % i for i in range(qos - 1, 2000, 2)]
        equal([payload for topic, payload in receiver.messages if topic == b"many/%d" % qos], wanted)


def check_an_empty_client_id(port, other):
    device = connected(b"", port, subscribe={b"nameless": 1}, clean_session=True)
    device.client.publish(b"nameless", b"x", 1)
    wait(lambda: device.messages, device)
    assert versions[0] != 5 or device.client.client_id  # the broker assigned it one


def check_the_version_is_the_one_that_was_asked_for(port, other):
    equal(connected(b"v20", port).client.level, versions[0])
    equal(connected(b"v20", port, protocol="auto").client.level, 5)


def check_properties_arrive_at_every_qos(port, other):
    # Planted: the properties of a message at QoS 2 are those of the message before it.
    if versions[0] != 5:
        return
    receiver = connected(b"r21", port, clean_session=True)
    found = []
    receiver.client.on_message = lambda topic, payload: found.append((payload, receiver.client.properties))
    receiver.client.subscribe(b"p5/#", 2)
    wait(receiver.up, receiver)
    sender = connected(b"s21", port)
    for qos in (0, 1, 2):
        sender.client.publish(
            b"p5/t", b"%d" % qos, qos, expires_in=60000,
            properties={
                "content_type": "text/plain", "response_topic": "p5/reply/%d" % qos, "correlation_data": b"\0%d" % qos,
                "payload_format_indicator": 1, "user_property": [("a", "1"), ("a", "2")],
            },
        )  # fmt: skip
        sender.client.publish(b"p5/t", b"plain", qos)
    wait(lambda: len(found) == 6, sender, receiver)
    equal([properties for payload, properties in found if payload == b"plain"], [{}] * 3)
    for payload, properties in found:
        if payload != b"plain":
            assert 50 < properties.pop("message_expiry_interval") <= 60
            wanted = {
                "content_type": b"text/plain", "response_topic": b"p5/reply/" + payload,
                "correlation_data": b"\0" + payload, "payload_format_indicator": 1,
                "user_property": [(b"a", b"1"), (b"a", b"2")],
            }  # fmt: skip
            equal(properties, wanted)


def check_a_session_lasts_as_long_as_the_client_says(port, other):
    # Planted: CONNECT has no session expiry interval, so the session ends with the link.
    if versions[0] != 5:
        return
    for options, present in (({}, True), ({"connect_properties": {"session_expiry_interval": 0}}, False)):
        fresh(b"x22", port)
        connected(b"x22", port, **options).leave()
        equal(connected(b"x22", port, **options).connects, [present])


def check_a_lost_client_is_told_about_when_its_delay_is_over(port, other):
    # Planted: the properties of the will are those of CONNECT.
    if versions[0] != 5:
        return
    watcher = connected(b"w23", port, subscribe={b"will5/#": 1}, clean_session=True)
    will = Will(b"will5/t", b"lost", 1, properties={"will_delay_interval": 1, "content_type": "text/plain"})
    lost = connected(b"l23", port, will=will)
    lost.cut()
    lost.client.tick()
    wait(lambda: (b"will5/t", b"lost") in watcher.messages, watcher)
    equal(watcher.client.properties.get("content_type"), b"text/plain")


def check_a_request_is_answered(port, other):
    # Planted: an answer is treated as that of the last request.
    if versions[0] != 5:
        return
    answering = connected(b"a25", port, clean_session=True)

    def answer(topic, payload):
        asked = answering.client.properties
        answering.client.publish(
            asked["response_topic"], payload + b"!", 1, properties={"correlation_data": asked["correlation_data"]}
        )

    answering.client.on(b"ask25", answer)
    answering.client.subscribe(b"ask25", 1)
    wait(answering.up, answering)
    asking = connected(b"b25", port, clean_session=True)
    answers = []
    for name in (b"x", b"y", b"z"):
        asking.client.part("request").send(b"ask25", name, lambda payload, name=name: answers.append((name, payload)))
    asking.client.part("request").send(b"nobody25", b"?", lambda payload: answers.append(payload), 100)
    wait(lambda: len(answers) == 4, asking, answering)
    equal(sorted([one for one in answers if one]), [(b"x", b"x!"), (b"y", b"y!"), (b"z", b"z!")])
    assert None in answers and not asking.client.part("request").waiting


def check_topic_aliases_both_ways_and_over_links(port, other):
    # Planted: an alias outlives its link.
    if versions[0] != 5:
        return
    allowed = {"topic_alias_maximum": 2}
    receiver = connected(b"r26", port, subscribe={b"alias26/#": 2}, connect_properties=allowed)
    sender = connected(b"s26", port)
    sender.client.part("mqtt5").most_aliases = 2
    sent = []
    for cut in (None, 60, 150):
        sender.client.transport.cut_up = cut
        receiver.client.transport.cut_up = cut
        for i in range(12):
            sent.append((b"alias26/%d" % (i % 2 if cut else i % 3), b"%d" % len(sent)))
            sender.client.publish(sent[-1][0], sent[-1][1], 2)
        wait(lambda: sender.up() and receiver.up() and len(receiver.messages) >= len(sent), sender, receiver)
    equal(sorted(receiver.messages), sorted(sent))
    assert sender.client.connack_properties["topic_alias_maximum"] >= 2
    equal((sender.errors, receiver.errors), ([], []))
    # A broker that does not know an alias ends the link; messages sent again have their topic name.
    assert sender.client.reconnects <= 2 and receiver.client.reconnects <= 2


def check_what_a_subscription_asks_for(port, other):
    # Planted: retain_as_published and no_local are swapped.
    if versions[0] != 5:
        return
    sender = connected(b"s27", port)
    sender.client.publish(b"opt27/kept", b"kept", 1, retain=True)
    wait(sender.up, sender)
    device = Device(b"r27", port, clean_session=True)
    found = []
    device.client.on_message = lambda topic, payload: found.append(
        (payload, device.client.flags & 1, device.client.properties.get("subscription_identifier"))
    )
    mqtt5 = device.client.part("mqtt5")
    mqtt5.set_options(b"opt27/#", no_local=True, retain_handling=2, identifier=300)
    mqtt5.set_options(b"+/flag", retain_as_published=True, identifier=1)
    for topic_filter in (b"opt27/#", b"+/flag"):
        device.client.subscribe(topic_filter, 1)
    wait(device.up, device)
    device.client.publish(b"opt27/own", b"own", 1)
    wait(device.up, device)
    sender.client.publish(b"opt27/t", b"plain", 1)
    sender.client.publish(b"as27/flag", b"flagged", 1, retain=True)
    wait(lambda: len(found) >= 2, device, sender)
    equal(sorted(found), [(b"flagged", 1, [1]), (b"plain", 0, [300])])
    for topic in (b"opt27/kept", b"as27/flag"):
        sender.client.publish(topic, b"", 1, retain=True)
    wait(sender.up, sender)


def check_the_broker_says_why_it_ends_a_link(port, other):
    if versions[0] != 5:
        return
    first = connected(b"t24", port)
    ends = []
    first.client.on_disconnect = lambda error: ends.append(error.args)
    connected(b"t24", port)
    wait(lambda: ends, first)
    # Session taken over. Mosquitto 2.0.11 closes the connection without sending this.
    assert ends[0] in (("disconnect", 0x8E, b""), ("closed by the broker",)), ends


CHECKS = sorted([name for name in globals() if name.startswith("check_")])


def main(port, other, protocol):
    versions[0] = protocol
    for name in CHECKS:
        try:
            globals()[name](port, other)
        except Exception as error:  # noqa: BLE001 - reported below; the others go on
            if hasattr(sys, "print_exception"):
                sys.print_exception(error, sys.stdout)
            else:
                import traceback

                traceback.print_exc(file=sys.stdout)
            print("failed", name)
        else:
            print("ok", name)


if __name__ == "__main__":
    main(*[int(argument) for argument in sys.argv[1:]])
