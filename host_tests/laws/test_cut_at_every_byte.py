"""The link is cut at every byte, in both directions, of a session with QoS 1 and 2 both ways, and then resumed."""

from traffic import DOWN, NEW, Traffic, check_order, length_of_a_session, sweep
from umqtt_testkit.portable import Rng, equal
from world import FULL, SHARE, Broker, Flash, World, every, with_mqtt5

HEAP = "4M"
TIMEOUT_S = 100


def everywhere(make_world, step=1, **more):
    up, down, _ = length_of_a_session(make_world)
    print("bytes up", up, "bytes down", down)
    cuts = [{"cut_up": at} for at in every(up, step)] + [{"cut_down": at} for at in every(down, step)]
    for cut in cuts:
        cut.update(more)
    return cuts


def whole(world, traffic):
    late = world.brokers[0].late
    traffic.check(ordered=not late)
    traffic.check_down()


def test_session_present_exactly_once():
    # Planted: a message whose PUBREC arrived is published again on the next link.
    for step, make_world in (
        (1, World),
        (2, lambda: World(flash=Flash())),
        (3, lambda: World([Broker(late=True)])),
        (3, lambda: World([Broker(hold_recs=3, late=True)])),
        (3, lambda: World(window=2)),
        (3, lambda: World(window=1, tx_size=64)),
    ):
        sweep(make_world, [[cut] for cut in everywhere(make_world, step)], whole)


def test_two_cuts_session_present_exactly_once():
    # Planted: the list of PUBRELs to repeat is the list of released messages itself, which is emptied as they leave.
    up, down, _ = length_of_a_session(World)
    rng = Rng(20)
    cuts = []
    for _ in range(2000 if FULL else 150 // SHARE):
        cuts.append([{rng.choice(("cut_up", "cut_down")): rng.below(up)} for _ in range(rng.between(2, 4))])
    sweep(lambda: World([Broker(late=rng.chance(50), hold_recs=rng.below(4))]), cuts, whole)


def new_messages_arrive(world, broker):
    """Check that new messages under the old packet ids arrive once, in order, and not flagged."""
    for message in NEW:
        assert broker.send(b"c", *message), "not subscribed again"
    heard = len(world.messages)
    world.settle()
    wanted = [(topic, payload) for topic, payload, _ in NEW]
    # A message that was complete before the session was lost may be handed over in between.
    found = [i for i in range(heard, len(world.messages)) if world.messages[i] in wanted]
    equal([world.messages[i] for i in found], wanted)
    equal([world.redelivered[i] for i in found], [False] * len(NEW), "a new message is no redelivery")
    assert not world.faults(), world.faults()


def lost_then_new(world, traffic):
    """Lose the session; check that everything arrives at least once, also new messages under the old packet ids."""
    broker = world.brokers[0]
    if broker.lose_sessions:  # the cut was behind the last byte
        world.wire.break_now()
        assert traffic.arrives()
    traffic.check(exactly_once=False, ordered=not broker.late)
    new_messages_arrive(world, broker)


def forgetful(**options):
    def make_world():
        broker = Broker(late=options.get("late", False))
        broker.lose_sessions = True
        broker.lost_unseen = options.get("lost_unseen", False)
        return World([broker], flash=Flash() if options.get("durable") else None)

    return make_world


def test_session_lost_at_least_once_and_no_stale_id():
    # Planted: DUP outlives the session for which it was set.
    for step, options in ((1, {}), (2, {"late": True}), (3, {"durable": True})):
        cuts = everywhere(lambda options=options: World([Broker(late=options.get("late", False))]), step)
        sweep(forgetful(**options), [[cut] for cut in cuts], lost_then_new)


def test_session_lost_and_its_connack_too():
    # Planted: a known packet id always means the same message, even if DUP and the payload differ.
    # The client cannot see that the session is new: the next CONNACK says session_present=1.
    for connack in range(5):
        cuts = everywhere(World, 4)
        sweep(forgetful(lost_unseen=True), [[cut, {"cut_down": connack}] for cut in cuts], lost_then_new)


def test_second_broker_at_least_once_and_no_stale_id():
    # Planted: the session of one broker is resumed at another.
    for late in (False, True):

        def make_world(late=late):
            world = World([Broker("a", late=late), Broker("b", late=late)])
            first = world.brokers[0]
            lost = first.lost

            def gone(wire):
                lost(wire)
                first.down = True
                first.lost = lost

            first.lost = gone
            return world

        def finish(world, traffic):
            first, second = world.brokers
            if not first.down:
                world.wire.break_now()
                assert traffic.arrives()
            traffic.check(exactly_once=False, ordered=not first.late)
            new_messages_arrive(world, second)
            # And back: the first broker remembers a session whose packet ids the client no longer knows.
            world.client.publish(b"up/0", b"to the second", 2)
            for session in first.sessions.values():
                session.client_reset()  # the client purges its packet ids
            first.down = False
            second.down = True
            world.wire.break_now()
            world.client.publish(b"up/1", b"to the first", 2)
            assert traffic.arrives()
            world.messages = []
            world.redelivered = []
            new_messages_arrive(world, first)
            taken = world.taken()
            assert (b"up/0", b"to the second") in taken and (b"up/1", b"to the first") in taken

        cuts = everywhere(lambda late=late: World([Broker(late=late)]), 1 if not late else 3)
        sweep(make_world, [[cut] for cut in cuts], finish)


def test_pieces_of_any_size_and_a_link_that_is_often_full():
    # Planted: a partial write counts as complete.
    for piece in (1, 2, 3, 5, 7):
        for tx_size in (32, 64, 1024):
            sweep(lambda tx_size=tx_size: World(tx_size=tx_size, rx_size=64), [[{"piece": piece}]], whole)
    for seed in range(40 // SHARE):
        rng = Rng(seed, quiet=True)
        world = World(tx_size=rng.choice((32, 48, 64)), rx_size=rng.choice((48, 64)), window=rng.between(1, 8))
        world.brokers[0].hold_recs = rng.below(5)
        traffic = Traffic(world)
        world.run(lambda: world.client.connected)
        try:
            for _ in range(60):
                world.wire.full = rng.chance(50)
                traffic.step()
                if rng.chance(10):
                    world.wire.break_now()
                if rng.chance(20):
                    world.wire.full = False
                    world.run(lambda: world.client.connected)
            world.wire.full = False
            assert traffic.arrives()
            world.settle()
            traffic.check()
            traffic.check_down()
        except BaseException:
            print("seed", seed)
            raise


def test_order_check_itself():
    # Planted: the check ignores the order.
    check_order([(b"down/0", b"command 0"), (b"down/0", b"command 2"), (b"down/0", b"command 4")], DOWN)
    try:
        check_order([(b"down/0", b"command 4"), (b"down/0", b"command 0")], DOWN)
    except AssertionError:
        return
    raise AssertionError("a wrong order was not found")


test_session_present_exactly_once_with_mqtt5 = with_mqtt5(test_session_present_exactly_once)
test_two_cuts_session_present_exactly_once_with_mqtt5 = with_mqtt5(test_two_cuts_session_present_exactly_once)
test_session_lost_at_least_once_and_no_stale_id_with_mqtt5 = with_mqtt5(test_session_lost_at_least_once_and_no_stale_id)
test_session_lost_and_its_connack_too_with_mqtt5 = with_mqtt5(test_session_lost_and_its_connack_too, sampled=False)
test_second_broker_at_least_once_and_no_stale_id_with_mqtt5 = with_mqtt5(
    test_second_broker_at_least_once_and_no_stale_id, sampled=False
)
test_pieces_of_any_size_and_a_link_that_is_often_full_with_mqtt5 = with_mqtt5(
    test_pieces_of_any_size_and_a_link_that_is_often_full
)
