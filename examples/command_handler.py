"""Command handler: a device answers every command, even those that were sent while it was offline.

    umqtt pub pumps/pump-7/cmd '{"id": "1", "cmd": "set_speed", "value": 1200}' --qos 1
    umqtt sub 'pumps/#'

The broker keeps commands for the device (clean_session=False), and QoS 2 delivers each of them once. A power cut in the
middle of a command repeats it, so write commands that may be repeated: "set the speed to 1200", not "100 faster".
"""

import json

from umqtt_robust import Client, Will
from umqtt_robust.flash import FlashStore

BROKER = "mqtt://127.0.0.1:1883"
DEVICE = "pump-7"
TOPIC = "pumps/" + DEVICE + "/"

speed = 0


def set_speed(value):
    global speed
    if type(value) is not int or not 0 <= value <= 3000:
        raise ValueError("value must be a whole number from 0 to 3000")
    speed = value
    return speed


def get_speed(value):
    return speed


COMMANDS = {"set_speed": set_speed, "get_speed": get_speed}


def handle(topic, payload):
    answer = {"id": None, "ok": False}
    try:
        command = json.loads(payload)
        answer["id"] = command["id"]
        answer["result"] = COMMANDS[command["cmd"]](command.get("value"))
        answer["ok"] = True
    except KeyError as error:
        answer["error"] = "unknown command or missing key: %s" % error
    except (ValueError, TypeError, AttributeError) as error:  # not JSON, no object, or a value that is not allowed
        answer["error"] = str(error)
    client.publish(TOPIC + "reply", json.dumps(answer), qos=1)


client = Client(
    DEVICE,
    BROKER,
    clean_session=False,
    store=FlashStore(DEVICE),
    will=Will(TOPIC + "status", "offline", qos=1, retain=True),
)
client.on(TOPIC + "cmd", handle)
client.subscribe(TOPIC + "cmd", qos=2)
client.on_connect = lambda session_present: client.publish(TOPIC + "status", "online", qos=1, retain=True)
client.on_error = lambda error: print("mqtt:", error)
while True:
    client.poll(1000)
