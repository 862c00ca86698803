"""Operations that must not allocate on a board run with the heap locked."""

from umqtt_testkit.portable import Clock, equal, skip

from umqtt_robust import Client

try:
    import gc

    from micropython import heap_lock, heap_unlock
except ImportError:
    heap_lock = None


class Silent:
    """A transport that accepts everything and delivers what it is told to, without allocating."""

    socket = None

    def __init__(self, host, port, path):
        self.inbound = b"\x20\x02\x00\x00"
        self.given = False
        self.taken = 0

    def ready(self):
        return True

    def read(self, buf, offset):
        if self.given:
            return None
        self.given = True
        n = len(self.inbound)
        buf[offset : offset + n] = self.inbound
        return n

    def write(self, buf, offset, size):
        self.taken += size
        return size

    def close(self):
        pass


def connected(**options):
    if heap_lock is None:
        skip("only MicroPython can lock its heap")
    clock = Clock()
    client = Client(b"c", "mqtt://h", transports={"mqtt": Silent}, ticks=clock.ticks_ms, random=lambda n: 0, **options)
    client.tick()
    assert client.connected
    return client, clock


def locked(function):
    function()  # objects that are created only once are created now
    gc.collect()
    heap_lock()
    try:
        function()
    finally:
        heap_unlock()


def test_an_idle_tick_allocates_nothing():
    client, _ = connected()
    locked(client.tick)


def test_a_keep_alive_round_trip_allocates_nothing():
    client, clock = connected(keep_alive=10)

    def round_trip():
        clock.advance(5000)
        client.transport.given = True
        client.tick()
        client.transport.inbound = b"\xd0\x00"
        client.transport.given = False
        client.tick()

    taken = client.transport.taken
    locked(round_trip)
    equal(client.transport.taken - taken, 4)
    assert client.connected


def test_a_publish_at_qos_0_allocates_nothing():
    client, _ = connected()
    topic = b"fleet/pump-7/telemetry"
    payload = bytes(64)
    locked(lambda: client.publish(topic, payload))
    equal(client.discarded, 0)


got = [0]


def count(buf, topic_start, topic_end, payload_start, payload_end):
    # A function of the module: in MicroPython, calling a closure with so many arguments allocates.
    got[0] += payload_end - payload_start


def test_an_inbound_message_to_a_raw_handler_allocates_nothing():
    client, _ = connected()
    got[0] = 0
    client.on_raw = count
    client.transport.inbound = b"\x30\x45\x00\x03a/b" + bytes(64)

    def receive():
        client.transport.given = False
        client.tick()

    locked(receive)
    equal(got, [128])


def test_a_publish_at_qos_1_allocates_nothing():
    client, _ = connected(window=20)
    topic = b"fleet/pump-7/telemetry"
    payload = bytes(64)
    transport = client.transport
    ack = bytearray(b"\x40\x02\x00\x00")
    transport.inbound = ack

    def round_trip():
        packet_id = client.publish(topic, payload, 1)
        ack[2] = packet_id >> 8
        ack[3] = packet_id & 255
        transport.given = False
        client.tick()

    for _ in range(200):
        round_trip()
    gc.collect()
    gc.disable()
    before = gc.mem_alloc()
    for _ in range(500):
        round_trip()
    allocated = (gc.mem_alloc() - before) / 500
    gc.enable()
    print("bytes per publish at QoS 1:", allocated)
    equal(client.pending, 0)
    equal(allocated, 0.0)


# The sizes of MicroPython's tables (get_hash_alloc_greater_or_equal_to in py/map.c); a full one grows.
TABLE_SIZES = (17, 23, 29, 37, 47, 59, 73, 97, 127, 167)


def test_the_table_of_the_clients_attributes_is_whole_at_the_start_and_not_nearly_full():
    # Every method call looks there first, and a failed look-up in a nearly full table is slow: with one free place of
    # 73, a publish takes half as long again.
    client, clock = connected(keep_alive=10)
    used = len(client.__dict__)
    client.on("a/+", print)
    client.subscribe("a/+")
    client.publish("a", b"x", 1)
    clock.advance(5000)
    client.tick()
    equal(len(client.__dict__), used)
    size = min([size for size in TABLE_SIZES if size >= used])
    print("attributes:", used, "places:", size)
    assert used * 100 <= size * 80
