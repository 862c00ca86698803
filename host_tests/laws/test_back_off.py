"""The client retries at the right millisecond, also across the wrap of the clock at 2**30 ms and long sleeps."""

from timing import STARTS, elapsed, run_until, up
from umqtt_testkit.portable import Rng, equal
from world import Broker, Flash, World

SLEEPS = (60000, 1 << 28, (1 << 29) - 1, 1 << 29, (1 << 29) + 5, (1 << 30) - 1000)


def test_a_long_sleep_ends_in_a_new_link_and_no_loss():
    # Planted: messages in flight on the old link are not sent again on the new one.
    for sleep in (60000, 1 << 28, 1 << 29, (1 << 29) + 5, (1 << 30) - 1000):
        world = up(0)
        world.client.publish(b"t", b"before", 1)
        world.clock.advance(sleep)
        world.wire.break_now()  # no broker waits that long
        world.client.publish(b"t", b"after", 1)
        assert world.run(lambda: not world.client.pending and world.client.connected)
        payloads = [payload for _, payload in world.brokers[0].taken]
        assert payloads.index(b"before") < payloads.index(b"after"), payloads


def test_waits_between_attempts_to_the_millisecond():
    # Planted: the wait doubles already after the first failed attempt.
    for start in STARTS:
        world = World(start=start)
        attempts = []
        world.unreachable = True
        begin = world.clock.ticks_ms()
        while len(attempts) < 10:
            errors = len(world.of_kind("error"))
            wait = world.client.tick()
            if len(world.of_kind("error")) > errors:
                attempts.append(elapsed(world, begin))
                begin = world.clock.ticks_ms()
            world.clock.advance(wait)
        equal(attempts, [1000, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 128000])


def test_the_wait_is_short_again_only_after_a_good_link():
    # Planted: every link makes the next wait short, however soon it ended.
    world = World()
    for lasted, limit in ((20000, 1000), (1000, 1000), (1000, 2000), (1000, 4000), (20000, 1000)):
        assert world.run(lambda: world.client.connected)
        world.settle(lasted)
        world.wire.break_now()
        world.client.tick()
        equal(world.client.tick(), limit, lasted)


def test_a_long_sleep_while_waiting_for_the_next_attempt():
    # Planted: a wait that began 2**29 ms ago or earlier counts as not started.
    for start in STARTS:
        for sleep in SLEEPS:
            world = World(start=start)
            world.unreachable = True
            for _ in range(9):
                world.clock.advance(world.client.tick())
            world.client.tick()
            world.unreachable = False
            world.clock.advance(sleep)
            assert run_until(world, lambda world=world: world.client.connected, 128000) <= 128000


def test_a_long_sleep_while_connected_is_a_new_link_at_once():
    # Planted: a clock that seems to run backwards is not taken for a long sleep.
    for start in STARTS:
        for sleep in SLEEPS:
            world = up(start)
            world.clock.advance(sleep)
            world.client.tick()
            if sleep > 20000:
                # A link that was silent for so long is not trusted, whatever its socket reports.
                if sleep >= 1 << 29:
                    assert "slept" in str(world.of_kind("disconnect")[0]), sleep
                assert run_until(world, lambda world=world: len(world.wires) > 1, 20000) <= 1000
            assert world.run(lambda world=world: world.client.connected)


def test_a_long_sleep_while_connecting_and_while_closing():
    # Planted: the deadline of disconnect() is not brought forward after a long sleep.
    for sleep in SLEEPS:
        world = World()
        world.brokers[0].answer = False
        run_until(world, lambda world=world: world.wires, 2000)
        for _ in range(5):
            world.clock.advance(1000)
            world.client.tick()
        world.clock.advance(sleep)
        world.client.tick()
        world.brokers[0].answer = True
        assert run_until(world, lambda world=world: world.client.connected, 20000) <= 2000
        world.brokers[0].acknowledge = False
        world.client.publish(b"t", b"x", 1)
        world.client.disconnect(5000)
        world.client.tick()
        world.clock.advance(sleep)
        assert run_until(world, lambda world=world: world.client.closed, 5000) <= 1


def test_a_link_that_lasted_for_days_was_a_good_one():
    # Planted: a link that lasted 2**29 ms (6.2 days) or longer counts as short.
    # From 2**29 ms on, the difference of two times is negative.
    for days in (1, 7, 13, 20):
        world = World(keep_alive=0)
        world.unreachable = True
        for _ in range(10):
            world.clock.advance(world.client.tick())
        world.unreachable = False
        for _ in range(4):
            assert world.run(lambda world=world: world.client.connected)
            for _ in range(days * 2):
                world.client.tick()
                world.clock.advance(43200000)
                world.client.tick()
            world.wire.break_now()
            world.client.tick()
            equal(world.client.tick(), 1000, "%d days" % days)
        assert not [error for error in world.of_kind("error") if "elsewhere" in str(error)]


def test_every_broker_is_tried_in_a_round_before_the_wait():
    # Planted: the client waits after each server, not after each round.
    brokers = [Broker("a"), Broker("b"), Broker("c")]
    world = World(brokers)
    for broker in brokers:
        broker.down = True
    waits = []
    for _ in range(9):
        waits.append(world.client.tick())
        world.clock.advance(waits[-1])
    equal(waits, [1000, 0, 0, 1000, 0, 0, 2000, 0, 0])
    brokers[2].down = False
    assert world.run(lambda: world.client.connected)
    equal(world.wire.broker.name, "c")


def test_jitter_is_full_and_within_its_limits():
    # Planted: half of each wait is fixed.
    for seed in range(20):
        rng = Rng(seed, quiet=True)
        world = World(random=rng.below)
        world.unreachable = True
        limits = [1000, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 128000]
        for limit in limits:
            errors = len(world.of_kind("error"))
            waited = 0
            while len(world.of_kind("error")) == errors:
                wait = world.client.tick()
                if len(world.of_kind("error")) == errors:
                    waited += wait
                    world.clock.advance(wait)
            assert waited <= limit, (seed, waited, limit)
    firsts = sorted([World(random=Rng(seed, quiet=True).below).client.tick() for seed in range(200)])
    assert firsts[10] < 200 and firsts[-10] > 800, firsts


def test_a_refusal_is_reported_and_tried_again_only_at_the_longest_delay():
    # Planted: after return code 2 the client tries again at the usual wait.
    for code in (1, 2, 3, 4, 5):
        world = World([Broker(return_code=code)])
        assert world.run(lambda world=world: world.of_kind("error"))
        equal(world.of_kind("error")[0].args, ("connect", code))
        equal(world.client.tick(), 1000 if code in (1, 3) else 128000 - 31999, "code %d" % code)
        world.brokers[0].return_code = 0
        assert world.run(lambda world=world: world.client.connected)


def test_a_client_that_is_thrown_off_again_and_again_says_why_that_may_be():
    # Planted: short links are not counted.
    world = World()
    for _ in range(3):
        assert not world.of_kind("error")
        assert world.run(lambda: world.client.connected)
        world.settle(100)
        world.wire.break_now()
        world.client.tick()
    assert "id in use elsewhere" in str(world.of_kind("error")[-1])


def test_mqtt_3_1_is_a_fallback_when_allowed():
    # Planted: with MQTT 3.1 every link begins a new session.
    for clean_session in (False, True):
        world = World([Broker(mqtt31=True)], allow_mqtt31=True, clean_session=clean_session)
        world.client.subscribe(b"down/#", 2)
        assert world.run(lambda world=world: world.client.connected and world.client.subscribed, 10000)
        for _ in range(3):
            world.client.publish(b"up/0", b"x", 2)
            world.client.publish(b"up/0", b"y", 1)
            world.wire.cut_down = world.wire.down_bytes + 6
            assert world.run(lambda world=world: world.client.connected and not world.client.pending, 10000)
            world.settle()
        equal(world.faults(), [])
        if not clean_session:
            equal(world.taken().count((b"up/0", b"x")), 3)
        assert len(world.brokers[0].connects) < 9
    world = World([Broker(mqtt31=True)])
    assert not world.run(lambda: world.client.connected, 10000)
    equal(world.of_kind("error")[0].args, ("connect", 1))


def test_a_link_that_was_only_ticked_when_asked_was_a_good_one_too():
    # Planted: a link counts as ended when the last bytes arrived.
    for lasted in (10000, 25000, 29000):
        world = World(keep_alive=60)
        world.unreachable = True
        for _ in range(6):
            world.clock.advance(world.client.tick())
        world.unreachable = False
        run_until(world, lambda world=world: world.client.connected, 128000)
        assert world.client.tick() >= lasted
        world.clock.advance(lasted)
        world.wire.break_now()
        world.client.tick()
        equal(world.client.tick(), 1000, "%d ms" % lasted)


def test_mqtt_3_1_failover_forgets_what_belongs_to_the_other_broker():
    # Planted: the session of one broker is resumed at another.
    # CONNACK of MQTT 3.1 has no session_present: the client's state of the first broker must not reach the second.
    first, second = Broker("a", mqtt31=True), Broker("b", mqtt31=True)
    world = World([first, second], allow_mqtt31=True, flash=Flash(), keep_broker_queue=False)
    client = world.client
    client.subscribe(b"down/#", 2)
    for broker, other in ((first, second), (second, first), (first, second)):
        broker.down = False
        other.down = True
        if world.wires:
            world.wire.break_now()
        world.settle()
        assert world.run(lambda: client.connected and client.subscribed and not client.pending)
        equal(world.wire.broker.name, broker.name)
        for i in range(3):
            client.publish(b"t", b"%d" % i, 2)
        broker.send(b"c", b"down/x", b"to " + broker.name.encode(), 2)
        world.wire.split_down = world.wire.down_bytes + 12  # PUBRECs come, PUBCOMPs do not
        client.tick()
        equal(len(client.outbox.released), 3)
    first.down = False
    assert world.run(lambda: not client.pending)
    world.settle()
    equal(world.faults(), [])
    equal(len(world.taken()), 15)


def test_a_wait_that_the_program_chooses_is_waited_however_long_it_is():
    # Planted: a wait of more than 128 s counts as one that was over days ago, and the client tries again at once.
    for delay in (127000, 129000, 600000, 86400000):
        world = World(random=lambda limit, delay=delay: delay)
        world.unreachable = True
        for _ in range(3):
            wait = world.client.tick()
            tried = len(world.events)
            for left in (wait - 1, wait // 2, 1):
                world.clock.advance(wait - left)
                wait = left
                equal((world.client.tick(), len(world.events)), (left, tried), delay)
            world.clock.advance(1)
