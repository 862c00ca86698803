"""The asyncio client; see ours_exchange.py."""

import asyncio
import sys

from umqtt_robust import aio
from umqtt_robust.store import MemoryStore

TOPIC = b"bench/exchange-ours"
count = int(sys.argv[2])
payload = bytes(256)


def fail(error):
    raise error


async def main():
    url = "mqtt://127.0.0.1:" + sys.argv[1]
    client = aio.Client(b"bench-ours", url, store=MemoryStore(2), rx_size=320, tx_size=320)
    got = 0
    async with client:
        client.on_error = client.on_disconnect = fail
        await client.subscribe(TOPIC, 1)
        for _ in range(count):
            await client.publish(TOPIC, payload, 1)
            got += len((await client.__anext__())[1]) == 256
        client.on_error = client.on_disconnect = None
    print('{"exchanged":', got, "}")


asyncio.run(main())
