"""A recorded session, played to a client in pieces: as the client only reacts, the events must always be the same."""

from umqtt_testkit.encoder import properties, publish
from world import Broker, World

RX = 96


class Recording(Broker):
    """A broker that sends one message of each kind when the subscriptions are made."""

    def _subscribe(self, wire, kind, body):
        Broker._subscribe(self, wire, kind, body)
        if kind != 8 or len(self.session.subscriptions) < 2:
            return
        for i in range(3):
            self.send(b"c", b"down/%d" % i, b"payload %d" % i, i)
        self.send(b"c", b"down/empty", b"", 1)
        self.send(b"c", b"down/\xc3\xa4", b"retained", 2)
        for qos in range(3):
            self.send(b"c", b"down/large", bytes(range(200)) * 2, qos)
        label = properties(correlation_data=b"x") if self.level == 5 else b""
        wire.send(publish(b"down/kept", b"x", retain=True, properties=label))
        self.send(b"c", b"down/last", b"the end", 2)


class Player:
    """A transport that plays a recording: each piece comes when the client has sent as much as it had then."""

    def __init__(self, recorded, ends):
        self.socket = self
        self.recorded = list(recorded)
        self.ends = list(ends)  # positions where a read ends and the next one finds nothing
        self.up = self.position = 0
        self.down = b""
        self.written = []

    def ready(self):
        return True

    def write(self, buf, offset, size):
        self.written.append(bytes(buf[offset : offset + size]))
        self.up += size
        return size

    def read(self, buf, offset):
        while self.recorded and self.recorded[0][0] <= self.up:
            self.down += self.recorded.pop(0)[1]
        if self.ends and self.position >= self.ends[0]:
            self.ends.pop(0)
            return None
        n = min(len(buf) - offset, len(self.down))
        if self.ends:
            n = min(n, self.ends[0] - self.position)
        if not n:
            return None
        buf[offset : offset + n] = self.down[:n]
        self.down = self.down[n:]
        self.position += n
        return n

    def close(self):
        pass

    def wait(self, ms, writing):
        pass


def begin(world):
    client = world.client
    client.subscribe(b"down/#", 2)
    client.subscribe(b"more", 1)
    client.unsubscribe(b"gone")
    for i in range(9):
        client.publish(b"up/%d" % i, b"reading %d" % i, 1 + i % 2)
    events = world.events
    large = []

    def on_large(topic, offset, size, chunk):
        if offset == 0:
            large.append((topic, size, bytearray()))
        large[-1][2].extend(chunk)
        if offset + len(chunk) == size:
            events.append(("large", topic, bytes(large[-1][2]), client.mqtt5 and client.properties))

    client.on_large = on_large
    client.on_message = lambda topic, payload: events.append(
        (topic, payload, client.flags, client.packet_id, client.mqtt5 and client.properties)
    )


def make_world(aliases):
    allowed = {"topic_alias_maximum": aliases} if aliases else None
    broker = Recording(aliases=aliases)
    return World([broker], keep_alive=0, rx_size=RX, window=3, program=begin, connect_properties=allowed)


def record(aliases=0):
    """Return what the broker sent and when, and the client's events. aliases: topic aliases that each end may use."""
    world = make_world(aliases)
    assert world.run(lambda: world.client.connected and not world.client.pending and world.client.subscribed)
    world.settle()
    assert not world.faults(), world.faults()
    assert not world.brokers[0].session.queue
    assert not aliases or world.brokers[0].aliased[1]
    return world.wire.recorded, world.events


def play(recorded, ends, aliases=0):
    """Return the events if reads end at the bytes `ends`."""
    world = make_world(aliases)
    player = Player(recorded, ends)
    world.client.transports = None
    world.client.servers = [(lambda host, port, path: player, ("", 0, ""), "host0:1883", False)]
    quiet = 0
    ticks = 0
    while quiet < 3:
        before = player.position, len(player.ends), len(player.recorded)
        world.client.tick()
        ticks += 1
        assert ticks < 20000
        if (player.position, len(player.ends), len(player.recorded)) == before:
            quiet += 1
            world.clock.advance(1000)
        else:
            quiet = 0
    assert not player.recorded and not player.down, "the client stopped"
    assert world.client.connected and not world.client.pending
    return world.events
