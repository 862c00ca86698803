"""mqtt_as; see ours_exchange.py."""

import asyncio
import sys

from mqtt_as import MQTTClient, config

TOPIC = b"bench/exchange-as"
count = int(sys.argv[2])
payload = bytes(256)
got = 0


def handler(topic, message, retained):
    global got
    got += len(message) == 256


async def main():
    config["server"] = "127.0.0.1"
    config["port"] = int(sys.argv[1])
    config["client_id"] = b"bench-as"
    config["subs_cb"] = handler
    client = MQTTClient(config)
    await client.connect(quick=True)
    await client.subscribe(TOPIC, 1)
    for n in range(count):
        await client.publish(TOPIC, payload, False, 1)
        while got <= n:
            await asyncio.sleep_ms(1)
    print('{"exchanged":', got, "}")


asyncio.run(main())
