"""The session that the sweeps cut: messages at QoS 1 and 2 both ways, and what must be true of them afterwards."""

from world import PowerCut, version

UP = [(b"up/%d" % (i % 2), b"reading %d" % i, 1 + i // 2 % 2) for i in range(6)]
DOWN = [(b"down/%d" % (i % 2), b"command %d" % i, 2 - i // 2 % 2) for i in range(5)]
# Sent after a session was lost, under the packet ids of DOWN.
NEW = [(b"down/%d" % (i % 2), b"new command %d" % i, 2) for i in range(5)]


class Traffic:
    """UP goes from the client to the brokers, DOWN from the first broker to the client.

    It survives restarts of the program, as their witness. doubtful: messages whose publish() did not return.
    """

    def __init__(self, world, down=DOWN):
        self.world = world
        self.down = down
        self.made = 0
        self.commanded = 0
        self.doubtful = []
        world.program = self.begin
        self.begin(world)

    def begin(self, world):
        """Do what the program does at its start."""
        world.client.subscribe(b"down/#", qos=2)

    def step(self):
        """Send the next message each way."""
        world = self.world
        if self.made < len(UP):
            message = UP[self.made]
            self.made += 1
            try:
                label = {"correlation_data": message[1]} if version[0] == 5 else None
                world.client.publish(*message, properties=label)
            except PowerCut:
                self.doubtful.append(message)
                world.restart()
        if self.commanded < len(self.down) and world.brokers[0].send(b"c", *self.down[self.commanded]):
            self.commanded += 1
        try:
            world.client.tick()
        except PowerCut:
            world.restart()

    def run(self):
        """Run the whole session, to the end."""
        world = self.world
        world.run(lambda: world.client.connected and world.client.subscribed)
        for _ in range(len(UP) + len(self.down)):
            self.step()
        assert self.arrives(), "not delivered"
        world.settle()

    def arrives(self):
        """Return whether the client comes back and everything is acknowledged."""
        world = self.world
        world.settle()  # a link that broke is noticed at the next tick
        return world.run(lambda: world.client.connected and world.client.subscribed and not world.client.pending)

    # What must be true

    def check(self, exactly_once=True, ordered=True):
        world = self.world
        assert not world.faults(), world.faults()
        taken = world.taken()
        for message in UP:
            topic, payload, qos = message
            n = taken.count((topic, payload))
            if message in self.doubtful:
                assert n < 2 or qos == 1, (message, n)
            else:
                assert n == 1 if qos == 2 and exactly_once else n >= 1, (message, n)
            if version[0] == 5 and n:
                for broker in world.brokers:
                    assert broker.labels.get(payload, [payload]) == [payload], (message, broker.labels)
        if ordered:
            check_order(taken, [m for m in UP if m not in self.doubtful], ((1, 2),))

    def check_down(self, sent=None, exactly_once=True):
        """Check that a message at QoS 2 is handed over once; again only after a power cut, and then flagged."""
        world = self.world
        sent = sent or self.down
        for topic, payload, qos in sent:
            flags = [
                world.redelivered[i]
                for i in range(len(world.messages))
                if world.messages[i] == (topic, payload)
            ]  # fmt: skip
            assert flags, (topic, payload, qos, "lost")
            if qos == 2 and exactly_once:
                assert len(flags) <= 1 + world.power_cuts, (topic, payload, flags)
                assert all(flags[1:]), (topic, payload, flags, "handed over again, not flagged")
        check_order(world.messages, sent)


def check_order(arrived, sent, flows=(1, 2)):
    """Check that the first copies in a topic came in the order of sending. flows: the QoS of each ordered flow.

    A message at QoS 1 may overtake one at QoS 2, which is handed over when it is released.
    """
    for topic, flow in [(topic, flow) for topic in (b"up/0", b"up/1", b"down/0", b"down/1") for flow in flows]:
        wanted = [(t, p) for t, p, qos in sent if t == topic and qos in (flow if isinstance(flow, tuple) else (flow,))]
        first = []
        for one in arrived:
            if one in wanted and one not in first:
                first.append(one)
        assert first == [one for one in wanted if one in first], (topic, first)


def length_of_a_session(make_world):
    """Return (bytes up, bytes down, writes to the store) of a whole session without cuts."""
    world = make_world()
    traffic = Traffic(world)
    traffic.run()
    traffic.check(ordered=not world.brokers[0].late)
    traffic.check_down()
    return world.wire.up, world.wire.down_bytes, world.flash.operations if world.flash else 0


def sweep(make_world, cuts, finish):
    """Run a session for each of `cuts` (lists of arguments of Wire), then finish(world, traffic)."""
    for cut in cuts:
        world = make_world()
        world.cuts = list(cut)
        try:
            traffic = Traffic(world)
            traffic.run()
            finish(world, traffic)
        except BaseException:
            print("cuts", cut)
            raise
