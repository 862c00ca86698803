# A program for which messages wait at the broker, in little heap: reads JSON {"port", "front", "qos", "callback",
# "counts", "clean", "gate", "flash"}. For each count: says ready, waits until somebody has written into the pipe
# `gate`, and takes that many messages, which begin with their numbers; "flash": a folder for a FlashStore (aio).
import gc
import json
import sys
import time

from umqtt_robust.errors import MQTTError

config = json.loads(sys.stdin.readline())
qos = config["qos"]
callback = config["callback"]
last = -1
taken = 0
ordered = True
too_large = []  # (topic, size) of messages for which there was no memory


def say(event, **more):
    more["event"] = event
    print(json.dumps(more))


def wait():
    say("ready")
    with open(config["gate"]) as gate:
        gate.read()


def came(payload):
    # Nothing is kept: what the client takes of the heap is what this is about.
    global last, taken, ordered
    number = int(bytes(payload[: payload.find(b" ")]))
    ordered = ordered and number > last
    last = number
    taken += 1


def refused(error):
    from umqtt_robust.large import MessageTooLarge

    global taken
    assert isinstance(error, MessageTooLarge), repr(error)
    too_large.append(error.args)
    taken += 1


def result(client):
    global last, taken, ordered
    gc.collect()
    say("taken", taken=taken, ordered=ordered, discarded=client.discarded, too_large=too_large, free=gc.mem_free())
    last = -1
    taken = 0
    ordered = True
    client.discarded = 0


def blocking():
    module = __import__("umqtt_robust." + config["front"], None, None, ("x",))
    one = module.MQTTClient(b"waiting", "127.0.0.1", config["port"], keepalive=60)

    def handler(topic, payload):
        came(payload)
        if callback == "sleeps":
            time.sleep(0.001)
        elif callback == "raises":
            raise ValueError("of the callback")
        elif callback != "returns":
            one.publish(b"out", payload[:8], qos=int(callback[-1]))

    one.set_callback(handler)
    one.connect(config["clean"])
    one.subscribe(b"in/#", qos)
    for count in config["counts"]:
        wait()
        while taken + inbox(one).discarded < count:
            try:
                one.wait_msg()
            except ValueError:
                pass
            except MQTTError as error:
                refused(error)
        result(inbox(one))
    one.disconnect()


def inbox(one):
    # The bundle calls the attribute of the client otherwise.
    for name in dir(one):
        if hasattr(getattr(one, name), "discarded"):
            return getattr(one, name)


def asynchronous():
    import asyncio

    from umqtt_robust import aio

    options = {}
    if config.get("flash"):
        from umqtt_robust.flash import FlashStore

        options["store"] = FlashStore(config["flash"], slots=8)

    async def take(one):
        _, payload = await one.__anext__()
        came(payload)
        if callback == "sleeps":
            await asyncio.sleep(0.001)
        elif callback == "raises":
            raise ValueError("of the program")
        elif callback != "returns":
            await one.publish(b"out", payload[:8], qos=int(callback[-1]))

    async def main():
        url = "mqtt://127.0.0.1:" + str(config["port"])
        async with aio.Client(b"waiting", url, clean_session=config["clean"], **options) as one:
            await one.subscribe(b"in/#", qos)
            for count in config["counts"]:
                wait()
                while taken + one.discarded < count:
                    try:
                        await asyncio.wait_for(take(one), 60)
                    except ValueError:
                        pass
                    except MQTTError as error:
                        refused(error)
                result(one)

    asyncio.run(main())


if config["front"] == "aio":
    asynchronous()
else:
    blocking()
say("done")
