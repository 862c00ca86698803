# See waiting_round.py: umqtt_robust.aio.
import asyncio

from waiting_round import INBOX, OUT, PUBLISHES, Round, callback, clean, config, qos, store

from umqtt_robust import aio
from umqtt_robust.errors import MQTTError

current = Round()


class Leave(Exception):
    pass


async def take(client):
    _, payload = await client.__anext__()
    if PUBLISHES is not None:
        await client.publish(OUT, payload[:8], PUBLISHES)
    turn = current.take(payload)
    if callback == "sleeps":
        await asyncio.sleep(0.001)
    elif turn and callback == "unsubscribes":
        await client.unsubscribe(INBOX)
    elif turn and callback == "disconnects":
        raise Leave


async def rounds(client, begins):
    while True:
        if begins:
            await client.subscribe(INBOX, qos)
            current.begin(client)
        begins = True
        while current.goes_on(client):
            try:
                await take(client)
            except ValueError:
                pass
            except MQTTError as error:
                current.refuse(error)
        current.result(client)


async def main():
    url = "mqtt://127.0.0.1:%d" % config["port"]
    client = aio.Client(config["name"], url, clean_session=clean, store=store(), random=lambda n: 0)
    begins = True
    while True:
        try:
            async with client:
                await rounds(client, begins)
        except Leave:
            begins = False


asyncio.run(main())
