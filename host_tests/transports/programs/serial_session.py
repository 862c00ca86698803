# Takes messages over a serial line: reads JSON {"tty", "count"}; with 0 it subscribes, and then does not read any more.
import json
import sys
import time

from umqtt_robust import Client
from umqtt_robust.serial import Serial

config = json.loads(sys.stdin.readline())
uart = open(config["tty"], "r+b", 0)  # noqa: SIM115
came = []
present = []
client = Client("serial", "mqtt://uart", transports={"mqtt": lambda *_: Serial(uart)}, clean_session=False)
client.on_message = lambda topic, payload: came.append(int(payload))
client.on_connect = present.append
if not config["count"]:
    client.subscribe("serial", 1)
    while not client.subscribed:
        client.poll(1000)
    print(json.dumps({"event": "subscribed"}))
    time.sleep(600)
while len(set(came)) < config["count"]:
    client.poll(1000)
client.disconnect()
client.tick()
print(json.dumps({"event": "done", "present": present, "came": sorted(set(came))}))
