"""Messages larger than the receive buffer: streamed once at QoS 2, at least once at QoS 1, wherever the link is cut."""

from umqtt_testkit.portable import equal
from world import Broker, World, every, publish

HEAP = "4M"
TIMEOUT_S = 100
BODY = bytes([i * 7 & 255 for i in range(300)])


def receiver(cut, handler=True, **options):
    world = World([Broker()], rx_size=64, **options)
    world.client.subscribe(b"down/#", 2)
    world.whole = []
    parts = []

    def on_large(topic, offset, size, chunk):
        equal((topic, size), (b"down/large", len(BODY)))
        if offset == 0:
            del parts[:]
        equal(sum([len(part) for part in parts]), offset)
        parts.append(bytes(chunk))
        if offset + len(chunk) == size:
            equal(b"".join(parts), BODY)
            world.whole.append(world.client.redelivered)

    if handler:
        world.client.on_large = on_large
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    for name in cut:
        before = world.wire.up if name == "cut_up" else world.wire.down_bytes
        setattr(world.wire, name, before + cut[name])
    return world


def exchange(world, qos):
    broker = world.brokers[0]
    broker.send(b"c", b"down/large", BODY, qos)
    broker.send(b"c", b"down/small", b"next", 2)
    world.run(lambda: not broker.sessions[b"c"].queue)
    world.settle()
    equal(broker.faults, [])
    equal(broker.sessions[b"c"].queue, [])
    equal(world.messages, [(b"down/small", b"next")])


def cuts():
    sizes = every(360, 5)
    return [{"cut_down": at} for at in sizes] + [{"cut_up": at} for at in range(20)]


def test_streamed_to_a_handler_exactly_once_at_qos_2():
    # Planted: a DUP of a large message whose PUBREC was lost is handed over again.
    for cut in cuts():
        for qos in (1, 2):
            world = receiver(cut)
            try:
                exchange(world, qos)
                assert len(world.whole) == 1 or qos == 1 and world.whole == [False, True], world.whole
            except BaseException:
                print("cut", cut, "qos", qos)
                raise


def test_skipped_and_acknowledged_without_a_handler():
    # Planted: a large message without a handler is not acknowledged.
    for cut in cuts()[::3]:
        for qos in (1, 2):
            world = receiver(cut, handler=False)
            exchange(world, qos)
            assert world.client.too_large >= 1
            equal(type(world.of_kind("error")[0]).__name__, "MessageTooLarge")


def test_an_empty_payload_behind_a_long_topic_is_handed_over():
    # Planted: with no payload byte the handler is never started, so the message is acknowledged and never handed
    # over; only the beginning of a topic name longer than the buffer is kept.
    topic = b"down/" + b"x" * 80
    for qos in (0, 1, 2):
        for size in (0, 1):
            for on_large in (True, False):
                world = World([Broker()], rx_size=64)
                calls = []
                if on_large:
                    world.client.on_large = lambda *what, calls=calls: calls.append((what[:3], bytes(what[3])))
                world.client.subscribe(b"down/#", 2)
                assert world.run(lambda world=world: world.client.connected and world.client.subscribed)
                world.brokers[0].send(b"c", topic, b"x" * size, qos)
                world.settle()
                equal(calls, [((topic, 0, size), b"x" * size)] if on_large else [])
                equal((world.client.received, world.client.too_large), (1, 0 if on_large else 1))
                equal(world.brokers[0].session.queue, [])
                equal(world.faults(), [])


def test_acknowledged_with_manual_acknowledgement_too():
    # Planted: with manual_ack a large message waits for an acknowledge() that nobody calls.
    for qos in (1, 2):
        world = receiver({}, manual_ack=True)
        broker = world.brokers[0]
        broker.send(b"c", b"down/large", BODY, qos)
        world.settle()
        equal(world.whole, [False])
        equal(broker.session.queue, [])
        equal(broker.faults, [])


def test_sent_in_pieces_that_a_busy_link_takes():
    # Planted: publish() keeps a reference to the program's buffer, which is then reused, and not a copy.
    for piece in (1, 7, 50, 1000):
        world = World([Broker()], tx_size=64)
        assert world.run(lambda world=world: world.client.connected)
        world.wire.piece = piece
        for qos in (0, 1, 2):
            buffer = bytearray(BODY)
            world.wire.full = True
            world.client.publish(b"up/large", buffer, qos)
            buffer[:] = bytes(len(buffer))
            world.wire.full = False
            world.client.publish(b"up/small", b"x", qos)
            world.settle()
        equal(world.taken().count((b"up/large", BODY)), 3)
        equal(world.taken().count((b"up/small", b"x")), 3)
        equal(world.faults(), [])


def test_a_new_large_message_under_a_stale_id_is_not_swallowed():
    # Planted: a known packet id always means the same message, with or without DUP.
    # The session was lost, and so was the CONNACK that said so: the broker begins again with the same packet ids.
    world = receiver({})
    world.wire.send(publish(b"down/old", b"stored", 2, 1))
    world.client.tick()
    world.wire.send(publish(b"down/large", BODY, 2, 1))
    world.settle()
    equal(world.whole, [False])
    world.wire.send(publish(b"down/large", BODY, 2, 1, dup=True))
    world.settle()
    equal(world.whole, [False], "the same message again")
    world.wire.send(b"\x62\x02\x00\x01")
    world.settle()
    equal(world.messages, [(b"down/old", b"stored")])
    equal(world.brokers[0].seen[-1], (0x70, b"\x00\x01"))


def test_many_large_messages_wait_for_a_busy_link_each_as_it_is():
    # Planted: a large message replaces the one that the link is still taking.
    for qos in (1, 2):
        for piece in (1, 40, 5000):
            world = World([Broker()], tx_size=64)
            assert world.run(lambda world=world: world.client.connected)
            world.wire.piece = piece
            sent = []
            for i in range(8):
                world.wire.full = i % 3 > 0
                sent.append((b"up/large", bytes([i]) * (30 + 40 * i)))
                world.client.publish(sent[-1][0], sent[-1][1], qos)
                sent.append((b"up/small", b"%d" % i))
                world.client.publish(sent[-1][0], sent[-1][1], qos)
                world.client.tick()
            world.wire.full = False
            assert world.run(lambda world=world: not world.client.pending)
            equal(world.taken(), sent)
            equal(world.faults(), [])
