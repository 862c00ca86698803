"""A world in memory for the laws: one client, a wire that can be cut at any byte, brokers that keep score, a clock.

Everything happens in one thread and in virtual time, so a run is the same every time.
"""

from umqtt_testkit.portable import FakeClock

from umqtt_robust import Client

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 10, 11, 12, 13, 14


def encode(head, body=b""):
    """A control packet with the given first byte."""
    n = len(body)
    length = b""
    while n > 127:
        length += bytes((n & 127 | 128,))
        n >>= 7
    return bytes((head,)) + length + bytes((n,)) + body


def string(text):
    return bytes((len(text) >> 8, len(text) & 255)) + text


def uint16(number):
    return bytes((number >> 8, number & 255))


def publish(topic, payload, qos=0, packet_id=0, retain=False, dup=False):
    head = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    return encode(head, string(topic) + (uint16(packet_id) if qos else b"") + payload)


def split_packets(data):
    """([(first byte, body)], rest) of a byte stream."""
    packets = []
    i = 0
    while i + 1 < len(data):
        length = shift = 0
        j = i + 1
        while j < len(data):
            length |= (data[j] & 127) << shift
            shift += 7
            j += 1
            if data[j - 1] < 128:
                break
        else:
            break
        if j + length > len(data):
            break
        packets.append((data[i], bytes(data[j : j + length])))
        i = j + length
    return packets, bytes(data[i:])


class Wire:
    """A transport for the client, with a broker at its other end.

    cut_up, cut_down: after so many bytes towards the broker or the client the link breaks, and what was on its way
    is gone. piece: at most so many bytes a read and a write.
    """

    def __init__(self, broker, cut_up=None, cut_down=None, piece=None):
        self.broker = broker
        self.cut_up = cut_up
        self.cut_down = cut_down
        self.piece = piece
        self.up = self.down_bytes = 0
        self.down = b""
        self.alive = True
        self.mute = False  # takes bytes and carries none
        self.full = False  # takes no bytes
        self.fin = False  # the broker closed its side
        self.closed = False
        self.socket = self
        broker.accept(self)

    def ready(self):
        return True

    def read(self, buf, offset):
        if not self.alive:
            raise OSError(104)
        if self.mute or not self.down:
            return 0 if self.fin else None
        n = min(len(buf) - offset, len(self.down), self.piece or 1 << 30)
        if self.cut_down is not None:
            n = min(n, self.cut_down - self.down_bytes)
            if n <= 0:
                self.break_now()
                raise OSError(104)
        buf[offset : offset + n] = self.down[:n]
        self.down = self.down[n:]
        self.down_bytes += n
        return n

    def write(self, buf, offset, size):
        if not self.alive:
            raise OSError(104)
        if self.full:
            return None
        n = min(size, self.piece or size)
        if self.cut_up is not None and self.up + n >= self.cut_up:
            data = bytes(buf[offset : offset + self.cut_up - self.up])
            self.up = self.cut_up
            self.broker.feed(self, data)
            self.break_now()
            return n  # the kernel took them all; the network did not
        self.up += n
        if not self.mute:
            self.broker.feed(self, bytes(buf[offset : offset + n]))
        return n

    def break_now(self):
        if self.alive:
            self.alive = False
            self.down = b""
            self.broker.lost(self)

    def send(self, data):
        """From the broker."""
        if self.alive:
            self.down += data

    def close(self):
        self.closed = True
        self.break_now()


class BrokerSession:
    def __init__(self):
        self.subscriptions = {}
        self.queue = []  # [packet id, topic, payload, qos, sent, PUBREC came]
        self.inbound = []  # QoS 2 packet ids between PUBLISH and PUBREL
        self.last_id = 0


class Broker:
    """MQTT 3.1.1 for one client at a time, strict, and written down: what the laws look at.

    taken: (topic, payload) of every message that it took over; at QoS 1 as often as it came.
    acked_in_order, released_in_order: packet ids of the client's PUBACKs and PUBRELs; faults: broken laws.
    """

    def __init__(self, name="a", return_code=0):
        self.name = name
        self.return_code = return_code
        self.sessions = {}
        self.wire = None
        self.session = None
        self.rest = b""
        self.taken = []
        self.seen = []  # packets of the client: (first byte, body)
        self.faults = []
        self.connects = []
        self.awaited_acks = []
        self.awaited_rels = []
        self.answer_pings = True
        self.answer = True
        self.acknowledge = True

    def accept(self, wire):
        if self.wire and self.wire.alive:
            self.wire.break_now()
        self.wire = wire
        self.session = None
        self.rest = b""

    def lost(self, wire):
        if wire is self.wire:
            self.wire = self.session = None

    def feed(self, wire, data):
        if wire is not self.wire:
            return
        packets, self.rest = split_packets(self.rest + data)
        for head, body in packets:
            self.seen.append((head, body))
            if self.answer:
                self._take(wire, head, body)

    def _take(self, wire, head, body):
        kind = head >> 4
        if kind == CONNECT:
            self._connect(wire, body)
        elif self.session is None:
            self.faults.append("packet type %d before CONNACK" % kind)
        elif kind == PUBLISH:
            self._publish(wire, head, body)
        elif kind == SUBSCRIBE:
            n = body[2] << 8 | body[3]
            self.session.subscriptions[body[4 : 4 + n]] = body[4 + n]
            wire.send(encode(0x90, body[:2] + bytes((body[4 + n],))))
        elif kind == UNSUBSCRIBE:
            n = body[2] << 8 | body[3]
            self.session.subscriptions.pop(body[4 : 4 + n], None)
            wire.send(encode(0xB0, body[:2]))
        elif kind == PINGREQ:
            if self.answer_pings:
                wire.send(b"\xd0\x00")
        elif kind == DISCONNECT:
            wire.fin = True
        elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            self._acknowledged(wire, kind, body[0] << 8 | body[1])
        else:
            self.faults.append("packet type %d from a client" % kind)

    def _connect(self, wire, body):
        clean = body[7] & 2
        n = body[10] << 8 | body[11]
        client_id = body[12 : 12 + n]
        self.connects.append(body)
        if self.return_code:
            wire.send(bytes((0x20, 2, 0, self.return_code)))
            wire.fin = True
            return
        present = client_id in self.sessions and not clean
        if clean:
            self.sessions.pop(client_id, None)
            self.session = BrokerSession()
        else:
            self.session = self.sessions.setdefault(client_id, BrokerSession())
        self.awaited_acks = []
        self.awaited_rels = []
        wire.send(bytes((0x20, 2, 1 if present else 0, 0)))
        for message in self.session.queue:
            self._send(message)

    def _publish(self, wire, head, body):
        n = body[0] << 8 | body[1]
        topic = body[2 : 2 + n]
        qos = head >> 1 & 3
        if not qos:
            self.taken.append((topic, body[2 + n :]))
            return
        packet_id = body[2 + n] << 8 | body[3 + n]
        payload = body[4 + n :]
        if not packet_id:
            self.faults.append("packet id 0")
        if qos == 1:
            if packet_id in self.session.inbound:
                self.faults.append("packet id %d reused while QoS 2 holds it" % packet_id)
            self.taken.append((topic, payload))
            if self.acknowledge:
                wire.send(encode(0x40, uint16(packet_id)))
            return
        if packet_id not in self.session.inbound:
            self.session.inbound.append(packet_id)
            self.taken.append((topic, payload))
        elif not head & 8:
            self.faults.append("packet id %d reused while in use" % packet_id)
        if self.acknowledge:
            self.awaited_rels.append(packet_id)
            wire.send(encode(0x50, uint16(packet_id)))

    def _acknowledged(self, wire, kind, packet_id):
        session = self.session
        if kind == PUBREL:
            if packet_id in self.awaited_rels:
                if self.awaited_rels[0] != packet_id:
                    self.faults.append("PUBREL %d before PUBREL %d" % (packet_id, self.awaited_rels[0]))
                self.awaited_rels.remove(packet_id)
            if packet_id in session.inbound:
                session.inbound.remove(packet_id)
            wire.send(encode(0x70, uint16(packet_id)))
            return
        for message in session.queue:
            if message[0] == packet_id and message[4]:
                break
        else:
            return
        if kind == PUBACK:
            if self.awaited_acks[:1] != [packet_id]:
                self.faults.append("PUBACK %d out of order" % packet_id)
            if packet_id in self.awaited_acks:
                self.awaited_acks.remove(packet_id)
        if kind == PUBREC:
            message[5] = True
            wire.send(encode(0x62, uint16(packet_id)))
        else:
            session.queue.remove(message)

    def send(self, client_id, topic, payload, qos):
        """A message for the client, now or when it comes back."""
        session = self.sessions[client_id]
        session.last_id = session.last_id % 65535 + 1
        message = [session.last_id, topic, payload, qos, False, False]
        if qos:
            session.queue.append(message)
        if self.session is session:
            self._send(message)

    def _send(self, message):
        packet_id, topic, payload, qos, sent, released = message
        if released:
            self.wire.send(encode(0x62, uint16(packet_id)))
            return
        if qos == 1:
            self.awaited_acks.append(packet_id)
        self.wire.send(publish(topic, payload, qos, packet_id, dup=sent))
        message[4] = True

    def forget(self, client_id):
        """The broker loses its sessions, as one without persistence does."""
        self.sessions.pop(client_id, None)


class World:
    """A client called c, its brokers, and the clock. cuts: of the wires to come, as Wire takes them."""

    def __init__(self, brokers=None, start=0, **options):
        self.clock = FakeClock(start)
        self.brokers = brokers or [Broker()]
        self.wires = []
        self.cuts = []
        self.unreachable = False
        self.events = []
        self.messages = []
        options.setdefault("clean_session", False)
        options.setdefault("random", lambda n: n - 1)
        self.options = options
        self.start()

    def start(self):
        """The program starts, with whatever its store holds."""
        names = ["w%d://host" % i for i in range(len(self.brokers))]
        transports = {}
        for i in range(len(self.brokers)):
            transports["w%d" % i] = self._maker(self.brokers[i])
        self.client = client = Client(
            b"c", _urls(names), ticks=self.clock.ticks_ms, transports=_schemes(transports), **self.options
        )
        client.on_connect = lambda present: self.events.append(("connect", present))
        client.on_disconnect = lambda error: self.events.append(("disconnect", error))
        client.on_error = lambda error: self.events.append(("error", error))
        client.on_acknowledged = lambda packet_id: self.events.append(("acknowledged", packet_id))
        client.on_message = self._message
        return client

    def _message(self, topic, payload):
        self.messages.append((topic, payload))

    def _maker(self, broker):
        def make(host, port, path):
            if self.unreachable:
                raise OSError(111)
            cut = self.cuts.pop(0) if self.cuts else {}
            wire = Wire(broker, **cut)
            self.wires.append(wire)
            return wire

        return make

    @property
    def wire(self):
        return self.wires[-1]

    def run(self, until, ms=600000):
        """Ticks in virtual time until `until()`; False when ms went by first."""
        left = ms
        ticks = 0
        while not until():
            ticks += 1
            assert ticks < 20000, "the client is busy for ever"
            wait = self.client.tick()
            if wait > 0 and not until() and not self._more():
                if left <= 0:
                    return False
                wait = min(wait, 1000, left)
                left -= wait
                self.clock.advance(wait)
        return True

    def settle(self, ms=0):
        """Ticks until nothing moves any more, then lets ms go by."""
        self.run(lambda: False, ms)

    def _more(self):
        wire = self.client.transport
        return wire is not None and (wire.down and not wire.mute or not wire.alive)

    def of_kind(self, kind):
        return [event[1] for event in self.events if event[0] == kind]


def _urls(names):
    return tuple("mqtt://host%s" % name[1 : name.index(":")] for name in names)


def _schemes(transports):
    makers = [transports["w%d" % i] for i in range(len(transports))]

    def make(host, port, path):
        return makers[int(host[4:])](host, port, path)

    return {"mqtt": make}
