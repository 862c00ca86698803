"""A broker without QoS 2, such as RabbitMQ's MQTT plugin, answers with PUBACK and grants QoS 1 at most."""

from test_regressions import comes_back, connected
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBSCRIBE, acknowledgement
from umqtt_testkit.portable import equal
from world import Broker, World, every

from umqtt_robust.errors import Downgraded, ProtocolError

HEAP = "2M"
UP = [(b"up/%d" % i, b"reading %d" % i) for i in range(12)]


class NoQos2(Broker):
    """A broker that treats QoS 2 as QoS 1, and ends the link at a packet that only QoS 2 has."""

    def _take(self, wire, head, body):
        kind = head >> 4
        if kind in (PUBREC, PUBREL, PUBCOMP):
            wire.fin = True
        elif kind == PUBLISH and head & 6 == 4:
            Broker._take(self, wire, head ^ 6, body)
        elif kind == SUBSCRIBE:
            Broker._take(self, wire, head, body[:-1] + bytes((min(body[-1], 1),)))
        else:
            Broker._take(self, wire, head, body)


def test_a_message_at_qos_2_is_delivered_at_qos_1_and_reported_once():
    # Planted: PUBACK of a message at QoS 2 ends every link; the report comes with every message.
    cuts = [{}] + [{"cut_up": at} for at in every(200, 20)] + [{"cut_down": at} for at in every(60, 6)]
    for cut in cuts:
        world = World([NoQos2()])
        world.client.subscribe(b"down/#", 2)
        world.cuts = [cut]
        for topic, payload in UP:
            world.client.publish(topic, payload, 2)
        assert world.run(lambda world=world: not world.client.pending), cut
        for _ in range(2):
            world.settle()
            assert world.run(lambda world=world: world.client.subscribed)
        equal(sorted(set(world.taken())), sorted(UP))
        world.brokers[0].send(b"c", b"down/x", b"command", 1)
        assert world.run(lambda world=world: world.messages), cut
        equal(world.messages, [(b"down/x", b"command")])
        equal(world.client.downgraded, len(UP))
        equal(len([1 for error in world.of_kind("error") if isinstance(error, Downgraded)]), 1)
        equal(len([1 for kind in world.events if kind[0] == "acknowledged"]), len(UP))
        equal(world.faults(), [])
        # If CONNACK was lost, the session is taken over, and purged after three PUBRELs: see test_broker_queue.py.
        assert len(world.brokers[0].connects) < 8, cut


def test_puback_after_pubrec_is_a_mistake_of_the_broker():
    # Planted: PUBACK completes a message at QoS 2 in any state.
    world = connected()
    broker = world.brokers[0]
    broker.hold_recs = 9
    world.client.publish(b"t", b"x", 2)
    broker.acknowledge = False
    broker.release_held()  # PUBREC comes, PUBCOMP does not
    world.client.tick()
    equal(world.client.outbox.released, [world.client.last_id])
    world.wire.send(acknowledgement(PUBACK, world.client.last_id))
    broker.acknowledge = True
    world.settle(1)
    assert [1 for error in world.of_kind("disconnect") if isinstance(error, ProtocolError)], world.events
    comes_back(world)
    equal(world.taken(), [(b"t", b"x")])
    equal(world.client.downgraded, 0)
