"""The project's client under the bench; runs on MicroPython and on CPython. argv[1]: JSON, argv[2]: the action.

Prints lines of JSON.
"""

import gc
import json
import sys
import time

from umqtt_robust import Client

try:
    from time import ticks_diff, ticks_us
except ImportError:

    def ticks_us():
        return time.perf_counter_ns() // 1000

    def ticks_diff(later, earlier):
        return later - earlier


TOPIC = b"bench/%d" % (ticks_us() % 1000000)
given = json.loads(sys.argv[1])


def say(**values):
    print(json.dumps(values))
    if hasattr(sys.stdout, "flush"):
        sys.stdout.flush()


def fail(error):
    raise SystemExit(str(error) or error.__class__.__name__)


def connected(**options):
    # random: so that the first attempt is made at once.
    client_id = b"bench-ours-%d" % (ticks_us() % 1000000)
    client = Client(client_id, "mqtt://127.0.0.1:" + str(given["port"]), random=lambda n: 0, **options)
    client.on_error = fail
    while not client.connected:
        client.poll(1000)
    return client


def publish():
    """Publish for a number of seconds, until the broker has acknowledged or, at QoS 0, read all messages."""
    qos = given["qos"]
    payload = bytes(given["size"])
    client = connected(window=given["window"])
    slots = client.outbox.store.slots
    sent = 0
    begin = ticks_us()
    limit = given["seconds"] * 1000000
    while ticks_diff(ticks_us(), begin) < limit:
        if qos:
            while client.pending < slots:
                client.publish(TOPIC, payload, qos)
                sent += 1
            client.poll(1000)
        else:
            for _ in range(64):
                if client.publish(TOPIC, payload) is None:
                    client.poll(1000)
                else:
                    sent += 1
            client.tick()
    if not qos:
        # The broker acknowledges this only after it has read all that came before.
        client.publish(TOPIC, payload, 1)
        sent += 1
    while client.pending:
        client.poll(1000)
    say(rate=sent * 1e6 / ticks_diff(ticks_us(), begin))


def receive():
    """Receive messages for a number of seconds, as fast as they come, each as bytes to a handler of its filter."""
    got = 0

    def handler(topic, payload):
        nonlocal got
        got += 1

    topic_filter = b"bench/%d/0/%d" % (given["qos"], given["size"])
    client = connected()
    client.on(topic_filter, handler)
    client.subscribe(topic_filter, given["qos"])
    client.tick()
    while got < given["first"]:
        client.poll(1000)
    got = 0
    begin = ticks_us()
    limit = given["seconds"] * 1000000
    while ticks_diff(ticks_us(), begin) < limit:
        client.poll(1000)
    say(rate=got * 1e6 / ticks_diff(ticks_us(), begin))


def allocation():
    """Report the bytes of heap that each operation takes with the collector off, averaged over many."""
    client = connected(keep_alive=60)
    payload = bytes(given["size"])
    now = [client.ticks() & 0x3FFFFFFF]
    client.ticks = lambda: now[0]

    def ping():
        now[0] += 30000
        client.tick()
        client.transport.wait(1000, False)  # for PINGRESP
        client.tick()

    def qos_1():
        client.publish(TOPIC, payload, 1)
        while client.in_flight:
            client.tick()

    def to_itself():
        # The publish allocates nothing, as its own figure shows.
        client.publish(TOPIC, payload)
        while client.received == before[0]:
            client.tick()
        before[0] = client.received

    result = {
        "idle_tick": cost(client.tick),
        "keep_alive": cost(ping),
        "publish_0": cost(lambda: client.publish(TOPIC, payload)),
        "publish_1": cost(qos_1),
    }
    client.subscribe(TOPIC)
    while not client.subscribed:
        client.tick()
    before = [client.received]
    client.on(TOPIC, take)
    result["receive"] = cost(to_itself)
    client.on_raw = take_raw
    result["receive_raw"] = cost(to_itself)
    say(**result)


def cost(operation, times=100):
    for _ in range(64):
        operation()
    gc.collect()
    gc.disable()
    begin = gc.mem_alloc()
    for _ in range(times):
        operation()
    used = gc.mem_alloc() - begin
    gc.enable()
    return used / times


def take_raw(buf, topic_start, topic_end, payload_start, payload_end):
    pass


def take(topic, payload):
    pass


def allocation_stream():
    """Report the same for inbound QoS 0 messages that come without a pause, to a raw handler."""
    client = connected()
    client.on_raw = take_raw
    client.subscribe(b"bench/0/%d/%d" % (given["count"], given["size"]))
    while client.received < 64:
        client.tick()
    gc.collect()
    gc.disable()
    first = client.received
    begin = gc.mem_alloc()
    while client.received < given["count"]:
        client.tick()
    say(bytes=(gc.mem_alloc() - begin) / (client.received - first))


globals()[sys.argv[2]]()
