# Publishes over the example's serial transport and waits for its own messages: reads JSON {"tty", "examples", "count"}.
# The terminal is raw, and a read of it returns at once: as machine.UART with timeout=0, which no host has.
import json
import sys

config = json.loads(sys.stdin.readline())
sys.path.insert(0, config["examples"])

from uart_transport import Serial  # noqa: E402

from umqtt_robust import Client  # noqa: E402

uart = open(config["tty"], "r+b", 0)  # noqa: SIM115
came = []
client = Client("serial", "mqtt://uart", transports={"mqtt": lambda *_: Serial(uart)}, random=lambda n: 0)
client.on_message = lambda topic, payload: came.append(payload)
client.subscribe("serial", 1)
sent = 0
polls = 0
while len(came) < config["count"] or client.pending:
    if client.subscribed and client.connected and sent < config["count"]:
        client.publish("serial", b"%03d " % sent + b"s" * 200, 1)
        sent += 1
    client.poll(1000)
    polls += 1
assert came == [b"%03d " % i + b"s" * 200 for i in range(config["count"])]
client.disconnect()
client.tick()
print(json.dumps({"event": "done", "polls": polls}))
