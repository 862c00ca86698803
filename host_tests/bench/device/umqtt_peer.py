"""umqtt.simple, or the drop-in for it (given["module"]), under the bench, on MicroPython. argv as in ours.py."""

import gc
import json
import sys
from time import ticks_diff, ticks_us

given = json.loads(sys.argv[1])
MQTTClient = __import__(given["module"], None, None, ("MQTTClient",)).MQTTClient
TOPIC = b"bench/%d" % (ticks_us() % 1000000)


def say(**values):
    print(json.dumps(values))


def connected(handler=None):
    client = MQTTClient(b"bench-peer-%d" % (ticks_us() % 1000000), "127.0.0.1", given["port"], keepalive=60)
    client.set_callback(handler or (lambda topic, message: None))
    client.connect()
    return client


def publish():
    client = connected()
    qos = given["qos"]
    payload = bytes(given["size"])
    sent = 0
    begin = ticks_us()
    limit = given["seconds"] * 1000000
    while ticks_diff(ticks_us(), begin) < limit:
        for _ in range(1 if qos else 64):
            client.publish(TOPIC, payload, False, qos)
            sent += 1
    if not qos:
        client.publish(TOPIC, payload, False, 1)
        sent += 1
    say(rate=sent * 1e6 / ticks_diff(ticks_us(), begin))


def receive():
    got = 0

    def handler(topic, message):
        nonlocal got
        got += 1

    client = connected(handler)
    client.subscribe(b"bench/%d/0/%d" % (given["qos"], given["size"]), given["qos"])
    while got < given["first"]:
        client.wait_msg()
    got = 0
    begin = ticks_us()
    limit = given["seconds"] * 1000000
    while ticks_diff(ticks_us(), begin) < limit:
        for _ in range(16):
            client.wait_msg()
    say(rate=got * 1e6 / ticks_diff(ticks_us(), begin))


def cost(operation, times=50):
    for _ in range(10):
        operation()
    gc.collect()
    gc.disable()
    begin = gc.mem_alloc()
    for _ in range(times):
        operation()
    used = gc.mem_alloc() - begin
    gc.enable()
    return used / times


def allocation():
    client = connected()
    payload = bytes(given["size"])
    result = {
        "idle_tick": cost(client.check_msg),
        "keep_alive": cost(lambda: (client.ping(), client.wait_msg())),
        "publish_0": cost(lambda: client.publish(TOPIC, payload)),
        "publish_1": cost(lambda: client.publish(TOPIC, payload, False, 1)),
    }
    client.subscribe(TOPIC)
    result["receive"] = cost(lambda: (client.publish(TOPIC, payload), client.wait_msg())) - result["publish_0"]
    say(**result)


globals()[sys.argv[2]]()
