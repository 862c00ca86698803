"""mqtt_as under the bench, on MicroPython. argv as in ours.py."""

import asyncio
import gc
import json
import sys
from time import ticks_diff, ticks_us

from mqtt_as import MQTTClient, config

given = json.loads(sys.argv[1])
TOPIC = b"bench/%d" % (ticks_us() % 1000000)
got = 0


def say(**values):
    print(json.dumps(values))


def count(topic, message, retained):
    global got
    got += 1


async def connected():
    config["server"] = "127.0.0.1"
    config["port"] = given["port"]
    config["client_id"] = b"bench-as-%d" % (ticks_us() % 1000000)
    config["subs_cb"] = count
    client = MQTTClient(config)
    await client.connect(quick=True)
    return client


async def publish():
    """Publish from given["window"] tasks, each with one message in flight."""
    client = await connected()
    payload = bytes(given["size"])
    qos = given["qos"]
    sent = 0
    begin = ticks_us()
    limit = given["seconds"] * 1000000

    async def one():
        nonlocal sent
        while ticks_diff(ticks_us(), begin) < limit:
            await client.publish(TOPIC, payload, False, qos)
            sent += 1

    await asyncio.gather(*[one() for _ in range(given["window"] if qos else 1)])
    if not qos:
        await client.publish(TOPIC, payload, False, 1)
    say(rate=sent * 1e6 / ticks_diff(ticks_us(), begin))


async def receive():
    global got
    client = await connected()
    await client.subscribe(b"bench/%d/0/%d" % (given["qos"], given["size"]), given["qos"])
    while not got:  # too slow to wait for given["first"] messages
        await asyncio.sleep_ms(1)
    got = 0
    begin = ticks_us()
    await asyncio.sleep(given["seconds"])
    say(rate=got * 1e6 / ticks_diff(ticks_us(), begin))


async def cost(operation, times=50):
    for _ in range(5):
        await operation()
    gc.collect()
    gc.disable()
    begin = gc.mem_alloc()
    for _ in range(times):
        await operation()
    used = gc.mem_alloc() - begin
    gc.enable()
    return used / times


async def allocation():
    client = await connected()
    payload = bytes(given["size"])
    say(
        publish_0=await cost(lambda: client.publish(TOPIC, payload)),
        publish_1=await cost(lambda: client.publish(TOPIC, payload, False, 1)),
    )


asyncio.run(globals()[sys.argv[2]]())
