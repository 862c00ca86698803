"""Power cuts at every byte and at every write to the store lose no message: the store holds all that is needed."""

from traffic import DOWN, NEW, UP, Traffic, length_of_a_session, sweep
from umqtt_testkit.portable import Rng, equal
from world import FULL, SHARE, Broker, Flash, World, every, with_mqtt5

from umqtt_robust.errors import StoreError

HEAP = "4M"
TIMEOUT_S = 100


def durable(broker=None, **flash_options):
    flash = Flash()
    for name in flash_options:
        setattr(flash, name, flash_options[name])
    return World([broker or Broker()], flash=flash)


def whole(world, traffic):
    late = world.brokers[0].late
    traffic.check(ordered=not late)
    traffic.check_down()
    assert not world.flash.messages and not world.flash.inbound, "the store is not empty"


def test_power_cut_at_every_byte_exactly_once():
    # Planted: PUBREL leaves before the record of its PUBREC is durable.
    for late, step in ((False, 1), (True, 4)):

        def make_world(late=late):
            return durable(Broker(late=late))

        up, down, _ = length_of_a_session(make_world)
        cuts = [{"cut_up": at, "power": True} for at in every(up, step)]
        cuts += [{"cut_down": at, "power": True} for at in every(down, step)]
        sweep(make_world, [[cut] for cut in cuts], whole)


def at_every_write(make_broker, finish, cuts=()):
    _, _, writes = length_of_a_session(lambda: durable(make_broker()))
    assert writes > 20, writes
    for at in range(1, writes + 8):
        for after in (False, True):
            world = durable(make_broker(), cut_at=at, after=after)
            world.cuts = list(cuts)
            try:
                traffic = Traffic(world)
                traffic.run()
                finish(world, traffic)
            except BaseException:
                print("write", at, "after" if after else "before", cuts)
                raise


def test_power_cut_at_every_write_exactly_once():
    # Planted: PUBREL leaves before the record of its PUBREC is durable.
    at_every_write(Broker, whole)
    at_every_write(lambda: Broker(late=True, hold_recs=3), whole)


def test_power_cut_at_every_write_while_the_session_is_lost():
    # Planted: a lost session is not marked as lost before it is forgotten record by record.
    # The writes that forget a lost session are cut too: a half-forgotten session must not be taken for a whole one.
    for late in (False, True):

        def make_broker(late=late):
            broker = Broker(late=late)
            broker.lose_sessions = True
            return broker

        def finish(world, traffic):
            broker = world.brokers[0]
            if broker.lose_sessions:
                world.wire.break_now()
                assert traffic.arrives()
            if world.flash.undone == "session":
                # The power failed before the client could record what CONNACK said, so it may continue with its half.
                # It cannot repair what the broker had acknowledged in the session that it lost.
                broker.faults = [fault for fault in broker.faults if "without PUBREC" not in fault]
            else:
                traffic.check(exactly_once=False, ordered=not broker.late)
            world.flash.cut_at = 0
            heard = len(world.messages)
            for message in NEW:
                assert broker.send(b"c", *message), "not subscribed again"
            world.settle()
            fresh = [i for i in range(heard, len(world.messages)) if world.messages[i][1].startswith(b"new")]
            equal([world.messages[i] for i in fresh], [(topic, payload) for topic, payload, _ in NEW])
            equal([world.redelivered[i] for i in fresh], [False] * len(NEW))
            assert not broker.faults, broker.faults

        for cut in every(150, 10):
            at_every_write(make_broker, finish, [{"cut_down": cut}])


def test_power_cut_at_every_write_while_another_broker_takes_over():
    # Planted: the session of one broker is resumed at another.
    for cut in every(150, 25):
        for at in range(1, 45, 1 if FULL else 2):
            for after in (False, True):
                world = World([Broker("a"), Broker("b")], flash=Flash())
                first, second = world.brokers
                world.cuts = [{"cut_down": cut}]
                try:
                    traffic = Traffic(world)
                    world.run(lambda world=world: world.wires)
                    first.down = True  # it stays away after the link is gone
                    world.flash.cut_at = at
                    world.flash.after = after
                    traffic.run()
                    world.wire.break_now()
                    assert traffic.arrives()
                    world.flash.cut_at = 0
                    traffic.check(exactly_once=False)
                    wanted = [(topic, payload) for topic, payload, _ in NEW]
                    for message in NEW:
                        assert second.send(b"c", *message), "not subscribed"
                    world.settle()
                    fresh = [i for i in range(len(world.messages)) if world.messages[i] in wanted]
                    equal([world.messages[i] for i in fresh], wanted)
                    equal([world.redelivered[i] for i in fresh], [False] * len(NEW))
                except BaseException:
                    print("cut_down", cut, "write", at, "after" if after else "before")
                    raise


def test_many_power_cuts_exactly_once():
    # Planted: a stored message that is handed over again after a power cut is not flagged.
    for seed in range(200 if FULL else 60 // SHARE):
        rng = Rng(seed, quiet=True)
        world = durable(Broker(late=rng.chance(50), hold_recs=rng.below(4)))
        for _ in range(rng.between(1, 6)):
            world.cuts.append({rng.choice(("cut_up", "cut_down")): rng.below(120), "power": rng.chance(60)})
        world.flash.cut_at = rng.below(60)
        world.flash.after = rng.chance(50)
        try:
            traffic = Traffic(world)
            traffic.run()
            whole(world, traffic)
        except BaseException:
            print("seed", seed)
            raise


def test_a_restart_between_any_two_ticks_with_memory_only():
    # Planted: a session that only the broker remembers is taken for a new one, without a purge.
    # The messages in RAM are gone, but the broker remembers: no id of its session may swallow a new message.
    for ticks in range(24):
        for late, hold_recs in ((False, 0), (True, 0), (False, 9), (True, 9)):
            world = World([Broker(late=late, hold_recs=hold_recs)])
            world.options["store"] = None
            traffic = Traffic(world)
            broker = world.brokers[0]
            for i in range(ticks):
                if i > 2:
                    traffic.step()
                else:
                    world.client.tick()
                    world.clock.advance(1000)  # the first attempt begins after a second
            assert broker.sessions or ticks < 2
            world.restart()
            world.run(lambda: world.client.connected and world.client.subscribed)
            for topic, payload, _ in UP:
                world.client.publish(topic, b"second life " + payload, 2)
            for message in NEW:
                assert broker.send(b"c", *message), ticks
            assert traffic.arrives()
            for topic, payload, _ in UP:
                equal(world.taken().count((topic, b"second life " + payload)), 1, ticks)
            for topic, payload, _ in NEW:
                equal(world.messages.count((topic, payload)), 1, ticks)
            assert not world.faults(), (ticks, world.faults())


def test_the_purge_is_for_the_broker_that_it_is_meant_for():
    # Planted: a purge that failed at one broker is carried out at the next.
    # Both brokers remember a session; the store's is that of the second. The link that purges the first one fails.
    flash = Flash()
    world = World([Broker("a"), Broker("b")], flash=flash, keep_broker_queue=False)
    first, second = world.brokers
    first.down = True
    Traffic(world).run()
    world.wire.break_now()
    equal(flash.state["session"], "host1:1883")
    second.send(b"c", b"down/0", b"queued", 1)
    first.down = False
    first.sessions[b"c"] = second.sessions[b"c"].__class__()
    world.restart()
    world.cuts = [{}, {"cut_up": 0}]  # session_present, then the link that is to purge
    world.run(lambda: world.client.connected)
    world.settle()
    equal(world.brokers.index(world.wire.broker), 1)
    assert (b"down/0", b"queued") in world.messages


def test_a_write_that_fails_at_every_step_loses_nothing():
    # Planted: a message whose removal failed is handed over again without a flag.
    world = durable()
    Traffic(world).run()
    for at in range(1, world.flash.operations + 1):
        for failing in (0, 3):
            world = durable(fail_at=at, failing=failing)
            refused = []
            traffic = Traffic(world)
            client = world.client
            publish = client.publish

            def careful(topic, payload, qos, publish=publish, refused=refused, **properties):
                try:
                    publish(topic, payload, qos, **properties)
                except StoreError:
                    refused.append((topic, payload, qos))

            client.publish = careful
            try:
                traffic.run()
                world.settle()
                traffic.doubtful = refused
                assert not world.faults(), world.faults()
                for topic, payload, qos in UP:
                    n = world.taken().count((topic, payload))
                    assert n == 0 if (topic, payload, qos) in refused else n == 1 or qos == 1 and n, (topic, payload, n)
                for topic, payload, qos in DOWN:
                    again = [
                        world.redelivered[i] for i in range(len(world.messages)) if world.messages[i][1] == payload
                    ]
                    assert again and (qos == 1 or all(again[1:])), (payload, again, "handed over again, not flagged")
                # A message at QoS 1 that could not be removed may be sent again after a reset: that does no harm.
                left = world.flash.messages.values()
                assert len(left) <= failing + 1 and not [1 for record in left if record[2] & 4], left
                equal(world.flash.inbound, {})
            except BaseException:
                print("write", at, "and", failing, "more")
                raise


test_power_cut_at_every_byte_exactly_once_with_mqtt5 = with_mqtt5(test_power_cut_at_every_byte_exactly_once)
test_power_cut_at_every_write_exactly_once_with_mqtt5 = with_mqtt5(test_power_cut_at_every_write_exactly_once)
test_power_cut_at_every_write_while_the_session_is_lost_with_mqtt5 = with_mqtt5(
    test_power_cut_at_every_write_while_the_session_is_lost, sampled=False
)
test_power_cut_at_every_write_while_another_broker_takes_over_with_mqtt5 = with_mqtt5(
    test_power_cut_at_every_write_while_another_broker_takes_over, sampled=False
)
test_many_power_cuts_exactly_once_with_mqtt5 = with_mqtt5(test_many_power_cuts_exactly_once)
test_a_restart_between_any_two_ticks_with_memory_only_with_mqtt5 = with_mqtt5(
    test_a_restart_between_any_two_ticks_with_memory_only, sampled=False
)
test_a_write_that_fails_at_every_step_loses_nothing_with_mqtt5 = with_mqtt5(
    test_a_write_that_fails_at_every_step_loses_nothing
)
