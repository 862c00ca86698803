"""One message or topic filter that a broker does not take never stops the others, and is named."""

from picky_broker import WAYS, PickyBroker
from umqtt_testkit.portable import FULL, Rng, equal
from world import Flash, World, version, with_mqtt5

from umqtt_robust import policy

HEAP = "4M"

_GOOD = 7
# Links at most until all others have arrived: the one that ends first, three strikes, and one more after another
# message has passed. A program that starts again after each link may need one more for each message before the bad one.
_LINKS = 6
_SIZES = {"empty": 0, "small": 20, "above tx_size": 3000}


class Story:
    """Good messages and a bad one in their midst. reboots: the power is cut whenever a link has ended."""

    def __init__(self, way, qos, size, place, durable, reboots=False, options=None, at_pubrel=False):
        self.broker = PickyBroker(way, at_pubrel=at_pubrel)
        self.dropped = []
        self.named = []
        self.begun = False
        self.world = world = World(
            [self.broker], flash=Flash() if durable else None, program=self.begin, **(options or {})
        )
        self.reboots = reboots
        self.sent = []
        for i in range(_GOOD + 1):
            topic, payload = (b"bad/1", b"b" * size) if i == place else (b"up/%d" % (i % 2), b"good %d" % i)
            if i != place:
                self.sent.append((topic, payload))
            label = {"correlation_data": payload} if version[0] == 5 else None
            world.client.publish(topic, payload, 1 + i % 2 if at_pubrel and i != place else qos, properties=label)

    def begin(self, world):
        client = world.client
        client.on_dropped = lambda packet_id, topic, payload, reason: self.dropped.append((topic, len(payload), reason))
        client.on_disconnect = self.ended

    def ended(self, error):
        self.world.events.append(("disconnect", error))
        if self.reboots:
            self.cut = True

    cut = False

    def is_over(self):
        if self.cut:
            self.cut = False
            self.world.restart()
        return not self.world.client.pending

    def run(self, links=_LINKS):
        world = self.world
        assert world.run(self.is_over, 3600000), ("blocked", self.broker.taken, world.events[-9:])
        world.settle()
        taken = [one for one in self.broker.taken if not self.broker.at_pubrel or one[0] != b"bad/1"]
        equal([one for one in taken if one not in self.sent], [])
        equal(sorted(set(taken)), sorted(self.sent))
        assert self.broker.links <= links, (self.broker.links, world.events)
        equal(world.faults(), [])


def _stories():
    for way in WAYS:
        for qos in (1, 2):
            for size in sorted(_SIZES.values()):
                for place in (0, 3, _GOOD):
                    for durable in (False, True):
                        yield way, qos, size, place, durable, False
                        if durable:
                            yield way, qos, size, place, True, True


def test_a_message_at_which_the_broker_ends_the_link_is_set_aside_and_all_others_arrive():
    # Planted: strikes are not counted; a link is not begun with PINGREQ; the one that is struck stays in front.
    rng = Rng(11)
    for story in _stories():
        if story[0] == "disconnect" and version[0] == 4 or not FULL and rng.below(4):
            continue
        try:
            told = Story(*story)
            told.run(_LINKS + (story[3] if story[5] else 0))
            if story[3] < _GOOD:  # behind it were others, so the broker takes messages
                equal(told.dropped, [(b"bad/1", story[2], policy.QUARANTINED)])
                equal(told.world.client.part("quarantine").messages()[0][1:], (b"bad/1", b"b" * story[2]))
        except BaseException:
            print(story)
            raise


test_messages_with_mqtt_5 = with_mqtt5(
    test_a_message_at_which_the_broker_ends_the_link_is_set_aside_and_all_others_arrive
)


def test_a_pubrel_at_which_the_broker_ends_the_link_is_given_up_and_all_others_arrive():
    # Planted: PUBRELs go all at once at the beginning of each link; strikes are counted in RAM alone.
    for way in ("close", "reset", "silent", "garbage"):
        for place in (0, 3, _GOOD):
            for durable, reboots in ((False, False), (True, False), (True, True)):
                told = Story(way, 2, 5, place, durable, reboots, at_pubrel=True)
                try:
                    told.run()
                    equal(told.dropped, [(b"bad/1", 5, policy.REFUSED)])
                except BaseException:
                    print((way, place, durable, reboots))
                    raise


test_pubrels_with_mqtt_5 = with_mqtt5(
    test_a_pubrel_at_which_the_broker_ends_the_link_is_given_up_and_all_others_arrive
)


def test_a_topic_filter_at_which_the_broker_ends_the_link_is_left_out_and_all_messages_arrive():
    # Planted: filters are asked for together after a link has ended at one.
    for way in WAYS:
        if way == "disconnect" and version[0] == 4:
            continue
        for first in (False, True):
            for waits in (False, True):
                try:
                    _subscribe(way, first, waits)
                except BaseException:
                    print((way, first, waits))
                    raise


def _subscribe(way, first, waits):
    broker = PickyBroker(way)
    world = World([broker])
    client = world.client
    for topic_filter in (b"bad/#", b"down/#") if first else (b"down/#", b"bad/#"):
        client.subscribe(topic_filter, 1)
    sent = [(b"up/%d" % (i % 2), b"good %d" % i) for i in range(_GOOD)] if waits else []
    for topic, payload in sent:
        client.publish(topic, payload, 1, properties={"correlation_data": payload} if version[0] == 5 else None)
    assert world.run(lambda: client.connected and client.subscribed and not client.pending, 3600000), world.events
    equal(sorted(set(broker.taken)), sorted(sent))
    refused = [error.args[1:3] for error in world.of_kind("error") if error.args[0] == "subscribe"]
    equal(refused, [(b"bad/#", 0x55 if way == "wrong answer" else 0x80)])
    assert broker.send(b"c", b"down/1", b"command", 1)
    assert world.run(lambda: world.messages == [(b"down/1", b"command")])
    assert broker.links <= 2 + 3, broker.links
    # After an hour it is asked for again.
    broker.picks = False
    world.clock.advance(3600001)
    broker.wire.break_now()
    world.settle()
    assert world.run(lambda: client.connected and client.subscribed)
    assert broker.send(b"c", b"bad/1", b"late", 1)
    assert world.run(lambda: world.messages[-1] == (b"bad/1", b"late"))
    equal(world.faults(), [])


test_filters_with_mqtt_5 = with_mqtt5(
    test_a_topic_filter_at_which_the_broker_ends_the_link_is_left_out_and_all_messages_arrive
)


def test_a_refused_connection_blames_no_message():
    # Planted: a return code above 5 is taken for a broken packet.
    for code in (1, 2, 3, 4, 5, 6, 7, 8, 0x80, 255):
        for durable in (False, True):
            broker = PickyBroker("close", code, with_code=4)
            world = World([broker], flash=Flash() if durable else None)
            for i in range(_GOOD):
                world.client.publish(b"up/0", b"%d" % i, 1 + i % 2)
            assert world.run(lambda world=world: not world.client.pending, 3600000), code
            equal(sorted(set(broker.taken)), [(b"up/0", b"%d" % i) for i in range(_GOOD)])
            equal([error.args for error in world.of_kind("error")], [("connect", code)] * 4)
            equal(world.client.quarantined, 0)
            equal(world.faults(), [])


def test_what_was_set_aside_while_the_broker_took_nothing_goes_once_it_takes_messages_again():
    # Planted: a message is set aside for good before another one has passed.
    for way in ("close", "reset", "silent"):
        for durable in (False, True):
            broker = PickyBroker(way)
            world = World([broker], flash=Flash() if durable else None)
            client = world.client
            sent = [(b"bad/1", b"%d" % i) for i in range(4)]
            for topic, payload in sent:
                client.publish(topic, payload, 1)
            assert world.run(lambda client=client: not client.pending, 3600000), way
            equal((client.quarantined, broker.taken), (4, []))
            if durable:
                world.restart()
                client = world.client
            broker.picks = False
            client.publish(b"up/0", b"another", 1)
            assert world.run(lambda broker=broker: len(broker.taken) == 5), broker.taken
            world.settle()
            equal(sorted(broker.taken), sorted(sent + [(b"up/0", b"another")]))
            equal((client.part("quarantine").messages(), client.pending), ([], 0))
            equal(world.faults(), [])


def test_what_was_set_aside_makes_room_and_can_be_sent_on_or_dropped():
    # Planted: a message that was set aside blocks its slot; drop() leaves it in the store.
    broker = PickyBroker("close")
    dropped = []
    world = World([broker], flash=Flash(4), policy=policy.DROP_OLDEST)
    client = world.client
    client.on_dropped = lambda packet_id, topic, payload, reason: dropped.append((payload, reason))
    bad = [client.publish(b"bad/%d" % i, b"bad %d" % i, 1) for i in range(3)]
    client.publish(b"up/0", b"good", 1)
    assert world.run(lambda: not client.pending and client.quarantined == 3, 3600000)
    world.settle(60000)
    quarantine = client.part("quarantine")
    equal([one[0] for one in quarantine.messages()], bad)
    equal(dropped, [(b"bad %d" % i, policy.QUARANTINED) for i in range(3)])
    assert not client.is_pending(bad[0]) and not quarantine.drop(12345) and not quarantine.send_on(12345)
    world.unreachable = True
    world.wire.break_now()
    world.settle(1000)
    for i in range(3):
        client.publish(b"up/1", b"new %d" % i, 1)
    equal(dropped[3:], [(b"bad 0", policy.FULL), (b"bad 1", policy.FULL)])
    world.unreachable = False
    assert world.run(lambda: not client.pending)
    world.restart()
    client = world.client
    quarantine = client.part("quarantine")
    equal(quarantine.messages(), [(bad[2], b"bad/2", b"bad 2")])
    broker.picks = False
    assert quarantine.send_on(bad[2])
    assert world.run(lambda: not client.pending)
    equal(broker.taken[-1], (b"bad/2", b"bad 2"))
    equal((world.flash.messages, world.faults()), ({}, []))


def test_at_qos_0_nothing_is_blocked_and_the_topic_is_named():
    # Planted: the report of short links has no topic.
    broker = PickyBroker("close")
    world = World([broker])
    client = world.client
    client.on_connect = lambda present: client.publish(b"bad/status", b"on")
    for i in range(_GOOD):
        client.publish(b"up/0", b"%d" % i, 1)
    assert world.run(lambda: world.of_kind("error"), 3600000)
    equal(world.of_kind("error")[0].args[1], b"bad/status")
    client.on_connect = None
    assert world.run(lambda: not client.pending, 3600000)
    equal(sorted(set(broker.taken)), [(b"up/0", b"%d" % i) for i in range(_GOOD)])
