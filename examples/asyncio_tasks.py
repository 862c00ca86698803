"""asyncio: one task measures, another obeys commands, and both share one client.

    umqtt pub lamps/lamp-2/cmd on --qos 1
"""

import asyncio

from umqtt_robust import aio

BROKER = "mqtt://127.0.0.1:1883"
DEVICE = "lamp-2"
TOPIC = "lamps/" + DEVICE + "/"
INTERVAL_S = 1

lamp_is_on = False


async def measure(client):
    while True:
        # Returns when the broker has the message, however often the link breaks until then.
        await client.publish(TOPIC + "power", "7.5" if lamp_is_on else "0.0", qos=1)
        await asyncio.sleep(INTERVAL_S)


async def obey(client):
    global lamp_is_on
    await client.subscribe(TOPIC + "cmd", qos=1)
    async for _topic, payload in client:
        if payload not in (b"on", b"off"):
            print("unknown command:", payload)
            continue
        lamp_is_on = payload == b"on"
        await client.publish(TOPIC + "state", payload, qos=1, retain=True)


async def main():
    async with aio.Client(DEVICE, BROKER) as client:
        await asyncio.gather(measure(client), obey(client))


asyncio.run(main())
