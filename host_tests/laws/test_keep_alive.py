"""Keep-alive and every other deadline of a link, to the millisecond, also across the wrap of the clock at 2**30 ms."""

from timing import STARTS, elapsed, pings, run_until, up
from umqtt_testkit.portable import TICKS_PERIOD, equal
from world import World, publish

from umqtt_robust import Client


def test_ping_leaves_at_half_the_keep_alive():
    # Planted: PINGREQ is due after the whole keep-alive.
    for start in STARTS:
        world = up(start)
        equal(run_until(world, lambda: pings(world), 20000), 5000)


def test_a_session_that_a_program_drives_has_the_whole_time_whenever_its_link_is_made():
    # Planted: open() leaves the time of the send buffer, or of the session, as it was.
    for start in (0, 300_000, TICKS_PERIOD - 7000, TICKS_PERIOD - 1):
        for waited in (0, 3000, 300_000, 5 * 86_400_000):
            now = start
            session = Client("c", "mqtt://h", 10, ticks=lambda: now % TICKS_PERIOD)  # noqa: B023 - called before it changes
            now += waited
            sent = []
            session.open(lambda buf, offset, size, sent=sent: sent.append(buf[offset]) or size)
            session.receive(bytearray(b"\x20\x02\0\0"), 4)
            equal(session.work(), 5000, (start, waited))
            now += 4999
            session.advance()
            equal(session.work(), 1, (start, waited))
            now += 1
            session.advance()
            session.work()
            equal(sent, [0x10, 0xC0], (start, waited))


def test_a_blackholed_idle_link_is_found_within_keep_alive():
    # Planted: PINGREQ may stay unanswered for a whole keep-alive.
    for start in STARTS:
        world = up(start)
        world.wire.mute = True
        equal(run_until(world, lambda: not world.client.connected, 20000), 10000)


def test_a_link_that_takes_no_bytes_is_found_within_keep_alive():
    # Planted: the wait for PINGRESP begins when the link has taken PINGREQ.
    for start in STARTS:
        world = up(start)
        world.wire.full = True
        equal(run_until(world, lambda: not world.client.connected, 20000), 10000)


def test_a_blackhole_in_the_middle_of_a_packet_is_found_within_keep_alive():
    # Planted: an incomplete packet in the buffer counts as new input at every tick.
    for start in STARTS:
        world = up(start)
        world.wire.send(publish(b"t", b"half of it never comes")[:9])
        world.client.tick()
        world.wire.mute = True
        equal(run_until(world, lambda world=world: not world.client.connected, 20000), 10000)


def test_a_half_open_link_is_found_under_a_steady_flow_at_qos_0():
    # Planted: PINGREQ is due only when nothing was sent.
    for start in STARTS:
        world = up(start)
        world.wire.mute = True
        since = world.clock.ticks_ms()
        while world.client.connected:
            world.client.publish(b"t", b"x")
            world.client.tick()
            world.clock.advance(100)
            assert elapsed(world, since) <= 10100
        assert elapsed(world, since) >= 10000


def test_a_broker_that_only_acknowledges_is_alive_and_found_when_it_stops():
    # Planted: PUBACK does not count as a sign of life.
    for start in STARTS:
        world = up(start)
        broker = world.brokers[0]
        broker.answer_pings = False
        for _ in range(100):
            world.client.publish(b"t", b"x", 1)
            world.settle()
            world.clock.advance(1000)
            assert world.client.connected
        world.settle()
        last = world.clock.ticks_ms()
        broker.answer = False
        run_until(world, lambda: not world.client.connected, 20000)
        assert elapsed(world, last) <= 10000


def test_a_lost_puback_on_a_live_link_closes_it_and_nothing_is_sent_twice_before():
    # Planted: messages in flight have no deadline.
    world = up(0, ack_timeout=30000)
    broker = world.brokers[0]
    broker.acknowledge = False
    world.client.publish(b"t", b"x", 1)
    equal(run_until(world, lambda: not world.client.connected, 40000), 30000)
    equal(len(broker.taken), 1)
    broker.acknowledge = True
    assert world.run(lambda: not world.client.pending)
    equal(broker.taken, [(b"t", b"x"), (b"t", b"x")])


def test_keep_alive_0_never_pings_and_never_gives_up():
    # Planted: keep_alive=0 means 60 s.
    world = up(0, keep_alive=0)
    world.wire.mute = True
    world.settle(1000000)
    assert world.client.connected and not pings(world)


def test_ping_leaves_when_only_the_other_side_is_quiet():
    # Planted: PINGREQ is due only when nothing arrived.
    for start in STARTS:
        # Only messages arrive: the broker must hear from the client.
        world = up(start)
        since = world.clock.ticks_ms()
        while not pings(world):
            world.wire.send(publish(b"t", b"x"))
            world.client.tick()
            world.clock.advance(100)
            assert elapsed(world, since) <= 5100
        assert elapsed(world, since) >= 5000
        # Only messages leave: PINGREQ makes the broker answer.
        world = up(start)
        since = world.clock.ticks_ms()
        while not pings(world):
            world.client.publish(b"t", b"x")
            world.client.tick()
            world.clock.advance(100)
            assert elapsed(world, since) <= 5100
        assert elapsed(world, since) >= 5000


def test_whatever_arrives_is_an_answer_to_a_ping_until_twice_the_keep_alive():
    # Planted: a client that receives anything never gives up waiting for PINGRESP.
    for start in STARTS:
        world = up(start)
        world.brokers[0].answer_pings = False
        since = world.clock.ticks_ms()
        while world.client.connected:
            if elapsed(world, since) % 3000 == 0:
                world.wire.send(publish(b"t", b"x"))
            world.client.tick()
            if world.client.connected:
                world.clock.advance(100)
            assert elapsed(world, since) <= 30000
        # PINGREQ left at 5 s; after that the client wrote nothing, so the broker would end the link soon.
        equal(elapsed(world, since), 25000)
        equal(len(pings(world)), 1)


def test_a_ping_that_is_answered_late_counts_from_what_arrived_last():
    # Planted: the wait for PINGRESP always counts from PINGREQ, not from the last bytes received.
    for start in STARTS:
        world = up(start)
        world.brokers[0].answer_pings = False
        equal(run_until(world, lambda: pings(world), 20000), 5000)
        world.clock.advance(2000)
        world.wire.send(publish(b"t", b"x"))
        world.client.tick()
        assert world.client.connected
        equal(run_until(world, lambda: not world.client.connected, 20000), 5000)


def test_every_answered_ping_is_followed_by_another():
    # Planted: PINGRESP does not end the wait for it.
    for start in STARTS:
        world = up(start)
        equal(run_until(world, lambda: len(pings(world)) == 20, 200000), 100000)
        assert world.client.connected


def test_ping_times_can_be_chosen():
    # Planted: ping_after is ignored.
    world = up(0, ping_after=3000, ping_timeout=1500)
    world.wire.mute = True
    equal(run_until(world, lambda: world.wire.up > 15, 20000), 3000)
    equal(run_until(world, lambda: not world.client.connected, 20000), 1500)


def test_a_long_keep_alive_waits_ten_seconds_for_the_answer():
    # Planted: the wait for PINGRESP has no upper limit.
    world = up(0, keep_alive=60)
    world.wire.mute = True
    equal(run_until(world, lambda: not world.client.connected, 70000), 40000)


def test_the_acknowledgement_that_is_missing_longest_ends_the_link():
    # Planted: only the first message in flight has a deadline.
    # The first one progresses with PUBREC after 20 s; the second never gets its PUBACK.
    for start in STARTS:
        world = up(start)
        broker = world.brokers[0]
        broker.acknowledge = False
        since = world.clock.ticks_ms()
        world.client.publish(b"t", b"first", 2)
        world.client.publish(b"t", b"second", 1)
        while elapsed(world, since) < 20000:
            world.client.tick()
            world.clock.advance(1000)
        broker._held.append(1)
        broker.release_held()
        world.client.tick()
        equal(run_until(world, lambda: not world.client.connected, 40000), 10000)
        assert "ack_timeout" in str(world.of_kind("disconnect")[-1])


def test_each_acknowledgement_has_its_own_time():
    # Planted: only the last message in flight has a deadline.
    world = up(0)
    broker = world.brokers[0]
    broker.acknowledge = False
    for i in range(4):
        world.client.publish(b"t", b"%d" % i, 1)
        world.client.tick()
        world.clock.advance(5000)
    world.wire.send(b"\x40\2\0\1")  # the first one is acknowledged; the second has waited 15 s
    world.client.tick()
    equal(run_until(world, lambda: not world.client.connected, 40000), 15000)


def test_an_old_deadline_does_not_end_a_new_link():
    # Planted: messages stay in flight, with their deadlines, when the link is gone.
    # The new link is busy for a while, so the messages in flight on the old one have not been sent on it yet.
    for qos in (1, 2):
        world = up(0, tx_size=32, queue_qos0=True)
        world.brokers[0].acknowledge = False
        for i in range(6):
            world.client.publish(b"t", b"%d" % i, qos)
        world.settle(29000)
        world.wire.break_now()
        world.cuts = [{"split_up": 15}]
        assert world.run(lambda: len(world.wires) == 2 and world.client.connected, 10000)
        world.wire.full = True
        world.settle(4000)
        assert world.client.connected


def test_suback_that_does_not_come_ends_the_link():
    # Planted: SUBACK has no deadline.
    world = up(0)
    world.brokers[0].answer = False
    world.client.subscribe(b"t")
    world.client.tick()
    world.client.keep_alive_ms = 0
    equal(run_until(world, lambda: not world.client.connected, 40000), 30000)
    assert "ack_timeout" in str(world.of_kind("disconnect")[-1])


def test_connack_has_a_deadline():
    # Planted: the end of connect_timeout has no effect.
    for start in STARTS:
        for state in ("no answer", "no bytes taken", "not connected"):
            world = World(start=start, connect_timeout=7000)
            run_until(world, lambda: world.wires, 20000)
            if state == "no answer":
                world.brokers[0].answer = False
            world.wire.break_now()
            world.client.tick()
            world.brokers[0].answer = False
            wires = len(world.wires)
            make = world._make

            def slow(host, port, path, make=make, state=state):
                wire = make(host, port, path)
                wire.full = state == "no bytes taken"
                wire.ready = lambda: state != "not connected"
                return wire

            world.client.servers = [(slow,) + world.client.servers[0][1:]]
            run_until(world, lambda: len(world.wires) > wires, 20000)
            equal(run_until(world, lambda: world.of_kind("error"), 20000), 7000, state)


def test_a_quiescing_disconnect_ends_in_time_in_every_state():
    # Planted: tick() does not ask for a call at the deadline of disconnect().
    for start in STARTS:
        for state in ("unreachable", "no acknowledgement", "back off"):
            world = World(start=start) if state != "no acknowledgement" else up(start)
            if state == "no acknowledgement":
                world.brokers[0].acknowledge = False
            else:
                world.unreachable = True
            world.client.publish(b"t", b"x", 1)
            for _ in range(8 if state == "back off" else 1):
                world.clock.advance(world.client.tick())
            world.client.disconnect(2000)
            equal(run_until(world, lambda: world.client.closed, 200000), 2000, state)
        world = up(start)
        world.client.publish(b"t", b"x", 1)
        world.client.disconnect(2000)
        assert run_until(world, lambda world=world: world.client.closed, 2000) <= 1
        equal(world.brokers[0].seen[-1], (0xE0, b""))
        equal(world.brokers[0].taken, [(b"t", b"x")])


def test_an_acknowledgement_that_waits_in_the_socket_of_a_busy_program_is_not_missing():
    # Planted: the time in which nobody reads counts. What came before the PUBACK takes more than one tick to read.
    world = up(0, ack_timeout=3000)
    client, broker = world.client, world.brokers[0]
    client.reads = 1
    client.subscribe(b"in/#", 0)
    world.settle()
    for i in range(200):
        broker.send(b"c", b"in/x", b"%d" % i + bytes(60), 0)
    client.publish(b"t", b"x", 1)
    world.clock.advance(4000)
    assert world.run(lambda: not client.pending, 10000)
    equal((len(world.wires), len(world.taken())), (1, 1))


def test_a_publish_between_rare_ticks_has_its_whole_ack_timeout():
    # Planted: publish() takes the time of the last tick.
    for gap in (1000, 60000, 250000):
        world = up(0, keep_alive=600)
        broker = world.brokers[0]
        broker.acknowledge = False
        for _ in range(3):
            world.client.tick()
            world.clock.advance(gap)
            packet_id = world.client.publish(b"t", b"x", 1)
            world.client.tick()
            world.clock.advance(29000)
            world.client.tick()
            equal(world.of_kind("disconnect"), [], "%d ms between ticks" % gap)
            world.wire.send(bytes((0x40, 2, 0, packet_id)))
            world.client.tick()
            equal(world.client.pending, 0)
