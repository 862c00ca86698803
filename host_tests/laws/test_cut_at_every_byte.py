"""The link is cut at every byte, in both directions, of a session with QoS 1 and 2 both ways, and then resumed."""

from world import Broker, World

HEAP = "2M"
TIMEOUT_S = 100

UP = [(b"up/%d" % (i % 2), b"reading %d" % i, 1 + i % 2) for i in range(6)]
DOWN = [(b"down/%d" % (i % 2), b"command %d" % i, 1 + (i + 1) % 2) for i in range(4)]


def scenario(world, forget=False):
    """Everything both ways; the cut falls wherever it falls. forget: the broker loses the session at the cut."""
    client = world.client
    broker = world.brokers[0]
    client.subscribe(b"down/#", qos=2)
    world.run(lambda: client.connected and client.subscribed)
    for k in range(len(UP)):
        topic, payload, qos = UP[k]
        client.publish(topic, payload, qos)
        if k < len(DOWN) and not forget:
            broker.send(b"c", DOWN[k][0], DOWN[k][1], DOWN[k][2])
        client.tick()
    if forget:
        world.run(lambda: not client.connected or not client.pending)
        broker.forget(b"c")
    assert world.run(lambda: not client.pending and client.connected), "not delivered"
    world.settle()


def check(world, exactly_once=True):
    taken = []
    for broker in world.brokers:
        assert not broker.faults, broker.faults
        taken += broker.taken
    for topic, payload, qos in UP:
        n = taken.count((topic, payload))
        assert n == 1 if qos == 2 and exactly_once else n >= 1, (topic, payload, qos, n)
    for topic in (b"up/0", b"up/1"):
        first = []
        for one in taken:
            if one[0] == topic and one not in first:
                first.append(one)
        assert first == [(t, p) for t, p, _ in UP if t == topic], first


def check_down(world):
    for topic, payload, qos in DOWN:
        n = world.messages.count((topic, payload))
        assert n == 1 if qos == 2 else n >= 1, (topic, payload, qos, n)


def length_of_the_session():
    world = World()
    scenario(world)
    check(world)
    check_down(world)
    return world.wire.up, world.wire.down_bytes


def test_cut_at_every_byte_then_session_present():
    up, down = length_of_the_session()
    print("bytes up", up, "bytes down", down)
    for direction, total in (("cut_up", up), ("cut_down", down)):
        for at in range(total + 1):
            world = World()
            world.cuts = [{direction: at}]
            try:
                scenario(world)
                check(world)
                check_down(world)
            except AssertionError:
                print(direction, at)
                raise


def test_two_cuts_then_session_present():
    up, down = length_of_the_session()
    for first in range(0, up, 7):
        for second in range(0, 120, 11):
            world = World()
            world.cuts = [{"cut_up": first}, {"cut_down" if second % 2 else "cut_up": second}]
            try:
                scenario(world)
                check(world)
                check_down(world)
            except AssertionError:
                print(first, second)
                raise


def test_cut_at_every_byte_then_session_lost():
    world = World()
    scenario(world, forget=True)
    for at in range(world.wires[0].up + 1):
        world = World()
        world.cuts = [{"cut_up": at}]
        scenario(world, forget=True)
        check(world, exactly_once=False)


def test_cut_at_every_byte_then_the_second_broker():
    up, down = length_of_the_session()
    for at in range(up + 1):
        world = World([Broker("a"), Broker("b")])
        world.cuts = [{"cut_up": at}]
        client = world.client
        client.subscribe(b"down/#", qos=2)
        world.run(lambda: client.connected)
        for topic, payload, qos in UP:
            client.publish(topic, payload, qos)
            client.tick()
        assert world.run(lambda: not client.pending and client.connected)
        world.settle()
        check(world, exactly_once=False)


def test_one_byte_at_a_time():
    for piece in (1, 2, 3, 5, 7):
        world = World()
        world.cuts = [{"piece": piece}]
        scenario(world)
        check(world)
        check_down(world)
