"""The broker has the subscriptions that the program wants, wherever the link is cut and whatever it forgets."""

from umqtt_testkit.encoder import connack, suback
from umqtt_testkit.portable import Rng, equal
from world import Broker, World, every

from umqtt_robust import Client

HEAP = "4M"
TIMEOUT_S = 100


class Refusing(Broker):
    """A broker that refuses filters beginning with `secret` and grants at most QoS 1."""

    secret = b"secret"

    def _subscribe(self, wire, kind, body):
        n = body[2] << 8 | body[3]
        if kind == 8 and body[4:].startswith(self.secret):
            wire.send(b"\x90\x03" + body[:2] + b"\x80")
        else:
            Broker._subscribe(self, wire, kind, body[: 4 + n] + bytes((min(body[4 + n], 1),)) if kind == 8 else body)


def steps(client):
    """Yield after each request of the program."""
    yield client.subscribe(b"a", 1)
    yield client.subscribe(b"b/#", 2)
    yield client.unsubscribe(b"a")
    yield client.subscribe(b"c")
    yield client.subscribe(b"b/#", 1)
    yield client.subscribe(b"a", 2)
    yield client.unsubscribe(b"c")
    yield client.unsubscribe(b"never asked for")


WANTED = {b"a": 2, b"b/#": 1}


def comes_back(world):
    world.settle()
    assert world.run(lambda: world.client.connected and world.client.subscribed)
    world.settle()


def test_cut_at_every_byte_the_broker_has_what_the_program_wants():
    # Planted: a request whose answer was lost with the link is not sent again.
    for lost in (False, True):
        for together in (False, True):
            for cut in [{"cut_up": at} for at in every(125, 1)] + [{"cut_down": at} for at in every(50, 1)]:
                world = World()
                world.cuts = [cut]
                world.brokers[0].lose_sessions = lost
                if not together:
                    world.run(lambda world=world: world.wires)
                for _ in steps(world.client):
                    if not together:
                        world.client.tick()
                comes_back(world)
                equal(world.brokers[0].sessions[b"c"].subscriptions, WANTED, repr((cut, lost, together)))
                equal(world.faults(), [])


def test_random_wishes_and_cuts():
    # Planted: a subscription is not requested again when the session is lost.
    for seed in range(300):
        rng = Rng(seed, quiet=True)
        world = World(tx_size=rng.choice((32, 64, 1024)))
        broker = world.brokers[0]
        wanted = {}
        for _ in range(40):
            topic_filter = rng.choice((b"a", b"b/#", b"c" * 40, b"d/+/e"))
            action = rng.below(10)
            if action < 4:
                wanted[topic_filter] = rng.below(3)
                world.client.subscribe(topic_filter, wanted[topic_filter])
            elif action < 7:
                wanted.pop(topic_filter, None)
                world.client.unsubscribe(topic_filter)
            elif action == 7 and world.wires:
                broker.lose_sessions = rng.chance(50)
                world.wire.break_now()
                broker.lose_sessions = False
            elif world.wires:
                world.wire.piece = rng.choice((1, 5, 1000))
            if world.wires and rng.chance(60):  # answers come late
                world.wire.split_down = world.wire.down_bytes + rng.below(6)
            world.client.tick()
            world.clock.advance(rng.below(1500))
        comes_back(world)
        equal(broker.sessions[b"c"].subscriptions, wanted, "seed %d" % seed)
        equal(world.faults(), [])


def refusals(world):
    return [error.args for error in world.of_kind("error") if error.args[0] == "subscribe"]


def test_a_refusal_is_reported_and_the_others_stand():
    # Planted: a refusal ends the link.
    world = World([Refusing()])
    client = world.client
    client.subscribe(b"a", 2)
    client.subscribe(b"secret/plans", 1)
    client.subscribe(b"b", 1)
    comes_back(world)
    equal(refusals(world), [("subscribe", b"secret/plans", 0x80)])
    equal(world.brokers[0].session.subscriptions, {b"a": 1, b"b": 1})
    equal(len(world.wires), 1)


def test_a_return_code_of_suback_grants_or_refuses():
    # A code that the standard reserves [MQTT-3.9.3-2] would end the next link too. Planted: 3 grants; 3 ends the link.
    for code in range(256):
        errors = []
        session = Client("c", "mqtt://h", on_error=errors.append)
        session.open(lambda buf, offset, size: size)
        session.receive(bytearray(connack()), 4)
        session.subscribe("a")
        session.work()
        answer = bytearray(suback(1, code))
        session.receive(answer, len(answer))
        equal([error.args for error in errors], [("subscribe", b"a", code)] if code > 2 else [], code)


def test_what_was_refused_is_asked_for_again_and_nothing_else_is():
    # Planted: a refused filter is forgotten; it is asked for again in the next session alone; what was granted is asked
    # for again with it. A cluster whose nodes hold elections refuses what it grants a second later.
    for lost in (None, "link", "session"):
        world = World([Refusing()])
        broker, client = world.brokers[0], world.client
        client.subscribe(b"a", 1)
        client.subscribe(b"secret/plans", 1)
        comes_back(world)
        broker.session.subscriptions[b"a"] = "not asked for again"
        broker.lose_sessions = lost == "session"
        for times in range(2, 5):
            if lost:
                world.wire.break_now()
            else:
                world.run(lambda: False, 25_000)
                equal(len(refusals(world)), times - 1, "too early")
                world.run(lambda: False, 6_000)
            comes_back(world)
            equal(refusals(world), times * [("subscribe", b"secret/plans", 0x80)], lost)
        broker.secret = b"none"
        if lost:
            world.wire.break_now()
        else:
            world.run(lambda: False, 31_000)
        comes_back(world)
        unasked = 1 if lost == "session" else "not asked for again"
        equal(broker.session.subscriptions, {b"a": unasked, b"secret/plans": 1}, lost)
        world.run(lambda: False, 200_000)
        equal(len(refusals(world)), 4, lost)


def test_unsubscribing_ends_what_was_refused():
    # Planted: unsubscribe() of a refused filter leaves it to be asked for again.
    world = World([Refusing()])
    client = world.client
    client.subscribe(b"secret/plans", 1)
    comes_back(world)
    client.unsubscribe(b"secret/plans")
    comes_back(world)
    world.run(lambda: False, 200_000)
    world.wire.break_now()
    comes_back(world)
    equal(len(refusals(world)), 1)


def test_requests_of_a_handler_leave_room_for_the_acknowledgement():
    # Planted: requests may fill the send buffer to the last byte.
    for qos in (1, 2):
        for length in range(1, 70):
            world = World(tx_size=64, rx_size=256)
            client = world.client
            client.subscribe(b"down/#", 2)
            assert world.run(lambda client=client: client.connected and client.subscribed)

            def handler(topic, payload, client=client, length=length, world=world):
                world.messages.append((topic, payload))
                client.subscribe(b"f" * length, 1)
                client.publish(b"up", b"y")

            client.on_message = handler
            for i in range(4):
                world.brokers[0].send(b"c", b"down/x", b"%d" % i, qos)
            world.wire.piece = 3
            for i in range(12):
                world.wire.full = i % 2 == 0
                client.tick()
            world.wire.full = False
            comes_back(world)
            equal(world.messages, [(b"down/x", b"%d" % i) for i in range(4)], length)
            equal(world.brokers[0].session.queue, [])
            equal(world.faults(), [])
            assert world.brokers[0].session.subscriptions[b"f" * length] == 1


class AnswersLate(Broker):
    """A broker that keeps UNSUBACK back until the next SUBSCRIBE, which never arrives: the link breaks there."""

    late = None

    def _subscribe(self, wire, kind, body):
        if kind == 10:
            self.late = body
        elif self.late:
            Broker._subscribe(self, wire, 10, self.late)
        else:
            Broker._subscribe(self, wire, kind, body)


def test_an_answer_counts_for_the_request_that_it_answers():
    # Planted: answers are matched to filters, so that UNSUBACK counts as the SUBACK of the later SUBSCRIBE.
    world = World([AnswersLate()])
    world.client.subscribe(b"a", 1)
    comes_back(world)
    broker = world.brokers[0]
    world.client.unsubscribe(b"a")
    world.client.tick()
    world.client.subscribe(b"a", 1)
    world.settle()
    assert broker.late and not world.client.subscribed
    broker.late = None
    world.wire.break_now()
    comes_back(world)
    equal(broker.sessions[b"c"].subscriptions, {b"a": 1})
    equal(world.client.unexpected, 0)
    equal(world.faults(), [])
