"""One test for each failure once seen in other clients or in this one; its name says which."""

from timing import run_until
from umqtt_testkit.portable import equal, raises
from world import Broker, Flash, World, publish

from umqtt_robust.errors import InvalidArgument, MQTTError
from umqtt_robust.quarantine import packet_ids

HEAP = "2M"


def connected(broker=None, subscribe=True, **options):
    world = World([broker or Broker()], **options)
    if subscribe:
        world.client.subscribe(b"down/#", 2)
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    return world


def comes_back(world):
    world.settle()  # a link that broke is noticed at the next tick
    assert world.run(lambda: world.client.connected and world.client.subscribed and not world.client.pending)
    world.settle()
    equal(world.faults(), [])


def test_packet_id_0_at_the_wrap():
    # Planted: packet id 0 follows 65535.
    world = connected(window=2)
    world.client.last_id = 65534
    ids = []
    for i in range(4):
        ids.append(world.client.publish(b"t", b"%d" % i, 1))
    world.client.subscribe(b"more")
    comes_back(world)
    equal(ids, [65535, 1, 2, 3])
    world.client.last_id = 65535
    world.client.subscribe(b"and more")
    comes_back(world)
    equal([body[:2] for head, body in world.brokers[0].seen if head == 0x82][-1], b"\0\1")


def test_inbound_qos_2():
    # Planted: PUBREL of an unknown packet id gets no PUBCOMP.
    world = connected()
    broker = world.brokers[0]
    for i in range(3):
        broker.send(b"c", b"down/x", b"%d" % i, 2)
    world.settle()
    equal(world.messages, [(b"down/x", b"%d" % i) for i in range(3)])
    equal([head for head, _ in broker.seen if head in (0x50, 0x70)], [0x50] * 3 + [0x70] * 3)
    equal(broker.session.queue, [])
    # The same PUBLISH again, with DUP, before PUBREL: PUBREC again, one message.
    world.messages = []
    for dup in (False, True, True):
        world.wire.send(publish(b"down/x", b"again", 2, 77, dup=dup))
        world.client.tick()
    equal(world.messages, [])
    world.wire.send(b"\x62\x02\x00\x4d")
    world.settle()
    equal(world.messages, [(b"down/x", b"again")])
    # PUBREL again, and one with an unknown id: both get PUBCOMP.
    completed = len([1 for head, _ in broker.seen if head == 0x70])
    world.wire.send(b"\x62\x02\x00\x4d\x62\x02\x12\x34")
    world.settle()
    equal([body for head, body in broker.seen if head == 0x70][completed:], [b"\x00\x4d", b"\x12\x34"])
    equal(len(world.messages), 1)


def test_a_dup_of_an_inbound_qos_2_message_is_stored_once():
    # Planted: DUP under a known packet id is stored again.
    world = connected(flash=Flash())
    writes = world.flash.operations
    for dup in (False, True, True, True):
        world.wire.send(publish(b"down/x", b"once", 2, 77, dup=dup))
        world.client.tick()
    equal(world.flash.operations, writes + 1)
    equal(list(world.flash.inbound), [77])


def test_connack_with_session_present_1():
    # Planted: every link subscribes again, also in a session that the broker has kept.
    world = connected()
    world.wire.break_now()
    world.client.tick()
    comes_back(world)
    equal(world.of_kind("connect"), [0, True])
    assert world.client.connected
    subscribes = len([1 for head, _ in world.brokers[0].seen if head == 0x82])
    equal(subscribes, 1, "a subscription that the broker has kept is not asked for again")


def test_connack_5():
    # Planted: return code 5 ends the client for good.
    world = World([Broker(return_code=5)])
    assert world.run(lambda: world.of_kind("error"))
    equal(world.of_kind("error")[0].args, ("connect", 5))
    world.client.publish(b"t", b"kept", 1)
    world.brokers[0].return_code = 0
    comes_back(world)
    equal(world.brokers[0].taken, [(b"t", b"kept")])


def test_connack_with_reserved_values():
    # Planted: reserved values of CONNACK are accepted.
    for flags, code in ((2, 0), (3, 0), (255, 0), (1, 1), (1, 5), (0, 6), (0, 255)):
        world = World()
        world.brokers[0].answer = False
        run_until(world, lambda world=world: world.wires, 2000)
        world.wire.send(bytes((0x20, 2, flags, code)))
        world.client.tick()
        # A code that the standard does not know refuses too, and is told.
        error = world.of_kind("error")[0]
        equal(
            (type(error).__name__, error.args[-1]),
            ("Refused", code) if flags == 1 or not flags else ("ProtocolError", "bad CONNACK"),
        )
        assert not world.client.connected


def test_an_answer_that_can_be_no_connack_is_named_at_its_first_bytes():
    # Planted: what does not begin like a CONNACK is awaited as a packet of the length that its second byte gives.
    for answer, said in (
        (b"HTTP/1.1 302 Found\r\nLocation: http://login.hotel.example/\r\n\r\n", "web server: a login page"),
        (b"HTTP/1.0 400 Bad", "web server: a login page"),
        (b"H", "web server: a login page"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH"),
        (b"\xff\xff\xff\xff", "no MQTT broker"),
        (publish(b"t", b"x"), "no MQTT broker"),
    ):
        world = World()
        world.brokers[0].answer = False
        run_until(world, lambda world=world: world.wires, 2000)
        world.wire.send(answer)
        world.client.tick()
        error = world.of_kind("error")[0]
        assert type(error).__name__ == "ProtocolError" and said in error.args[0], (answer, error)


def test_a_user_name_and_a_password_that_a_program_sets_later_may_be_str():
    # Planted: they are encoded at the start only; CPython's connect() then raises TypeError out of tick().
    world = World([Broker(return_code=5)], username=b"u", password=b"p")
    assert world.run(lambda: world.of_kind("error"))
    world.client.username, world.client.password = "\xfcser", "\u20acpass"
    world.brokers[0].return_code = 0
    comes_back(world)
    connect = [body for head, body in world.brokers[0].seen if head == 0x10][-1]
    assert connect.endswith(b"\0\5" + "\xfcser".encode() + b"\0\7" + "\u20acpass".encode()), connect


def test_non_ascii_str_payload():
    # Planted: str is sent as ASCII.
    world = connected()
    for qos in (0, 1, 2):
        world.client.publish("t\xf6pic", "\xb0C \u20ac \U0001f321", qos)
    comes_back(world)
    equal(world.brokers[0].taken, [("t\xf6pic".encode(), "\xb0C \u20ac \U0001f321".encode())] * 3)


def test_erased_store_against_a_broker_that_remembers():
    # Planted: a session that only the broker remembers is taken for a new one, without a purge.
    flash = Flash()
    world = connected(flash=flash)
    broker = world.brokers[0]
    broker.hold_recs = 99
    world.client.publish(b"t", b"before", 2)
    world.client.tick()
    flash.messages.clear()
    flash.inbound.clear()
    flash.state.clear()
    broker.hold_recs = 0
    world.program = lambda world: world.client.subscribe(b"down/#", 2)
    world.restart()
    world.client.publish(b"t", b"after", 2)
    comes_back(world)
    assert (b"t", b"after") in broker.taken, "swallowed by a stale packet id"
    assert "SessionPurged" in repr(world.of_kind("error")[-2]), world.events
    # An option keeps the broker's queue instead.
    world = connected(keep_broker_queue=True)
    world.wire.break_now()
    world.brokers[0].send(b"c", b"down/x", b"queued", 1)
    world.options["store"] = None
    world.program = lambda world: world.client.subscribe(b"down/#", 2)
    world.restart()
    comes_back(world)
    assert (b"down/x", b"queued") in world.messages


def test_a_handler_that_raises():
    # Planted: the handler is called three times for each message, even if handler_retries asks for fewer.
    for qos in (0, 1, 2):
        for retries in (0, 2):
            world = connected(handler_retries=retries)
            calls = []
            dead = []

            def handler(topic, payload, world=world, calls=calls):
                calls.append((payload, world.client.redelivered))
                raise ValueError("planned")

            def died(topic, payload, error, dead=dead):
                dead.append((topic, payload, str(error)))

            world.client.on(b"down/bad", handler)
            world.client.on_dead_letter = died
            for topic in (b"down/bad", b"down/good"):
                world.brokers[0].send(b"c", topic, b"x", qos)
            world.settle()
            equal(calls, [(b"x", number > 0) for number in range(1 + retries)])
            equal(dead, [(b"down/bad", b"x", "planned")])
            equal(world.client.dead_letters, 1)
            equal(world.messages, [(b"down/good", b"x")])
            equal(world.brokers[0].session.queue, [], "not acknowledged")
            equal(world.faults(), [])
            assert world.client.connected


def test_poll_inside_a_handler_is_an_error_that_says_so():
    # Planted: poll() inside a handler returns at once.
    world = connected()
    dead = []
    world.client.on(b"down/x", lambda topic, payload: world.client.poll(1000))
    world.client.on_dead_letter = lambda topic, payload, error: dead.append(error)
    world.brokers[0].send(b"c", b"down/x", b"x", 1)
    world.settle()
    equal([(type(error), str(error)) for error in dead], [(MQTTError, "poll() in a handler")])
    assert world.client.connected


def test_session_lost_in_await_pubcomp():
    # Planted: a message that awaits PUBCOMP goes on waiting for it when the session is lost.
    for late in (False, True):
        world = connected(Broker(late=late))
        broker = world.brokers[0]
        world.client.publish(b"t", b"x", 2)
        world.wire.cut_down = world.wire.down_bytes + 4  # PUBREC comes, PUBCOMP does not
        world.wire.split_down = world.wire.down_bytes + 4
        world.client.tick()
        equal(len(world.client.outbox.released), 1)
        broker.lose_sessions = True
        world.wire.break_now()
        before = len(broker.taken)
        comes_back(world)
        equal(broker.taken[before:], [(b"t", b"x")], "it went again, whole and as new")


def test_a_pubrec_that_comes_twice_counts_once():
    # Planted: PUBREC is recorded again each time it arrives.
    world = connected(window=3)
    broker = world.brokers[0]
    broker.acknowledge = False
    for i in range(2):
        world.client.publish(b"t", b"%d" % i, 2)
    first = packet_ids(world.client.outbox)[0]
    for _ in range(3):
        broker._held.append(first)
        broker.release_held()
        world.client.tick()
    equal(world.client.outbox.released, [first])
    equal(world.client.in_flight, 2)
    world.client.publish(b"t", b"2", 1)
    equal(world.client.in_flight, 3)
    equal(world.faults(), [])
    broker.acknowledge = True
    world.wire.break_now()
    comes_back(world)
    equal(world.client.in_flight, 0)


def test_an_acknowledgement_of_what_was_never_sent_is_counted_and_nothing_else():
    # Planted: PUBACK completes a message that was never sent.
    world = connected()
    world.brokers[0].acknowledge = False
    world.wire.full = True
    packet_id = world.client.publish(b"t" * 2000, b"x" * 2000, 1)
    equal(world.client.unexpected, 0)
    world = connected(window=1)
    world.brokers[0].acknowledge = False
    first = world.client.publish(b"t", b"sent", 1)
    packet_id = world.client.publish(b"t", b"waits", 1)
    world.wire.send(bytes((0x40, 2, 0, packet_id)))
    world.client.tick()
    equal(world.client.unexpected, 1)
    assert world.client.is_pending(packet_id), "a message that was never sent cannot be acknowledged"
    world.wire.send(bytes((0x40, 2, 0, first)))
    world.brokers[0].acknowledge = True
    comes_back(world)
    assert (b"t", b"waits") in world.brokers[0].taken


def test_an_acknowledgement_of_another_qos_closes_the_link():
    # Planted: PUBREC completes a message at QoS 1. PUBACK at QoS 2 is in test_downgrade.py.
    for qos, head in ((1, 0x50), (1, 0x70), (2, 0x70)):
        world = connected()
        world.brokers[0].acknowledge = False
        packet_id = world.client.publish(b"t", b"x", qos)
        world.wire.send(bytes((head, 2, 0, packet_id)))
        world.client.tick()
        assert not world.client.connected, (qos, head)
        assert world.client.is_pending(packet_id)


def test_bad_arguments_while_connected_send_nothing():
    # Planted: a topic name may have a wildcard.
    world = connected()
    up_before = world.wire.up
    for arguments in ((b"a/+", b""), (b"", b""), (b"a\0", b""), (b"x" * 65536, b""), (b"a", 7), (b"a", b"", 3)):
        raises(InvalidArgument, world.client.publish, *arguments)
    raises(InvalidArgument, world.client.subscribe, b"a/#/b")
    world.settle()
    equal(world.wire.up, up_before)
    assert world.client.connected


def test_a_callback_that_raises_leaves_the_stream_whole():
    # Planted: an error of a callback leaves the link open, out of step with the bytes already read.
    world = connected()
    broker = world.brokers[0]
    client = world.client

    def on_acknowledged(packet_id):
        client.on_acknowledged = None
        raise ValueError("planned")

    client.on_acknowledged = on_acknowledged
    client.publish(b"t", b"x", 1)
    for i in range(5):
        broker.send(b"c", b"down/x", b"%d" % i, 1 + i % 2)
    raises(ValueError, client.tick)
    comes_back(world)
    equal(sorted(set(world.messages)), [(b"down/x", b"%d" % i) for i in range(5)])
    equal(broker.session.queue, [])


def test_a_purge_does_not_publish_the_will():
    # Planted: the link on which the need for a purge is found ends without DISCONNECT.
    world = connected(flash=Flash())
    world.flash.state.clear()
    world.restart()
    broker = world.brokers[0]
    seen = len(broker.seen)
    comes_back(world)
    heads = [head for head, _ in broker.seen[seen:] if head in (0x10, 0xE0)]
    equal(heads, [0x10, 0xE0, 0x10, 0xE0, 0x10], "each link that is given up ends with DISCONNECT")


def test_a_handler_that_needs_another_part_while_a_session_is_forgotten():
    # Planted: forget() walks through a dict that a handler makes longer.
    # The handler's message was stored and never released: it is handed over when the session is found to be lost.
    world = connected()
    broker = world.brokers[0]
    client = world.client
    handled = []

    def handler(topic, payload):
        client.acknowledge(1)
        client.publish(b"t", b"reply", 1, expires_in=5000)
        handled.append(payload)

    client.on_message = handler
    broker.send(b"c", b"down/x", b"stored", 2)
    client.tick()
    equal(handled, [])
    broker.lose_sessions = True
    world.wire.break_now()
    comes_back(world)
    equal(handled, [b"stored"])
    equal(broker.taken, [(b"t", b"reply")])


def test_on_message_can_be_set_after_a_message_of_the_topic_came():
    # Planted: the route of a topic keeps the on_message of its first message.
    for qos in (1, 2):
        world = connected()
        client = world.client
        client.on_message = None
        world.brokers[0].send(b"c", b"down/x", b"nobody's", qos)
        world.settle()
        equal((client.unhandled, world.messages), (1, []))
        for name in ("first", "second"):
            client.on_message = lambda topic, payload, name=name, world=world: world.messages.append((name, payload))
            world.brokers[0].send(b"c", b"down/x", b"x", qos)
            world.settle()
        equal((client.unhandled, world.messages), (1, [("first", b"x"), ("second", b"x")]))
