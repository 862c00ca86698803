"""The order of acknowledgements [MQTT-4.6.0-2 to 4.6.0-4] and the packet ids in use [MQTT-2.3.1-4]."""

from umqtt_testkit.portable import Rng, equal
from world import Broker, Flash, World, publish

HEAP = "4M"


def connected(**options):
    broker = options.pop("broker", None) or Broker()
    world = World([broker], **options)
    world.client.subscribe(b"down/#", qos=2)
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    return world


def test_manual_acknowledgement_in_any_order_pubacks_in_order_of_arrival():
    # Planted: PUBACKs leave in the order of acknowledge().
    for seed in range(100):
        rng = Rng(seed, quiet=True)
        world = connected(manual_ack=True, tx_size=rng.choice((32, 64, 1024)))
        client = world.client
        waiting = []
        seen = []

        def handler(topic, payload, waiting=waiting, seen=seen, client=client):
            waiting.append(client.packet_id)
            seen.append(payload)

        client.on_message = handler
        qos = {}
        for i in range(12):
            qos[b"%d" % i] = rng.between(1, 2)
            world.brokers[0].send(b"c", b"down/x", b"%d" % i, qos[b"%d" % i])
            world.wire.full = rng.chance(30)
            client.tick()
            while waiting and rng.chance(40):
                world.wire.full = rng.chance(30)
                assert client.acknowledge(waiting.pop(rng.below(len(waiting))))
        world.wire.full = False
        world.settle()
        rng.shuffle(waiting)
        while waiting:
            assert client.acknowledge(waiting.pop(0))
            world.settle()
        equal(client.acknowledge(7), False)
        equal(world.brokers[0].faults, [], "seed %d" % seed)
        equal(world.brokers[0].session.queue, [], "seed %d" % seed)
        for level in (1, 2):
            equal([one for one in seen if qos[one] == level], [b"%d" % i for i in range(12) if qos[b"%d" % i] == level])


def test_manual_acknowledgement_at_qos_2_is_handed_over_once_over_any_number_of_links():
    # Planted: PUBREL on the next link hands over again a message that the program has not acknowledged.
    for when in ("before", "offline", "after"):
        world = connected(manual_ack=True)
        client = world.client
        seen = []
        client.on_message = lambda topic, payload: seen.append((client.packet_id, payload))
        for payload in (b"one", b"two"):
            world.brokers[0].send(b"c", b"down/x", payload, 2)
        world.settle()
        equal(seen, [(1, b"one"), (2, b"two")])
        if when == "before":
            assert client.acknowledge(2)
        world.wire.break_now()
        client.tick()
        if when == "offline":
            assert client.acknowledge(2)
        world.run(lambda: client.connected)
        world.settle()
        if when == "after":
            assert client.acknowledge(2)
        assert client.acknowledge(1)
        world.settle()
        equal(len(seen), 2, when)
        equal(world.brokers[0].session.queue, [], when)
        equal(world.brokers[0].faults, [])


def test_manual_acknowledgement_at_qos_1_comes_again_on_the_next_link_and_is_flagged():
    # Planted: a message that was not acknowledged on the last link still waits for its PUBACK on this one.
    world = connected(manual_ack=True)
    world.brokers[0].send(b"c", b"down/x", b"one", 1)
    world.settle()
    world.wire.break_now()
    world.run(lambda: len(world.wires) > 1 and world.client.connected)
    world.settle()
    equal(world.messages, [(b"down/x", b"one")] * 2)
    equal(world.redelivered, [False, True])
    assert world.client.acknowledge(1)
    world.brokers[0].send(b"c", b"down/x", b"two", 1)
    world.settle()
    assert world.client.acknowledge(2)
    world.settle()
    equal(world.brokers[0].session.queue, [])
    equal(world.brokers[0].faults, [])


def test_pubrels_in_the_order_of_the_pubrecs_of_a_broker_that_answers_out_of_order():
    # Planted: PUBRELs are repeated in the order of packet ids.
    for hold in (2, 3, 5, 8):
        for cut in range(0, 60, 2):
            world = connected(broker=Broker(hold_recs=hold))
            released = len(world.brokers[0].seen)
            world.wire.cut_down = world.wire.down_bytes + cut
            for i in range(hold):
                world.client.publish(b"t", b"%d" % i, 2)
            assert world.run(lambda: not world.client.pending)
            equal(world.brokers[0].faults, [], "hold %d, cut %d" % (hold, cut))
            if cut == 4 * hold:
                # All PUBRECs came, the link broke, and the PUBRELs were sent again: that of the last PUBLISH first.
                world.run(lambda: world.client.connected)
                rels = [body[1] for head, body in world.brokers[0].seen[released:] if head == 0x62]
                equal(rels[-hold:], sorted(rels[-hold:], reverse=True))


def test_acknowledgements_keep_their_order_when_the_send_buffer_is_full():
    # Planted: a PUBLISH is dropped if its acknowledgement finds no room.
    for seed in range(60):
        rng = Rng(seed, quiet=True)
        world = connected(tx_size=32, rx_size=rng.choice((32, 200)))
        broker = world.brokers[0]
        for i in range(30):
            broker.send(b"c", b"down/x", b"%d" % i, rng.between(1, 2))
        sent = []
        for i in range(40):
            world.wire.full = rng.chance(70)
            world.wire.piece = rng.between(1, 9)
            if rng.chance(30) and len(sent) < 20:
                sent.append(b"up %d" % i)
                world.client.publish(b"t", sent[-1], rng.between(1, 2))
            world.client.tick()
        world.wire.full = False
        world.settle()
        equal(broker.faults, [], "seed %d" % seed)
        equal(broker.session.queue, [], "seed %d" % seed)
        equal([payload for _, payload in broker.taken], sent, "seed %d" % seed)
        equal(sorted(world.messages), sorted([(b"down/x", b"%d" % i) for i in range(30)]))


def test_acknowledgements_before_publishes_and_pubrels_before_publishes_on_a_new_link():
    # Planted: PUBRELs are repeated after all PUBLISHes.
    world = connected(window=4)
    broker = world.brokers[0]
    world.wire.cut_down = world.wire.down_bytes + 8  # two PUBRECs
    for i in range(6):
        world.client.publish(b"t", b"%d" % i, 2)
    assert world.run(lambda: not world.client.pending)
    kinds = [head & 0xF0 for head, _ in broker.seen if head & 0xF0 in (0x10, 0x30, 0x60)]
    second_link = kinds.index(0x10, 1)
    equal(kinds[second_link : second_link + 4], [0x10, 0x60, 0x60, 0x30])
    equal(broker.faults, [])


def test_acknowledgements_by_the_program_wait_for_room_and_go_before_publishes():
    # Planted: PUBLISH does not wait for PUBACKs that found no room.
    for qos in (1, 2):
        world = connected(manual_ack=True, tx_size=32, rx_size=256)
        client = world.client
        broker = world.brokers[0]
        for i in range(20):
            broker.send(b"c", b"down/x", b"%d" % i, qos)
        world.settle()
        equal(len(world.messages), 20)
        world.wire.full = True
        before = len(broker.seen)
        for packet_id in range(20, 0, -1):
            assert client.acknowledge(packet_id)
            client.tick()
        client.publish(b"t", b"x", 1)
        client.tick()
        world.wire.full = False
        world.settle()
        equal(broker.session.queue, [])
        equal([head for head, _ in broker.seen[before:]], [0x40 if qos == 1 else 0x70] * 20 + [0x32])
        equal(broker.faults, [])


def test_pubrels_that_waited_for_room_are_forgotten_with_the_session():
    # Planted: PUBRELs that wait for room outlive the session.
    for lost in (False, True):
        world = connected(tx_size=64, window=20, broker=Broker(hold_recs=20))
        client = world.client
        broker = world.brokers[0]
        for i in range(20):
            client.publish(b"t", b"%d" % i, 2)
        world.wire.split_down = world.wire.down_bytes + 80  # all PUBRECs, and no PUBCOMP
        world.run(lambda client=client: len(client.outbox.released) == 20)
        world.wire.break_now()
        make = world._make

        def full(host, port, path, make=make):
            wire = make(host, port, path)
            wire.split_up = 15  # only CONNECT passes
            write = wire.write
            wire.write = lambda buf, offset, size: write(buf, offset, size) if wire.up < 15 else None
            return wire

        servers = client.servers
        client.servers = [(full,) + servers[0][1:]]
        world.run(lambda client=client, world=world: len(world.wires) == 2 and client.connected)
        client.tick()
        broker.lose_sessions = lost
        client.servers = servers
        world.wire.break_now()
        world.settle()
        assert world.run(lambda client=client: client.connected and not client.pending)
        equal(broker.faults, [])
        equal(sorted(set(broker.taken)), sorted([(b"t", b"%d" % i) for i in range(20)]))


def test_the_packet_id_of_an_unanswered_request_is_in_use():
    # Planted: the packet ids of SUBSCRIBE and UNSUBSCRIBE are free at once.
    for publish_first in (True, False):
        world = connected()
        client = world.client
        world.brokers[0].answer = False
        if publish_first:
            in_use = client.publish(b"t", b"x", 1)
        else:
            client.subscribe(b"more")
            client.tick()
            in_use = client.last_id
        client.last_id = in_use - 1
        if publish_first:
            client.subscribe(b"more")
            client.tick()
            assert client.last_id != in_use
        else:
            assert client.publish(b"t", b"x", 1) != in_use


def test_packet_ids_follow_those_in_the_store_after_a_restart():
    # Planted: packet ids begin at 1 after a restart.
    flash = Flash()
    world = World(flash=flash)
    world.unreachable = True
    world.client.last_id = 499
    for _ in range(3):
        world.client.publish(b"t", b"x", 1)
    world.restart()
    equal(world.client.publish(b"t", b"x", 1), 503)


def test_packet_ids_through_the_wrap_skip_those_in_use():
    # Planted: a packet id is used again while a message still has it.
    for stuck in (1, 2, 3):
        world = connected(window=3)
        client = world.client
        broker = world.brokers[0]
        broker.acknowledge = False
        for _ in range(stuck):
            client.publish(b"t", b"stuck", 2)
        first = sorted(client.outbox.slot_of)
        client.last_id = 65535 - 3
        broker.acknowledge = True
        ids = []
        for i in range(9):
            packet_id = client.publish(b"t", b"%d" % i, 1)
            assert 1 <= packet_id <= 65535 and packet_id not in first and packet_id not in ids, packet_id
            ids.append(packet_id)
            client.tick()
        equal(ids[:3], [65533, 65534, 65535])
        assert world.run(lambda: not client.pending)
        equal(broker.faults, [])


def test_random_use_never_reuses_a_packet_id_or_breaks_an_order():
    # Planted: an acknowledgement moves the position of the next message to send, which is then skipped.
    for seed in range(80):
        rng = Rng(seed, quiet=True)
        world = World(
            [Broker(late=rng.chance(50), hold_recs=rng.below(5))],
            window=rng.between(1, 8),
            tx_size=rng.choice((32, 64, 1024)),
            rx_size=rng.choice((48, 1024)),
        )
        client = world.client
        broker = world.brokers[0]
        client.last_id = 65530 - rng.below(20)
        client.subscribe(b"down/#", qos=2)
        sent = []
        commands = []
        for i in range(120):
            action = rng.below(100)
            if action < 30 and client.pending < 30:
                before = list(client.outbox.slot_of)
                sent.append((b"t", b"%d" % i, rng.between(1, 2)))
                assert client.publish(*sent[-1]) not in before
            elif action < 50:
                command = (b"down/%d" % rng.below(2), b"%d" % i, rng.between(1, 2))
                if broker.send(b"c", *command):
                    commands.append(command)
            elif action < 54 and world.wires:
                world.wire.break_now()
            elif action < 58:
                client.subscribe(b"down/x%d" % rng.below(3), rng.below(3))
            elif action < 60:
                client.unsubscribe(b"down/x%d" % rng.below(3))
            elif action < 70 and world.wires:
                world.wire.full = rng.chance(50)
            elif action < 80:
                world.clock.advance(rng.below(3000))
            client.tick()
        for wire in world.wires:
            wire.full = False
        assert world.run(lambda: client.connected and not client.pending and client.subscribed), "seed %d" % seed
        world.settle()
        equal(broker.faults, [], "seed %d" % seed)
        for topic, payload, qos in sent:
            n = broker.taken.count((topic, payload))
            assert n == 1 or qos == 1 and n, (seed, payload, qos, n)
        for topic, payload, qos in commands:
            n = world.messages.count((topic, payload))
            assert n == 1 or qos == 1 and n, (seed, topic, payload, qos, n)
        order = []
        for _, payload in broker.taken:
            if payload not in order:
                order.append(payload)
        if not broker.late:
            equal(order, [payload for _, payload, _ in sent], "seed %d" % seed)


def test_a_handler_acknowledges_another_message_while_a_session_is_forgotten():
    # Planted: when a session is forgotten, every stored message is assumed to be still there.
    world = connected(manual_ack=True)
    client = world.client
    seen = []

    def handler(topic, payload):
        seen.append(payload)
        client.acknowledge(2)

    client.on_message = lambda topic, payload: seen.append(payload)
    for packet_id in (1, 2):
        world.wire.send(publish(b"down/x", b"%d" % packet_id, 2, packet_id))
    world.wire.send(b"\x62\x02\x00\x02")
    world.settle()
    client.on_message = handler
    world.brokers[0].lose_sessions = True
    world.wire.break_now()
    world.settle(5000)
    equal(seen, [b"2", b"1"])
    equal(len(world.wires), 2)


def test_messages_at_qos_0_leave_in_the_order_of_publish_with_those_that_were_kept():
    # Planted: on a live link, QoS 0 overtakes messages that were kept while there was no link.
    world = World(queue_qos0=True, tx_size=32)
    client = world.client
    for i in range(20):
        client.publish(b"t", b"%d" % i)
    client.on_connect = lambda session_present: client.publish(b"t", b"20")
    assert world.run(lambda: client.connected)
    client.publish(b"t", b"21")
    assert world.run(lambda: not client.pending)
    client.publish(b"t", b"22")
    world.settle()
    equal([payload for _, payload in world.taken()], [b"%d" % i for i in range(23)])
