# Connects for a second to a server that never answers: reads JSON {"url", "tls"}. Prints how often it polled.
import asyncio
import json
import sys

from umqtt_robust import aio
from umqtt_robust.tls import TLS
from umqtt_robust.websocket import WebSocket

config = json.loads(sys.stdin.readline())


async def main():
    errors = []
    made = {"mqtts": TLS(**config["tls"]), "ws": WebSocket()}
    one = aio.Client("a", config["url"], transports=made, random=lambda n: 0, connect_timeout=1000)
    one.on_error = errors.append
    tick = one.tick
    ticks = []
    one.tick = lambda: ticks.append(1) or tick()
    async with one:
        while not errors:
            await asyncio.sleep(0.05)
    print(json.dumps({"event": "done", "ticks": len(ticks), "error": type(errors[0]).__name__}))


asyncio.run(main())
